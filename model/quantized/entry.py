"""The input of a model at every step: a token, or a frame of a sensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sterna.model.quantized.records import Embedding, Input, Record

__all__ = ["FRAMES", "Entry", "frame_integers"]

FRAMES = "frames"
"""The value that the :class:`Input` of a model reads."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The whole numbers that a model takes at every step, and the name of its outputs.

    >>> Entry("tokens", "logits", (), 0, 255).array([[1, 2]], ["batch", "length"])
    array([[1, 2]])
    """

    name: str  #: ``tokens``, or ``frames``
    result: str  #: ``logits``, or ``results``
    shape: tuple[int, ...]  #: of one step: none, or ``(channels,)``
    low: int
    high: int

    @classmethod
    def of(cls, records: Sequence[Record]) -> Entry:
        """The entry of a model's records. ValueError if they do not begin with an embedding or
        input, or contain another one later."""
        for each in records[1:]:
            if isinstance(each, Embedding | Input):
                raise ValueError(
                    f"the record {each.name} is an {type(each).__name__.lower()}, with which only "
                    f"a list of records begins")
        match records[0]:
            case Embedding(vocab=vocab):
                return cls("tokens", "logits", (), 0, vocab - 1)
            case Input(x=x, channels=channels, bits=bits) if x == FRAMES:
                limit = 1 << (bits - 1)
                return cls(FRAMES, "results", (channels,), -limit, limit - 1)
        raise ValueError(
            f"the first record must be an embedding, or an input that reads {FRAMES}")

    def __str__(self) -> str:
        return f"frames of {self.shape[0]} channels" if self.shape else f"{self.high + 1} tokens"

    def check_text(self) -> None:
        """Raise ValueError for frames: a network has no text."""
        if self.shape:
            raise ValueError(
                f"a network over {self}, not a language model: sterna run gives its results")

    @property
    def reach(self) -> dict[str, int]:
        """The largest magnitude of the value that no record gives, by name."""
        return {self.name: -self.low} if self.shape else {}

    def array(self, values: object, axes: Sequence[str]) -> np.ndarray:
        """Values as int64 with these axes before those of a step, from an array or nested lists.

        Raises ValueError if they have other axes, are empty, not whole numbers, or out of range.
        """
        channels = ["channels"] if self.shape else []
        wanted = f"whole numbers [{', '.join([*axes, *channels])}], at least one of them"
        try:
            array = np.asarray(values)
        except ValueError as error:     # NumPy rejects rows of different lengths
            raise ValueError(
                f"{self.name} must be {wanted}, got rows of different lengths") from error
        shape = array.shape[len(axes):]
        if (array.ndim < len(axes) or shape != self.shape or array.size == 0
                or array.dtype.kind not in "iu"):
            of = f" with {self.shape[0]} channels" if self.shape else ""
            raise ValueError(
                f"{self.name} must be {wanted}{of}, got {array.dtype} {list(array.shape)}")
        foreign = array[(array < self.low) | (array > self.high)]
        if foreign.size:
            raise ValueError(
                f"{self.name} must be from {self.low} to {self.high}, got {foreign[0]}")
        return array.astype(np.int64, copy=False)


def frame_integers(frames: Any, frac: np.ndarray, bits: int) -> tuple[np.ndarray, int]:
    """Real frames ``[..., channels]`` as integers of ``bits`` signed bits with ``frac [channels]``
    fraction bits, int64, rounded half up and clipped; and the number of clipped values.

    Raises ValueError if a frame has the wrong length or a number is not finite.
    """
    values = np.asarray(frames, dtype=np.float64)
    if values.shape[-1:] != frac.shape:
        raise ValueError(f"frames must be [..., {len(frac)}], got {list(values.shape)}")
    if not np.isfinite(values).all():
        raise ValueError("frames must be finite numbers")
    limit = 1 << (bits - 1)
    scaled = np.floor(np.ldexp(values, frac) + 0.5)
    found = np.clip(scaled, -limit, limit - 1)
    return found.astype(np.int64), int((found != scaled).sum())
