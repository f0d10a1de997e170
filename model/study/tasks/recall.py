"""Remembering pairs: what bits per byte of a small model do not show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.checks import check_whole
from sterna.model.stack.language_model import LanguageModel
from sterna.model.study.tasks.row import Row
from sterna.model.study.tasks.task import Task

__all__ = ["RecallTask"]

_IGNORED = -100
_HELDOUT = 1 << 20
"""Steps count from 0, so the held-out sequences are those of no step."""


@dataclass(frozen=True, slots=True)
class RecallTask(Task):
    """Multi-query associative recall (MQAR of Zoology, arXiv 2312.04927).

    A sequence is ``pairs`` of a key and a value, and then keys, each one of those before: the
    model is to answer with the value that stood after it. Keys are the first half of the
    vocabulary, values the second; both are drawn without repetition, queries with. (In the paper
    each key is asked for once, at a distance by a power law.) Every step has fresh sequences; to
    learn from they have all, a half or a quarter of the pairs, as there.

    Parameters
    ----------
    d, layers, batch, tokens, seconds
        As for every task.
    pairs, queries, vocab
        Of a sequence.
    judged
        Number of held-out sequences.
    """

    name: ClassVar[str] = "recall"
    figure: ClassVar[str] = "accuracy"
    more_is_better: ClassVar[bool] = True
    causal: ClassVar[bool] = True
    rates: ClassVar[dict[str, float]] = {"ternary": 5e-3, "float": 3e-3}

    d: int = 64
    layers: int = 4
    batch: int = 32
    tokens: int = 512 * 1024
    seconds: float = 20.0
    pairs: int = 8
    queries: int = 8
    vocab: int = 32
    judged: int = 256

    def __post_init__(self) -> None:
        check_whole("pairs", self.pairs, 1, self.vocab // 2)

    @property
    def length(self) -> int:
        """Pairs, then queries."""
        return 2 * self.pairs + self.queries

    def model(self, row: Row, seed: int) -> LanguageModel:
        """A language model of keys and values."""
        return self.language_model(row, self.vocab, seed)

    def sample(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Keys and values ``[time, batch]``, and the answers where there is a query."""
        pairs = max(1, self.pairs >> int(np.random.default_rng([step, seed]).integers(3)))
        return self._sequences(self.batch, pairs, [seed, step])

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of the answers."""
        return F.cross_entropy(
            _logits(model, inputs).flatten(0, 1), targets.flatten(), ignore_index=_IGNORED)

    def measure(self, model: nn.Module, seed: int) -> dict[str, float]:
        """The share of right answers."""
        inputs, targets = self._sequences(self.judged, self.pairs, [_HELDOUT])
        asked = targets != _IGNORED
        return {"accuracy": float((_logits(model, inputs).argmax(-1) == targets)[asked]
                                  .double().mean())}

    def facts(self) -> dict[str, float]:
        """``chance``: of one of the values that stand in the sequence."""
        return {"chance": 1 / self.pairs}

    def _sequences(self, count: int, pairs: int, seed: list[int]) -> tuple[Tensor, Tensor]:
        generator = np.random.default_rng(seed)
        half, queries = self.vocab // 2, self.length - 2 * pairs
        every = np.tile(np.arange(half), (count, 1))
        keys = generator.permuted(every, axis=1)[:, :pairs]
        values = half + generator.permuted(every, axis=1)[:, :pairs]
        asked = generator.integers(0, pairs, (count, queries))
        given = np.stack([keys, values], axis=2).reshape(count, 2 * pairs)
        inputs = np.concatenate([given, np.take_along_axis(keys, asked, 1)], axis=1)
        targets = np.concatenate(
            [np.full_like(given, _IGNORED), np.take_along_axis(values, asked, 1)], axis=1)
        return torch.from_numpy(inputs.T.copy()), torch.from_numpy(targets.T.copy())


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    assert isinstance(model, LanguageModel)
    return model.forward_time_major(inputs, model.initial_state(inputs.shape[1]))[0]
