"""What a run leaves beside its checkpoint: figures, shares of codes, samples of text."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch

from sterna.model.files import write_atomically
from sterna.model.training.report.code_watch import CodeWatch, overall
from sterna.model.training.report.codes import CodesWriter
from sterna.model.training.report.metrics import MetricsWriter
from sterna.model.training.report.samples import SampleWriter
from sterna.model.training.report.tensorboard import TensorBoardWriter
from sterna.model.training.run_folder import RunFolder
from sterna.model.training.state import RunSettings, TrainState

__all__ = ["Record", "Recorded", "describe_run", "open_record"]

_STEPS_PER_ROW, _STEPS_PER_CODES = 10, 100


@dataclass(frozen=True, slots=True)
class Recorded:
    """What of a run is recorded beyond ``metrics.csv`` and ``codes.csv``.

    ``sample_every`` is the number of steps between two samples of text, None for none;
    ``tensorboard`` says whether figures are also written for TensorBoard, and ``command`` is the
    command line that started the run, for its report.
    """

    sample_every: int | None = None
    tensorboard: bool = False
    command: tuple[str, ...] = ()


class Record:
    """Watches the steps of a run; made by :func:`open_record`.

    Parameters
    ----------
    state
        The run.
    figures
        Every row of figures goes to all of these.
    codes
        Gets the shares of codes by projection.
    samples, sample_every
        Gets a text every so many steps.
    """

    def __init__(
        self, state: TrainState, figures: Sequence[MetricsWriter | TensorBoardWriter],
        codes: CodesWriter, *, samples: SampleWriter | None = None, sample_every: int = 1,
    ) -> None:
        self._state, self._figures, self._codes = state, figures, codes
        if samples is not None and state.processes.size > 1:
            raise ValueError(f"sample_every is for one process, got {state.processes.size}")
        self._samples, self._every = samples, sample_every
        self._watch = CodeWatch(state.model)
        self._watched = False

    def before_step(self) -> None:
        """Look at the codes, if they are looked at after the step."""
        self._watched = (self._state.step + 1) % _STEPS_PER_ROW == 0
        if self._watched:
            self._watch.begin()

    def after_step(self, heldout_bpb: float | None) -> None:
        """Write what is due; the held-out figure is given if it was measured now."""
        state = self._state
        counts = self._watch.end() if self._watched else {}
        if heldout_bpb is not None or self._watched:
            shares = overall(counts)
            for each in self._figures:
                each.add({
                    "step": state.step, "seconds": state.seconds, "tokens": state.tokens,
                    "train_bpb": state.train_bpb, "heldout_bpb": heldout_bpb, "lr": state.lr,
                    "flips": None if shares is None else shares.flips,
                    "zeros": None if shares is None else shares.zeros})
        if counts and state.step % _STEPS_PER_CODES == 0:
            self._codes.add(state.step, {name: each.shares for name, each in counts.items()})
        if self._samples is not None and state.step % self._every == 0:
            with state.averaged():
                self._samples.add(state.step, state.model, state.settings.text.tokenizer)


@contextmanager
def open_record(state: TrainState, folder: RunFolder, what: Recorded) -> Iterator[Record]:
    """Open the files of a run's record; rows after the step of ``state`` are left out of them.

    Raises
    ------
    ValueError
        If a file of a resumed run cannot be read, or the package for TensorBoard is missing.
    OSError
        If a file cannot be written.
    """
    with ExitStack() as stack:
        at = state.step
        figures: list[MetricsWriter | TensorBoardWriter] = [
            stack.enter_context(closing(MetricsWriter(folder.metrics, at)))]
        if what.tensorboard:
            figures.append(stack.enter_context(
                closing(TensorBoardWriter(folder.tensorboard, at))))
        codes = stack.enter_context(closing(CodesWriter(folder.codes, at)))
        samples = None if what.sample_every is None else stack.enter_context(
            closing(SampleWriter(folder.samples, at)))
        if samples is None and not at:
            folder.samples.unlink(missing_ok=True)      # those of a run that is replaced
        write_atomically(folder.description, json.dumps(
            describe_run(state.settings, what.command), indent=2) + "\n")
        yield Record(state, figures, codes, samples=samples, sample_every=what.sample_every or 1)


def describe_run(settings: RunSettings, command: Sequence[str]) -> dict[str, Any]:
    """What a run is and what computes it, as ``run.json`` holds it."""
    return {
        "command": list(command), "config": settings.config.to_json(),
        "recipe": asdict(settings.recipe), "profile": settings.profile.name,
        "seed": settings.seed, "text": settings.text.name,
        "tokenizer": settings.text.tokenizer.kind,
        "versions": {
            "sterna": version("sterna"), "torch": str(torch.__version__),
            "python": platform.python_version()},
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(),
                    "system": platform.system()},
    }
