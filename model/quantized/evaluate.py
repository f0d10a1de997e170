"""Held-out bits per byte of a quantised model, computed with the integer reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.records import (
    Add,
    Multiply,
    Narrow,
    Project,
    Scale,
    Sigmoid,
)
from sterna.model.quantized.taps import Tap, ignore
from sterna.model.tokenizer import contiguous_sequences
from sterna.model.tokens.tokenizer import BYTES, Tokenizer, as_tokens, spelled_bytes

__all__ = ["Evaluation", "Steps", "evaluate", "evaluate_steps", "surprisal_bits"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of :func:`evaluate`: bits per byte, and the number of predicted tokens.

    ``saturated`` counts, by name, the values of the integer reference at an end of their format;
    names without any are left out.
    """

    bits_per_byte: float
    predictions: int
    saturated: Mapping[str, int] = field(default_factory=dict)


class Steps(Protocol):
    """Anything that advances a batch by a token: ``IntegerModel``, an ONNX session."""

    def start(self, batch: int) -> np.ndarray:
        """The initial state."""

    def step(self, tokens: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits ``[batch, vocab]`` and the next state, for tokens ``[batch]``."""


def evaluate(
    model: QuantizedModel, text: str | bytes | np.ndarray, *, sequences: int = 16,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Measure how well a quantised model predicts a text.

    The text is cut into ``sequences`` contiguous parts that run in parallel; each carries its
    state from its first token to its last. Every token but the first of each part is predicted
    once, and the first, too, if the tokenizer has tokens before a text; the figure is the bits of
    all of them, divided by the bytes that they spell.

    Parameters
    ----------
    model
        The quantised model.
    text
        Text, UTF-8 bytes, or tokens ``[tokens]``. For a model without a tokenizer the figure is
        bits per token.
    sequences
        Parts that run in parallel; fewer are used if the text is short.
    progress
        Called as ``progress(steps_done, steps)`` from time to time.

    Raises
    ------
    ValueError
        If the text has fewer than two tokens, or a character that the tokenizer lacks.
    """
    model.entry.check_text()
    steps = _Counting(model)
    found = evaluate_steps(
        steps, text, frac=model.logit.frac, sequences=sequences, progress=progress,
        tokenizer=model.tokenizer)
    return replace(found, saturated={
        name: count for name, count in steps.saturated.items() if count})


class _Counting(IntegerModel):
    """The integer reference, counting the values at an end of their format, except those that only
    index the sigmoid, which is saturated there, too."""

    def __init__(self, model: QuantizedModel) -> None:
        super().__init__(model)
        read = {name for each in model.records if not isinstance(each, Sigmoid)
                for name in each.reads}
        looked_up = {each.x for each in model.records if isinstance(each, Sigmoid)} - read
        self._ends = {
            each.result: (each.output.min, each.output.max) for each in model.records
            if isinstance(each, Narrow | Scale | Project | Multiply | Add)
            and getattr(each, "saturates", True) and each.result not in looked_up}
        self.saturated = dict.fromkeys(self._ends, 0)

    def step(
        self, tokens: np.ndarray, state: np.ndarray, tap: Tap = ignore,
    ) -> tuple[np.ndarray, np.ndarray]:
        def count(name: str, value: np.ndarray) -> None:
            if name in self._ends:
                low, high = self._ends[name]
                self.saturated[name] += int(np.count_nonzero((value == low) | (value == high)))
            tap(name, value)
        return super().step(tokens, state, count)


def evaluate_steps(
    model: Steps, text: str | bytes | np.ndarray, *, frac: int, sequences: int = 16,
    progress: Callable[[int, int], None] = lambda done, total: None,
    tokenizer: Tokenizer = BYTES,
) -> Evaluation:
    """As :func:`evaluate`, for any :class:`Steps`; its logits have ``frac`` fraction bits."""
    tokens = as_tokens(text, tokenizer)
    if tokens.size < 2:
        raise ValueError(
            f"a text to evaluate must have at least 2 tokens, got {tokens.size}")
    parts = contiguous_sequences(tokens, max(1, min(sequences, tokens.size // 2)))
    state = model.start(parts.shape[0])
    begin = np.tile(np.array(tokenizer.begin, dtype=np.int64), (parts.shape[0], 1))
    for token in begin.T[:-1]:
        _, state = model.step(token, state)
    parts = np.concatenate([begin[:, -1:], parts], axis=1)
    steps = parts.shape[1] - 1
    bits = 0.0
    for t in range(steps):
        logits, state = model.step(parts[:, t], state)
        bits += float(surprisal_bits(logits, parts[:, t + 1], frac).sum())
        if t % 64 == 63 or t + 1 == steps:
            progress(t + 1, steps)
    return Evaluation(
        bits / spelled_bytes(tokenizer, parts[:, 1:]), parts.shape[0] * steps)


def surprisal_bits(logits: np.ndarray, targets: np.ndarray, frac: int) -> np.ndarray:
    """``-log2 softmax(logits / 2**frac)[target]`` for logits ``[batch, vocab]``."""
    real = np.asarray(logits, dtype=np.float64) * (2.0 ** -frac)
    top = real.max(axis=-1, keepdims=True)
    log_total = np.log(np.exp(real - top).sum(axis=-1)) + top[:, 0]
    chosen = np.take_along_axis(real, np.asarray(targets)[:, None], axis=-1)[:, 0]
    return np.asarray((log_total - chosen) / np.log(2.0))
