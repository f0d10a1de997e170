"""What each process of tests/test_distributed.py runs; started by torchrun::

    torchrun --standalone --nproc-per-node 2 tests/distributed_worker.py FOLDER

Every case trains into a folder of its name. The processes form one group, as starting them is
what takes time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from test_train import CONFIG, CORPUS

from sterna.model.config import ModelConfig
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import ByteTokenizer
from sterna.model.training.distributed.processes import joined
from sterna.model.training.execution import Execution
from sterna.model.training.recipe import TrainRecipe
from sterna.model.training.run_folder import RunFolder
from sterna.model.training.train import TrainResult, train

STEPS = 20
STOPPED_AT = 9
"""Steps after which an interrupted run stops."""
SMALL_STEPS = TrainRecipe(lr=1e-3, batch=4, window=40)
"""Other sums of the same numbers are rounded otherwise. With large steps that changes the 8-bit
code of some activation soon, and a changed code changes weights by up to 6e-5."""
CARRIED = replace(SMALL_STEPS, carry_state=True)
IN_PARTS = replace(SMALL_STEPS, accumulate=2)


class Interrupted(MemoryText):
    """A text at whose so many-th piece the process that reads it is told to end."""

    def __init__(self, pieces: int | None) -> None:
        super().__init__(CORPUS, ByteTokenizer())
        self._left = pieces

    def piece(self, start: int, count: int) -> np.ndarray:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return super().piece(start, count)


def run(folder: Path, *, steps: int = STEPS, parallel: str | None = None,
        pieces: int | None = None, recipe: TrainRecipe = SMALL_STEPS,
        config: ModelConfig = CONFIG, **options: Any) -> TrainResult:
    """A short quiet run on one thread; a process that reads ``pieces`` pieces gets a signal."""
    recompute = options.pop("checkpoint_activations", False)
    return train(config, Interrupted(pieces), run_dir=folder, steps=steps, recipe=recipe, threads=1,
                 quiet=True, execution=Execution(parallel, recompute), **options)


def refused(call: Callable[[], object]) -> str:
    """What an error said, on every process alike."""
    try:
        call()
        said = "nothing was refused"
    except ValueError as error:
        said = f"{type(error).__name__}: {error}"
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, said)
    (only,) = set(found)
    return str(only)


def stopped(folder: Path, **options: Any) -> list[int | None]:
    """Interrupt the last process alone; the step at which each stopped."""
    last = dist.get_rank() == dist.get_world_size() - 1
    share = CARRIED.batch // dist.get_world_size()
    result = run(folder, pieces=STOPPED_AT * share if last else None, recipe=CARRIED, **options)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (result.step, result.stop_signal, result.interrupted))
    return found


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for parallel in ("ddp", "fsdp"):
        run(folder / parallel, parallel=parallel)
        run(folder / f"{parallel} parts", parallel=parallel, recipe=IN_PARTS,
            checkpoint_activations=True)
        whole = run(folder / f"{parallel} carried", parallel=parallel, recipe=CARRIED)
        found[f"{parallel} bpb"] = whole.heldout_bpb
        again = folder / f"{parallel} resumed"
        found[f"{parallel} stopped"] = stopped(again, parallel=parallel)
        run(again, parallel=parallel, recipe=CARRIED, resume=True)
        found[f"{parallel} files"] = sorted(path.name for path in again.iterdir())
        # Left as it is, for one process to go on; and what one process left.
        stopped(folder / f"{parallel} to one", parallel=parallel)
        run(folder / f"one to {parallel}", parallel=parallel, recipe=CARRIED, resume=True)
        run(folder / f"seed to {parallel}", parallel=parallel, resume=True)
    found["refused"] = refusals(folder)
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


def refusals(folder: Path) -> dict[str, str]:
    """What is refused, by every process in the same words."""
    uneven = TrainRecipe(batch=3, window=40)
    deep = TrainRecipe(batch=4, window=40, accumulate=4)
    reversible = ModelConfig(d=16, layers=2, dff=24, residual="reversible")
    with RunFolder(folder / "locked").locked() if dist.get_rank() == 0 else nullcontext():
        locked = refused(lambda: run(folder / "locked", parallel="ddp"))
    return {
        "batch": refused(lambda: run(folder / "no", recipe=uneven)),
        "accumulate": refused(lambda: run(folder / "no", recipe=deep)),
        "layout": refused(lambda: run(folder / "no", parallel="tp")),
        "reversible": refused(lambda: run(folder / "no", parallel="fsdp", config=reversible)),
        "finished": refused(lambda: run(folder / "ddp")),
        "locked": locked,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined(lambda local_rank: torch.device("cpu")):
        main(Path(sys.argv[1]))
