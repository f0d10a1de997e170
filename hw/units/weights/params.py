"""Geometry of the weight memory."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import unsigned
from amaranth.lib.data import StructLayout

from sterna.model.checks import check_whole

__all__ = ["WeightRomParams"]


@dataclass(frozen=True, slots=True)
class WeightRomParams:
    """Geometry of a weight memory.

    Parameters
    ----------
    words
        Words that it holds.
    word_bits
        Bits of a word.

    Raises
    ------
    ValueError
        If a number is out of its range.

    >>> params = WeightRomParams(words=1000, word_bits=2048)
    >>> params.address_bits, params.count_bits, params.latency
    (10, 10, 2)
    """

    words: int
    word_bits: int

    def __post_init__(self) -> None:
        check_whole("words", self.words, 1, 1 << 28)
        check_whole("word_bits", self.word_bits, 1, 1 << 20)

    @property
    def depth(self) -> int:
        """Words of the memory: a memory without an address is no valid Verilog."""
        return max(self.words, 2)

    @property
    def address_bits(self) -> int:
        """Bits of the number of a word."""
        return (self.depth - 1).bit_length()

    @property
    def count_bits(self) -> int:
        """Bits of a number of words, 1 to all of them."""
        return self.words.bit_length()

    @property
    def latency(self) -> int:
        """Cycles from a request taken while idle to its first word: address, memory."""
        return 2

    @property
    def request_layout(self) -> StructLayout:
        """Payload of ``requests``."""
        return StructLayout({
            "first": unsigned(self.address_bits), "count": unsigned(self.count_bits)})
