"""Widths and cycle counts of a table of quotients."""

from __future__ import annotations

from dataclasses import dataclass

from sterna.hw.parts.reciprocal_words import ReciprocalWords, reciprocal_words, segment
from sterna.model.checks import check_whole

__all__ = ["SMALL_DIVISORS", "ReciprocalTableParams"]

_SHARED_BITS = 13
"""Divisors of up to so many bits share a memory of corrections; an octave above has its own."""

SMALL_DIVISORS = 64
"""Below it a quotient may be logic, where else a memory would have to be twice as large."""


@dataclass(frozen=True, slots=True)
class ReciprocalTableParams:
    """Widths and cycle counts of a table of quotients.

    Parameters
    ----------
    frac_bits
        Bits by which ``head`` is shifted left before it is divided.
    max_divisor
        Largest divisor that comes; not above the dividend.
    head
        The constant.

    Raises
    ------
    ValueError
        If a number is out of its range.

    >>> params = ReciprocalTableParams(frac_bits=24, max_divisor=39818)
    >>> params.latency, params.quotient_bits, params.depth, params.word_bits
    (6, 31, 2104, 36)
    """

    frac_bits: int
    max_divisor: int
    head: int = 127

    def __post_init__(self) -> None:
        check_whole("frac_bits", self.frac_bits, 1, 32)
        check_whole("head", self.head, 1, 1023)
        # A quotient of 0 would need a base below 0.
        check_whole("max_divisor", self.max_divisor, 1,
                    min((1 << 18) - 1, self.head << self.frac_bits))

    @property
    def latency(self) -> int:
        """Cycles from ``start`` to ``done``.

        Address, memory, its register, the parts of the line, two sums of them, one sum.
        """
        return 6

    @property
    def divisor_bits(self) -> int:
        """Unsigned bits of a divisor."""
        return self.max_divisor.bit_length()

    @property
    def quotient_bits(self) -> int:
        """Unsigned bits of the largest quotient, that of 1."""
        return (self.head << self.frac_bits).bit_length()

    @property
    def index_bits(self) -> int:
        """An octave of divisors has ``2^index_bits`` segments, or each divisor is one."""
        return -(-self.frac_bits // 3)

    @property
    def octaves(self) -> range:
        """Bits of the divisors that share a segment with others."""
        return range(self.index_bits + 2, self.divisor_bits + 1)

    @property
    def words(self) -> ReciprocalWords:
        """Contents of the tables."""
        return reciprocal_words(self.head << self.frac_bits, self.max_divisor, self.index_bits)

    @property
    def depth(self) -> int:
        """Segments."""
        return segment(self.max_divisor, self.index_bits) + 1

    @property
    def wraps(self) -> bool:
        """Whether a few segments at the end, beyond a power of two, are stored in place of
        the first, which are logic."""
        beyond = self.depth - (1 << (self.depth.bit_length() - 1))
        return 0 < beyond <= SMALL_DIVISORS <= self._direct

    @property
    def base_bits(self) -> int:
        """Unsigned bits of the base of a segment of several divisors."""
        return max(base.bit_length() for base in (0, *self.words.bases[self._direct:]))

    @property
    def drop_bits(self) -> int:
        """Unsigned bits of the drop of a segment."""
        return max(drop.bit_length() for drop in self.words.drops)

    @property
    def word_bits(self) -> int:
        """Bits of a segment's word: the quotient itself, or base and drop."""
        return max(self.quotient_bits, self.base_bits + self.drop_bits)

    @property
    def correction_bits(self) -> int:
        """Unsigned bits of the largest correction."""
        return max((max(octave).bit_length() for octave in self.words.corrections.values()),
                   default=0)

    @property
    def segment_words(self) -> list[int]:
        """Word of every segment in the order of their addresses, the base in its low bits."""
        words = [base | drop << self.base_bits for base, drop in
                 zip(self.words.bases, self.words.drops, strict=True)]
        if self.wraps:
            power = 1 << (len(words).bit_length() - 1)
            words = words[power:] + words[len(words) - power:power]
        return words

    @property
    def small_words(self) -> list[int]:
        """Quotients of small divisors that have no place among the segments."""
        return list(self.words.bases[:SMALL_DIVISORS]) if self.wraps else []

    @property
    def correction_banks(self) -> dict[int, list[int]]:
        """Corrections by the bits of their largest divisor, one bank for all small ones.

        An address of that bank is a divisor; above, the top bit of the divisor is dropped.
        """
        banks: dict[int, list[int]] = {}
        for bits in self.octaves:
            bank = banks.setdefault(self.bank(bits), [])
            if self.bank(bits) == _SHARED_BITS:
                bank += [0] * ((1 << (bits - 1)) - len(bank))
            bank += self.words.corrections[bits]
        return {bits: bank for bits, bank in banks.items() if any(bank)}

    def bank(self, divisor_bits: int) -> int:
        """Key of the bank of corrections for divisors of so many bits."""
        return max(divisor_bits, _SHARED_BITS)

    def correction_address_bits(self, bank: int) -> int:
        """Low bits of a divisor that are its address in a bank."""
        return bank if bank == _SHARED_BITS else bank - 1

    @property
    def memory_bits(self) -> int:
        """Bits of all the tables."""
        return (max(len(self.segment_words), 2) * self.word_bits
                + len(self.small_words) * self.quotient_bits
                + sum(max(len(bank), 2) * max(bank).bit_length()
                      for bank in self.correction_banks.values()))

    @property
    def _direct(self) -> int:
        """Segments of one divisor."""
        return 2 << self.index_bits
