"""Geometry of the requantiser behind an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from amaranth.hdl import signed, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.layers.engine_params import EngineParams
from sterna.hw.parts.requantize import RequantizeParams
from sterna.model.profile import FixedPoint
from sterna.model.quantized import Projection

__all__ = ["PostParams", "Slot", "bias_words", "interleaved"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the matrices whose groups of rows take turns, and what becomes of its sums.

    Parameters
    ----------
    k, shift
        Mantissa of the scale, and right shift.
    output
        Format of the results.
    """

    k: int
    shift: int
    output: FixedPoint


@dataclass(frozen=True, slots=True)
class PostParams:
    """Geometry of a :class:`~sterna.hw.layers.post.Post`.

    Parameters
    ----------
    engine
        The engine whose sums it takes.
    slots
        For each matrix of the engine its slots: their groups of rows take turns.
    scale_bits
        Unsigned bits of a scale.
    biased
        Whether any bias is not zero.
    """

    engine: EngineParams
    slots: tuple[tuple[Slot, ...], ...]
    scale_bits: int
    biased: bool

    @property
    def most_slots(self) -> int:
        """Slots of the matrix that has the most."""
        return max(map(len, self.slots))

    @property
    def requantize(self) -> RequantizeParams:
        """Widths of the requantiser."""
        every = [slot for slots in self.slots for slot in slots]
        widest, *narrower = sorted({slot.output.bits for slot in every}, reverse=True)
        return RequantizeParams(
            self.engine.mac.sum_bits, self.scale_bits, widest + 1, widest,
            tuple(sorted({slot.shift for slot in every})), self.engine.mac.rows,
            tuple(narrower), self.tag_layout.size)

    @property
    def bias_layout(self) -> ArrayLayout:
        """A word of the memory of the biases: those of a group."""
        return ArrayLayout(signed(self.requantize.bias_bits), self.requantize.lanes)

    @property
    def tag_layout(self) -> StructLayout:
        """What travels with a group: whether it is the last of its matrix; if there are several,
        its slot, and its matrix."""
        slot = {"slot": unsigned((self.most_slots - 1).bit_length())}
        return StructLayout({
            **(slot if self.most_slots > 1 else {}), "last": 1, **self.engine.matrix_field})

    def first_group(self, matrix: int) -> int:
        """Where the biases of a matrix begin in their memory."""
        return sum(self.engine.groups(index) for index in range(matrix))

    @property
    def groups(self) -> int:
        """Groups of all matrices: words of the memory of the biases."""
        return self.first_group(len(self.slots))


def interleaved(parts: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Arrays of one shape whose groups of ``rows`` rows take turns, each filled up with zeros.

    >>> interleaved([np.array([1, 2, 3]), np.array([7, 8, 9])], 2).tolist()
    [1, 2, 7, 8, 3, 0, 9, 0]
    """
    groups = -(-len(parts[0]) // rows)
    padded = np.zeros((len(parts), groups * rows, *parts[0].shape[1:]), dtype=np.int64)
    padded[:, :len(parts[0])] = parts
    turns = padded.reshape(len(parts), groups, rows, *parts[0].shape[1:]).swapaxes(0, 1)
    return turns.reshape(-1, *parts[0].shape[1:])


def bias_words(projections: Sequence[Projection], rows: int) -> list[list[int]]:
    """Words of the memory of the biases of a matrix: ``rows`` integers for each group."""
    biases = interleaved([each.bias for each in projections], rows)
    words: list[list[int]] = biases.reshape(-1, rows).tolist()
    return words
