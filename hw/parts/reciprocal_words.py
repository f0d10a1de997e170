"""What the tables of a reciprocal hold: a line for each segment, and what it is off by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

__all__ = ["DIGITS", "ReciprocalWords", "line", "reciprocal_words", "segment"]

DIGITS = 3
"""Two-bit digits of a place in a segment; lower bits are left to the corrections."""


@dataclass(frozen=True, slots=True)
class ReciprocalWords:
    """``numerator // d`` as ``base - line(drop, place of d) + correction``, exactly.

    Parameters
    ----------
    bases, drops
        For each segment: the quotient a third of the way into it, and by how much it drops from
        end to end. A segment of one divisor has its quotient as base and no drop.
    corrections
        For each bit length of divisors whose segments have several: what is left of each
        divisor, from the smallest on; never negative.
    """

    bases: tuple[int, ...]
    drops: tuple[int, ...]
    corrections: dict[int, tuple[int, ...]]


def segment(divisor: int, index_bits: int) -> int:
    """Return the number of the segment of a divisor.

    An octave has ``2^index_bits`` segments, as long as there are so many divisors in it.
    """
    place_bits = max(divisor.bit_length() - 1 - index_bits, 0)
    return (place_bits << index_bits) + (divisor >> place_bits)


def line(drops: np.ndarray, places: np.ndarray, place_bits: int) -> np.ndarray:
    """Return how far the quotient has dropped at a place, from a third of the segment on.

    The place is a number of ``DIGITS`` digits from 0 to 3. A digit d stands for d - 1 times
    the drop, for which no product is needed: ``-drop`` is its complement (less by 1), and
    twice it a shift. So the zero is where all the digits are 1.
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
    """Make the tables for the divisors up to ``max_divisor``; 0 counts as 1."""
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

        # Of the drops around that of the chord, one that leaves the smallest corrections.
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
