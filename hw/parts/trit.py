"""The code of a ternary weight in gateware."""

from __future__ import annotations

import numpy as np
from amaranth.lib import enum

__all__ = ["Trit", "from_codes", "to_codes"]


class Trit(enum.Enum, shape=2):  # type: ignore[call-arg]  # shape is for Amaranth's metaclass
    """A ternary weight in two bits of two's complement.

    The code needs no decoder: bit 0 says *not zero*, bit 1 says *negative*, so the
    operand an adder takes is ``(x & not_zero) ^ negative``. Code 2 is not a trit.
    """

    ZERO = 0
    PLUS = 1
    MINUS = 3


def to_codes(weight: np.ndarray) -> np.ndarray:
    """Return the uint8 codes of a matrix of -1, 0 and 1.

    Raises
    ------
    ValueError
        If a weight is none of the three.

    >>> to_codes(np.array([0, 1, -1])).tolist()
    [0, 1, 3]
    """
    weight = np.asarray(weight)
    if not np.isin(weight, (-1, 0, 1)).all():
        raise ValueError("weights must be -1, 0 or 1")
    return weight.astype(np.int8).view(np.uint8) & 3


def from_codes(codes: np.ndarray) -> np.ndarray:
    """Undo :func:`to_codes`; int8.

    Raises
    ------
    ValueError
        If a code is no trit.
    """
    codes = np.asarray(codes)
    if not np.isin(codes, (0, 1, 3)).all():
        raise ValueError("a code is not one of 0, 1 and 3, the codes of a trit")
    return np.where(codes == 3, -1, codes).astype(np.int8)
