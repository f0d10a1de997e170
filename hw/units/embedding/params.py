"""Geometry and formats of the embedding table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.parts.bits import signed_bits
from sterna.hw.parts.sequence import Interleaved
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["EmbeddingParams"]


@dataclass(frozen=True, slots=True)
class EmbeddingParams(Interleaved):
    """Geometry and formats of an embedding.

    Parameters
    ----------
    profile
        Formats; ``profile.x`` is that of the vectors.
    rows
        Channels given per word.
    vocab, channels
        Shape of the table.
    element_bits
        Signed bits of an element of the table as stored.
    sequences
        Interleaved sequences, 1 or 2.
    stalls
        Whether words may have to wait to be taken.

    Raises
    ------
    ValueError
        If a number is out of its range.

    >>> from sterna.model.profile import C12
    >>> params = EmbeddingParams(C12, 8, vocab=256, channels=130, element_bits=8)
    >>> params.words, params.depth, params.word_bits, params.request_spacing
    (17, 4352, 64, 20)
    """

    profile: NumericProfile
    rows: int
    vocab: int
    channels: int
    element_bits: int
    sequences: int = 1
    stalls: bool = True

    def __post_init__(self) -> None:
        check_whole("rows", self.rows, 1, 4096)
        check_whole("vocab", self.vocab, 1, 1 << 20)
        check_whole("channels", self.channels, 1, 1 << 20)
        check_whole("element_bits", self.element_bits, 1, self.profile.x.bits)
        check_whole("sequences", self.sequences, 1, 2)

    @property
    def token_bits(self) -> int:
        """Bits of a token."""
        return max((self.vocab - 1).bit_length(), 1)

    def for_table(self, table: Sequence[Sequence[int]] | np.ndarray) -> EmbeddingParams:
        """Return the same with no more bits an element than a table needs.

        Raises
        ------
        ValueError
            If the table has another shape, or an element leaves ``profile.x``.
        """
        widest = replace(self, element_bits=self.profile.x.bits)
        return replace(self, element_bits=signed_bits(widest.checked_table(table)))

    def checked_table(self, table: Sequence[Sequence[int]] | np.ndarray) -> np.ndarray:
        """Return a table as int64 ``[vocab, channels]``.

        Raises
        ------
        ValueError
            If it has another shape, or an element has more bits than ``element_bits``.
        """
        values = np.asarray(table)
        if (values.shape != (self.vocab, self.channels)
                or not np.issubdtype(values.dtype, np.integer)):
            raise ValueError(
                f"the embedding must be integers of shape {(self.vocab, self.channels)}, "
                f"got {values.dtype} of shape {values.shape}")
        top = 1 << (self.element_bits - 1)
        if values.min() < -top or values.max() >= top:
            raise ValueError(
                f"embedding values of {self.element_bits} bits must be from {-top} to {top - 1}, "
                f"got {values.min()} to {values.max()}")
        return values.astype(np.int64)

    @property
    def words(self) -> int:
        """Words of a vector; the last is filled up with zeros."""
        return -(-self.channels // self.rows)

    @property
    def depth(self) -> int:
        """Words of the memory: a memory without an address is no valid Verilog."""
        return max(self.vocab * self.words, 2)

    @property
    def word_bits(self) -> int:
        """Bits of a word of the memory."""
        return self.rows * self.element_bits

    @property
    def part_bits(self) -> int:
        """Bits of a word that lie in a memory of their own.

        As many as a block of 2^14 bits has at this depth, so that no multiplexer stands
        between the blocks and their output registers.
        """
        return min(max((1 << 14) >> (self.depth - 1).bit_length(), 1), self.word_bits)

    @property
    def parts(self) -> int:
        """Memories side by side."""
        return -(-self.word_bits // self.part_bits)

    @property
    def latency(self) -> int:
        """Cycles from a request taken to its first word: address, memory, output register."""
        return 3

    @property
    def request_spacing(self) -> int:
        """Cycles from one request taken to the next, if it waits and no word has to."""
        return self.latency + self.words

    @property
    def request_layout(self) -> StructLayout:
        """Payload of ``requests``."""
        return StructLayout({"token": unsigned(self.token_bits)} | self.sequence_field)

    @property
    def word_layout(self) -> StructLayout:
        """Payload of ``words``."""
        fields: dict[str, Shape | ArrayLayout | int] = {
            "x": ArrayLayout(signed(self.profile.x.bits), self.rows), "last": 1}
        return StructLayout(fields | self.sequence_field)
