"""What each process of tests/test_distributed.py runs; started by torchrun::

    torchrun --standalone --nproc-per-node 2 tests/distributed_worker.py FOLDER

Every case trains into a folder of its name. The processes form one group, as starting them is
what takes time.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from command_line import settings
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from training_parts import CONFIG, CORPUS, ONE_THREAD
from training_parts import run as run_model

from sterna.cli.main import main as sterna
from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import ByteTokenizer
from sterna.model.torch.training.distributed import Processes, joined
from sterna.model.torch.training.recipe import Recording, TrainRecipe
from sterna.model.torch.training.run_folder import RunFolder
from sterna.model.torch.training.state import add_gradient
from sterna.model.torch.training.train import TrainResult

STEPS = 20
STOPPED_AT = 9
"""Steps after which an interrupted run stops."""
SMALL_STEPS = TrainRecipe(lr=1e-3, batch=4, window=40, float_start=0.0)
"""Other sums of the same numbers are rounded otherwise. With large steps that changes the 8-bit
code of some activation soon, and a changed code changes weights by up to 6e-5."""
CARRIED = replace(SMALL_STEPS, carry_state=True)
IN_PARTS = replace(SMALL_STEPS, accumulate=2)
UNEVEN = ModelConfig(d=17, layers=1, dff=25)
"""Two processes have different numbers of rows."""
REVERSIBLE = ModelConfig(d=16, layers=2, dff=24, residual="reversible")
PIECES = STOPPED_AT * SMALL_STEPS.batch // 2
"""What one of two processes reads in these steps."""


class Interrupted(MemoryText):
    """A text at whose so many-th piece the process that reads it is told to end; each piece takes
    it so many seconds."""

    def __init__(self, pieces: int | None, seconds: float = 0.0) -> None:
        super().__init__(CORPUS, ByteTokenizer())
        self._left, self._seconds = pieces, seconds

    def piece(self, start: int, count: int) -> np.ndarray:
        time.sleep(self._seconds)
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return super().piece(start, count)


def run(folder: Path, *, steps: int = STEPS, parallel: str | None = None,
        pieces: int | None = None, recipe: TrainRecipe = SMALL_STEPS,
        config: ModelConfig = CONFIG, **options: Any) -> TrainResult:
    """A short quiet run on one thread; a process that reads ``pieces`` pieces gets a signal."""
    execution = replace(ONE_THREAD, parallel=parallel, checkpoint_activations=options.pop(
        "checkpoint_activations", False))
    return run_model(folder, steps, config=config, corpus=Interrupted(pieces), recipe=recipe,
                     execution=execution, **options)


def refused(call: Callable[[], object]) -> str:
    """What an error said, on every process alike."""
    try:
        call()
        said = "nothing was refused"
    except ValueError as error:
        said = f"{type(error).__name__}: {error}"
    (only,) = set(every(said))
    return str(only)


def is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def every(found: object) -> list[Any]:
    """What each process found."""
    return Processes(torch.device("cpu")).every(found)


def stopped(folder: Path, **options: Any) -> list[int | None]:
    """Interrupt the last process alone; the step at which each stopped."""
    result = run(folder, pieces=PIECES if is_last() else None, recipe=CARRIED, **options)
    return every((result.step, result.stop_signal, result.interrupted))


def timed(folder: Path, pieces: int | None, **options: Any) -> list[tuple[int, float]]:
    """Train for a time, one process being slower than the others; steps and seconds of each."""
    text = Interrupted(pieces, 0.002) if is_last() else Interrupted(None)
    result = run_model(folder, None, minutes=0.03, corpus=text, recipe=SMALL_STEPS,
                       recording=Recording(heldout_bytes=300), **options)
    return every((result.step, result.seconds))


def commanded(folder: Path, pieces: int | None, *options: str) -> list[Any]:
    """The command: its exit code, its output and whether there is a report, of each process."""
    text = Interrupted(pieces if is_last() else None)
    with (patch("sterna.cli.commands.training.in_tokens", lambda *arguments: text),
          redirect_stdout(io.StringIO()) as out):
        code = sterna([
            "train", *settings(d=16, layers=2, dff=24, batch=4, window=40, heldout_bytes=300),
            "--steps", "20", "--threads", "1", "-o", str(folder), *options])
    dist.barrier()      # the first writes the report after the others are let go
    return every((code, out.getvalue(), (folder / "report.html").exists()))


def gathers(folder: Path) -> list[int]:
    """How often processes gather weights in a step with weights as they are, then with codes."""
    counts: list[int] = []

    def counted(*arguments: Any) -> Any:
        with patch.object(_fsdp_param_group, "foreach_all_gather",
                          wraps=_fsdp_param_group.foreach_all_gather) as gather:
            result = add_gradient(*arguments)
        counts.append(gather.call_count)
        return result

    with patch("sterna.model.torch.training.state.add_gradient", counted):
        run(folder, steps=2, parallel="fsdp", recording=Recording(heldout_evaluations=1),
            recipe=replace(SMALL_STEPS, float_start=0.5))
    return counts


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for parallel in ("ddp", "fsdp"):
        run(folder / parallel, parallel=parallel)
        run(folder / f"{parallel} parts", parallel=parallel, recipe=IN_PARTS,
            checkpoint_activations=True, config=UNEVEN)
        whole = run(folder / f"{parallel} carried", parallel=parallel, recipe=CARRIED)
        found[f"{parallel} bpb"] = whole.heldout_bpb
        again = folder / f"{parallel} resumed"
        found[f"{parallel} stopped"] = stopped(again, parallel=parallel)
        run(again, parallel=parallel, recipe=CARRIED, resume=True)
        found[f"{parallel} files"] = sorted(path.name for path in again.iterdir())
        # Left as it is, for one process to go on; and what one process left.
        run(folder / f"{parallel} to one", steps=0, parallel=parallel, recipe=CARRIED)
        stopped(folder / f"{parallel} to one", parallel=parallel, resume=True)
        run(folder / f"one to {parallel}", parallel=parallel, recipe=CARRIED, resume=True)
        run(folder / f"seed to {parallel}", parallel=parallel, resume=True)
    run(folder / "ddp reversible", config=REVERSIBLE)
    found["timed"] = [timed(folder / "timed", PIECES), timed(folder / "timed", None, resume=True)]
    found["commanded"] = [commanded(folder / "commanded", PIECES),
                          commanded(folder / "commanded", None, "--resume")]
    found["gathers"] = gathers(folder / "gathers")
    for name, layout in (("compact", None), ("fsdp compact", "fsdp")):
        run(folder / name, parallel=layout, profile=C12, steps=5)
    found["refused"] = refusals(folder)
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


def refusals(folder: Path) -> dict[str, str]:
    """What is refused, by every process in the same words."""
    options: dict[str, dict[str, Any]] = {
        "batch": {"recipe": replace(SMALL_STEPS, batch=3)},
        "accumulate": {"recipe": replace(SMALL_STEPS, accumulate=4)},
        "layout": {"parallel": "tp"}, "reversible": {"parallel": "fsdp", "config": REVERSIBLE},
        "samples": {"recording": Recording(sample_every=1)},
        "average": {"recipe": replace(SMALL_STEPS, ema=0.9)}}
    found = {name: refused(partial(run, folder / "no", **each)) for name, each in options.items()}
    with RunFolder(folder / "locked").locked() if dist.get_rank() == 0 else nullcontext():
        found["locked"] = refused(lambda: run(folder / "locked", parallel="ddp"))
    return {**found, "finished": refused(lambda: run(folder / "ddp"))}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined(lambda local_rank: torch.device("cpu")):
        main(Path(sys.argv[1]))
