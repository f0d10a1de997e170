"""What the tests of training share: a text, a small model, short runs of it, and what they tell."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sterna.model.config import ModelConfig
from sterna.model.corpus import Corpus
from sterna.model.tokens.text import TokenText
from sterna.model.torch.training.progress import TrainProgress, TrainReporter
from sterna.model.torch.training.recipe import Execution, TrainRecipe
from sterna.model.torch.training.train import TrainResult, train

__all__ = ["CONFIG", "CORPUS", "FILES", "ONE_THREAD", "RECIPE", "SENTENCES", "Recorder",
           "assert_same_weights", "contents", "run"]

ONE_THREAD = Execution(threads=1)
CONFIG = ModelConfig(d=16, layers=2, dff=24)
RECIPE = TrainRecipe(batch=4, window=40, warmup_steps=5, float_start=0.0)
SENTENCES = "".join(f"The swallow number {i} flies {i * i} miles to the south. "
                    for i in range(400)).encode()
CORPUS = Corpus("swallows", SENTENCES[:-2000], SENTENCES[-2000:])
FILES = ["checkpoint.pt", "codes.csv", "loss.png", "metrics.csv", "run.json"]
"""What a run leaves."""


def run(folder: Path, steps: int | None = 2, *, config: ModelConfig = CONFIG,
        corpus: Corpus | TokenText = CORPUS, recipe: TrainRecipe = RECIPE, quiet: bool = True,
        execution: Execution = ONE_THREAD, **options: Any) -> TrainResult:
    """A short quiet run on one thread."""
    return train(config, corpus, run_dir=folder, steps=steps, recipe=recipe, quiet=quiet,
                 execution=execution, **options)


def assert_same_weights(first: torch.nn.Module | dict[str, Tensor],
                        second: torch.nn.Module | dict[str, Tensor]) -> None:
    """Every weight of two models, or of two state dictionaries, is the same."""
    ours, theirs = (each.state_dict() if isinstance(each, torch.nn.Module) else each
                    for each in (first, second))
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class Recorder(TrainReporter):
    """Keeps what a run reports, and sends ``signals`` to this process after a step."""

    def __init__(self, stop_at: int = 0, *signals: int) -> None:
        self.stop_at, self.signals = stop_at, signals or (signal.SIGINT,)
        self.updates: list[TrainProgress] = []
        self.measures: list[tuple[int, int]] = []
        self.messages: list[str] = []
        self.closed = 0

    def update(self, progress: TrainProgress) -> None:
        self.updates.append(progress)
        for number in self.signals if progress.step == self.stop_at else ():
            signal.raise_signal(number)

    def measured(self, done: int, total: int) -> None:
        self.measures.append((done, total))

    def message(self, text: str) -> None:
        self.messages.append(text)

    def close(self) -> None:
        self.closed += 1
