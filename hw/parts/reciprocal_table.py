"""A constant divided by a number, from tables: exact, and fast at high clock rates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from typing import ClassVar

import numpy as np
from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import memory

from sterna.hw.parts.digit_serial import ConstantQuotient
from sterna.hw.parts.memory_attributes import BLOCK_ROM, LOGIC_ROM
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.checks import check_whole

__all__ = ["ReciprocalTable", "ReciprocalTableParams", "line"]

DIGITS = 3
"""Two-bit digits of a place in a segment; the corrections cover the lower bits."""


@dataclass(frozen=True, slots=True)
class ReciprocalWords:
    """``numerator // d`` as ``base - line(drop, place of d) + correction``, exactly."""

    # For each segment: the quotient a third of the way into it, and its drop from end to end. A
    # segment of one divisor has its quotient as base and no drop.
    bases: tuple[int, ...]
    drops: tuple[int, ...]
    # for each bit length of divisors with shared segments: the remaining error of each divisor,
    # from the smallest on; never negative
    corrections: dict[int, tuple[int, ...]]


def segment(divisor: int, index_bits: int) -> int:
    """Return the number of the segment of a divisor.

    An octave has ``2^index_bits`` segments, if it has that many divisors.
    """
    place_bits = max(divisor.bit_length() - 1 - index_bits, 0)
    return (place_bits << index_bits) + (divisor >> place_bits)


def line(drops: np.ndarray, places: np.ndarray, place_bits: int) -> np.ndarray:
    """Return the drop of the quotient at a place, relative to a third of the segment.

    The place is a number of ``DIGITS`` digits from 0 to 3. A digit d stands for d - 1 times the
    drop, which needs no multiplier: ``-drop`` is its complement (less by 1), and twice it a shift.
    So the zero is where all the digits are 1.
    """
    bits = 2 * DIGITS
    scaled = places << (bits - place_bits) if place_bits <= bits else places >> (place_bits - bits)
    total = np.zeros(np.broadcast_shapes(drops.shape, places.shape), dtype=np.int64)
    for digit in range(DIGITS):
        row = np.choose((scaled >> 2 * digit) & 3, [~drops, 0 * drops, drops, 2 * drops])
        total += row << 2 * digit
    return total >> bits


