"""Predicting the bytes of a text."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.corpus import Corpus, builtin_corpus, corpus_from_file
from sterna.model.stack.evaluate import heldout_bpb
from sterna.model.stack.language_model import LanguageModel
from sterna.model.study.tasks.row import Row
from sterna.model.study.tasks.task import Task
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import ByteTokenizer
from sterna.model.training.recipe import TrainRecipe
from sterna.model.training.windows import WindowSampler

__all__ = ["TextTask"]


@dataclass(frozen=True, slots=True)
class TextTask(Task):
    """Bits per byte of held-out text, by a language model of bytes.

    Parameters
    ----------
    d, layers, batch, tokens, seconds
        As for every task.
    window
        Bytes of a sequence. Models are judged on windows of this length, and where the state
        is bounded also with the state carried through the text (``bpb_carried``).
    text
        File to learn from, its last tenth held out; None for the bundled corpus.
    """

    name: ClassVar[str] = "text"
    figure: ClassVar[str] = "bpb"
    more_is_better: ClassVar[bool] = False
    causal: ClassVar[bool] = True
    rates: ClassVar[dict[str, float]] = {"ternary": 1e-2, "float": 5e-3}

    d: int = 64
    layers: int = 4
    batch: int = 4
    tokens: int = 768 * 1024
    seconds: float = 20.0
    window: int = 256
    text: str | None = None

    @property
    def length(self) -> int:
        """The window."""
        return self.window

    def model(self, row: Row, seed: int) -> LanguageModel:
        """A language model of bytes."""
        return self.language_model(row, 256, seed)

    def sample(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Bytes ``[time, batch]``, and those that follow."""
        windows = torch.from_numpy(_sampler(self, seed).windows(step))
        return windows[:-1], windows[1:]

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of the next byte, every window from the initial state."""
        assert isinstance(model, LanguageModel)
        logits, _ = model.forward_time_major(inputs, model.initial_state(inputs.shape[1]))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def measure(self, model: nn.Module, seed: int) -> dict[str, float]:
        """Bits per held-out byte."""
        assert isinstance(model, LanguageModel)
        heldout = self.corpus().heldout
        figures = {"bpb": heldout_bpb(model, heldout, window=self.window)}
        if model.state_is_bounded:
            figures["bpb_carried"] = heldout_bpb(model, heldout)
        return figures

    def facts(self) -> dict[str, float]:
        """``unigram``: the entropy of the held-out bytes by themselves, which no model that
        ignores what came before can go below."""
        counts = np.bincount(np.frombuffer(self.corpus().heldout, dtype=np.uint8))
        shares = counts[counts > 0] / counts.sum()
        return {"unigram": float(-(shares * np.log2(shares)).sum())}

    def settings(self) -> dict[str, Any]:
        """With what the text is, not where."""
        corpus = self.corpus()
        return {**Task.settings(self), "text": corpus.name, "sha256": corpus.sha256}

    def corpus(self) -> Corpus:
        """The text, read once."""
        return _corpus(self.text)


@functools.cache
def _corpus(path: str | None) -> Corpus:
    return builtin_corpus() if path is None else corpus_from_file(path)


@functools.lru_cache(maxsize=1)
def _sampler(task: TextTask, seed: int) -> WindowSampler:
    recipe = TrainRecipe(batch=task.batch, window=task.window)
    return WindowSampler(MemoryText(task.corpus(), ByteTokenizer()), recipe, seed)
