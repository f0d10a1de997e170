"""Codes of ternary weights: one in two bits, two in four.

In the code of two weights (xc7-pair), bit 3 says that neither is zero. The low three bits select
one operand: nothing, x0, ~x0, x1 or ~x1; with bit 3 they select the same operand of a sum of two,
see :class:`~sterna.hw.units.mac.xc7_rows.PairAdder`. The code is as wide as two separate trits, so
only the packer differs. Code 0 is a pair of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from amaranth.lib import enum

__all__ = ["PAIRS", "PAIR_BITS", "TRITS", "Trit"]


class Trit(enum.Enum, shape=2):  # type: ignore[call-arg]  # shape is for Amaranth's metaclass
    """A ternary weight in two bits of two's complement.

    The code needs no decoder: bit 0 means *not zero*, bit 1 *negative*, so the operand of an
    adder is ``(x & not_zero) ^ negative``. Code 2 is not a trit.
    """

    ZERO = 0
    PLUS = 1
    MINUS = 3


Combinations: TypeAlias = Mapping[int, tuple[int, ...]]
"""The weights of each code, first column first."""

PAIR_BITS = 4

TRITS: Combinations = {0: (0,), 1: (1,), 3: (-1,)}

PAIRS: Combinations = {
    0: (0, 0), 1: (1, 0), 2: (-1, 0), 3: (0, 1), 4: (0, -1),
    9: (1, 1), 10: (-1, -1), 11: (-1, 1), 12: (1, -1)}