@cache
def reciprocal_words(numerator: int, max_divisor: int, index_bits: int) -> ReciprocalWords:
    """Compute the tables for divisors up to ``max_divisor``; 0 counts as 1."""
    direct = min(max_divisor + 1, 2 << index_bits)
    bases = [numerator // max(divisor, 1) for divisor in range(direct)]
    drops = [0] * direct
    corrections: dict[int, tuple[int, ...]] = {}
    for bits in range(index_bits + 2, max_divisor.bit_length() + 1):
        place_bits = bits - 1 - index_bits
        first, segments = 1 << (bits - 1), 1 << index_bits
        if bits == max_divisor.bit_length():
            segments = ((max_divisor - first) >> place_bits) + 1
        places = np.arange(1 << place_bits)
        divisors = first + (np.arange(segments)[:, None] << place_bits) + places
        quotients = numerator // divisors

        # Of the drops near that of the chord, take one with the smallest range of corrections.
        chord = (quotients[:, :1] - quotients[:, -1:]) * len(places) // (len(places) - 1)
        best = np.full((segments, 1), np.iinfo(np.int64).max)
        drop = chord
        for near in range(-6, 7):
            tried = np.maximum(chord + near, 0)
            left = quotients + line(tried, places, place_bits)
            spread = np.ptp(left, axis=1, keepdims=True)
            drop, best = np.where(spread < best, tried, drop), np.minimum(spread, best)
        left = quotients + line(drop, places, place_bits)
        base = left.min(axis=1, keepdims=True)
        bases += base[:, 0].tolist()
        drops += drop[:, 0].tolist()
        corrections[bits] = tuple((left - base).ravel()[:max_divisor + 1 - first].tolist())
    return ReciprocalWords(tuple(bases), tuple(drops), corrections)


_SHARED_BITS = 13
"""Divisors of up to so many bits share a memory of corrections; each octave above has its own."""

SMALL_DIVISORS = 64
"""Quotients of divisors below this may be logic, to avoid doubling the size of a memory."""


@dataclass(frozen=True, slots=True)
class ReciprocalTableParams:
    """Widths and cycle counts of a table of quotients.

    >>> params = ReciprocalTableParams(frac_bits=24, max_divisor=39818)
    >>> params.latency, params.quotient_bits, params.depth, params.word_bits
    (6, 31, 2104, 36)
    """

    frac_bits: int  # bits by which `head` is shifted left before it is divided
    max_divisor: int  # largest divisor allowed; not above the dividend
    head: int = 127  # the constant

    # Cycles from `start` to `done`: address, memory, its register, the terms of the line, two sums
    # of them, the final sum.
    latency: ClassVar[int] = 6

    def __post_init__(self) -> None:
        check_whole("frac_bits", self.frac_bits, 1, 32)
        check_whole("head", self.head, 1, 1023)
        # A quotient of 0 would need a base below 0.
        check_whole("max_divisor", self.max_divisor, 1,
                    min((1 << 18) - 1, self.head << self.frac_bits))

    @property
    def divisor_bits(self) -> int:
        return self.max_divisor.bit_length()

    @property
    def quotient_bits(self) -> int:
        """Unsigned bits of the largest quotient, that of 1."""
        return (self.head << self.frac_bits).bit_length()

    @property
    def index_bits(self) -> int:
        """An octave of divisors has ``2^index_bits`` segments, or one per divisor."""
        return -(-self.frac_bits // 3)

    @property
    def octaves(self) -> range:
        """Bit lengths of the divisors that share a segment with others."""
        return range(self.index_bits + 2, self.divisor_bits + 1)

    @property
    def words(self) -> ReciprocalWords:
        return reciprocal_words(self.head << self.frac_bits, self.max_divisor, self.index_bits)

    @property
    def depth(self) -> int:
        """Segments."""
        return segment(self.max_divisor, self.index_bits) + 1

    @property
    def wraps(self) -> bool:
        """Whether the few last segments, beyond a power of two, replace the first in memory, which
        become logic."""
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
    def segment_words(self) -> list[int]:
        """Word of every segment in the order of their addresses, the base in its low bits."""
        base_bits = self.base_bits      # once: it takes all segments
        words = [base | drop << base_bits for base, drop in
                 zip(self.words.bases, self.words.drops, strict=True)]
        if self.wraps:
            power = 1 << (len(words).bit_length() - 1)
            words = words[power:] + words[len(words) - power:power]
        return words

    @property
    def small_words(self) -> list[int]:
        """Quotients of small divisors not stored among the segments."""
        return list(self.words.bases[:SMALL_DIVISORS]) if self.wraps else []

    @property
    def correction_banks(self) -> dict[int, list[int]]:
        """Corrections by bits of their largest divisor, one bank for all small ones.

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

    @property
    def _direct(self) -> int:
        """Segments of one divisor."""
        return 2 << self.index_bits


class ReciprocalTable(ConstantQuotient):
    """``floor((head << frac_bits) / max(divisor, 1))``, exact for every divisor up to
    ``params.max_divisor``.

    ``start`` is accepted in any cycle; the quotient holds until the next one is done.

    Small divisors have their quotients in the table. Above, an octave is divided into segments:
    the table has a line for each, and another memory the error of the line for each divisor. Both
    are computed when the circuit is generated, so the result is exact by construction.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))
        flags = steps.flags(self.start, params.latency, "started")
        m.d.comb += self.done.eq(flags[-1])

        octave, address, place = self._segment(m)
        divisor = steps.register(self.divisor, "divisor_1")
        word = _read(m, steps, "segments", params.segment_words, params.word_bits,
                     steps.register(address, "address"), BLOCK_ROM)
        octave = steps.delay(octave, 3, "octave")
        place = steps.delay(place, 3, "place")
        correction = self._read_correction(m, steps, divisor, octave)

        # The upper bits of a quotient in the table share their place with the drop.
        base = Cat(word[:params.base_bits],
                   word[params.base_bits:params.quotient_bits]
                   & (~octave.any()).replicate(params.quotient_bits - params.base_bits))
        if params.wraps:
            small = _read(m, steps, "small", params.small_words, params.quotient_bits, divisor,
                          LOGIC_ROM)
            base = Mux(steps.delay(~divisor[SMALL_DIVISORS.bit_length() - 1:].any(), 2, "small"),
                       small, base)
        drop = word[params.base_bits:params.base_bits + params.drop_bits]
        base = steps.register(base, "base")
        rows = [steps.register(_row(drop, place[2 * digit:2 * digit + 2]), f"row{digit}")
                for digit in range(DIGITS)]
        # -(total >> 6) = (-(total >> 4) + 3) >> 2; two digits are added, the third subtracted.
        upper = (Cat(Const(3, 2), base) - rows[2])[:params.quotient_bits + 3].as_signed()
        upper = steps.register(upper, "upper")
        lower = steps.register(((rows[1] << 2) + rows[0])[4:].as_signed(), "lower")
        quotient = ((upper - lower) + Cat(Const(0, 2), correction))[2:]
        with m.If(flags[-2]):
            m.d.sync += self.quotient.eq(quotient[:params.quotient_bits])
        return m

    def _segment(self, m: Module) -> tuple[Signal, Value, Value]:
        """Return a flag for each octave, the segment's number, and the place in it: all digits are
        1 for a divisor with its quotient in the table.
        """
        params, divisor = self.params, self.divisor
        bits = 2 * DIGITS
        octaves = Signal(len(params.octaves))
        direct = Signal()
        m.d.comb += [
            octaves.eq(Cat(divisor[octave - 1] & ~divisor[octave:].any()
                           for octave in params.octaves)),
            direct.eq(~divisor[params.index_bits + 1:].any()),
        ]
        address_bits = max(params.depth - 1, 1).bit_length()
        addresses = [_when(direct, divisor[:params.index_bits + 1])]
        places = [_when(direct, Const(int("01" * DIGITS, 2), bits))]
        for octave, flag in zip(params.octaves, octaves, strict=True):
            place_bits = octave - 1 - params.index_bits
            index = Cat(divisor[place_bits:octave - 1],
                        Const(place_bits + 1, max(address_bits - params.index_bits, 1)))
            addresses.append(_when(flag, index))
            whole = Cat(Const(0, bits), divisor[:place_bits])
            places.append(_when(flag, whole[-bits:]))
        return octaves, reduce(or_, addresses)[:address_bits], reduce(or_, places)

    def _read_correction(
        self, m: Module, steps: Pipeline, divisor: Value, octave: Value,
    ) -> Value:
        """Return the correction of a divisor, four steps later."""
        params = self.params
        found = []
        for bits, bank in params.correction_banks.items():
            value = _read(m, steps, f"corrections{bits}", bank, max(bank).bit_length(),
                          divisor[:bits if bits == _SHARED_BITS else bits - 1],
                          BLOCK_ROM if len(bank) > SMALL_DIVISORS else LOGIC_ROM)
            flags = [flag for flag, of in zip(octave, params.octaves, strict=True)
                     if params.bank(of) == bits]
            found.append(steps.register(_when(Cat(flags).any(), value), f"found{bits}"))
        return steps.register(reduce(or_, found) if found else Const(0, 1), "correction")


def _read(m, steps, name: str, words: list[int], width: int, address: Value, attrs) -> Value:
    """Return the word of a constant memory, two steps later, from a separate register."""
    words = words + [0] * (2 - len(words))
    m.submodules[name] = rom = memory.Memory(
        shape=unsigned(width), depth=len(words), init=words, attrs=attrs)
    read = rom.read_port()
    m.d.comb += [read.addr.eq(address[:len(read.addr)]), read.en.eq(1)]
    return steps.register(read.data, f"{name}_word")


def _when(flag: Value, value: Value) -> Value:
    """Return an unsigned value, or 0 if the flag is low."""
    return value & flag.replicate(len(value))


def _row(drop: Value, digit: Value) -> Value:
    """Return -1, 0, 1 or 2 times the drop, with its complement for -1; one LUT per bit."""
    bits = len(drop) + 1
    chosen = Mux(digit[1], Mux(digit[0], drop << 1, drop), Mux(digit[0], 0, ~drop))
    return Cat(
        Mux(digit.any(), chosen[:bits], (~Cat(drop, Const(0, 1)))), ~digit.any()).as_signed()
