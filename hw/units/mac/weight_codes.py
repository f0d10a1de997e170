"""Codes of ternary weights: one in two bits, two in four.

Of two weights (xc7-pair), bit 3 says that neither is zero. The low three bits select one
operand: nothing, x0, ~x0, x1 or ~x1; with bit 3 they select the same operand of a sum of two, see
:class:`~sterna.hw.units.mac.xc7_rows.PairAdder`. As many bits as two trits take by
themselves, so only the packer differs. Code 0 is a pair of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from amaranth.lib import enum

__all__ = ["PAIRS", "PAIR_BITS", "TRITS", "Trit", "pack", "unpack"]


class Trit(enum.Enum, shape=2):  # type: ignore[call-arg]  # shape is for Amaranth's metaclass
    """A ternary weight in two bits of two's complement.

    The code needs no decoder: bit 0 says *not zero*, bit 1 says *negative*, so the
    operand an adder takes is ``(x & not_zero) ^ negative``. Code 2 is not a trit.
    """

    ZERO = 0
    PLUS = 1
    MINUS = 3


Combinations: TypeAlias = Mapping[int, tuple[int, ...]]
"""The weights, the one of the first column first, that each code stands for."""

PAIR_BITS = 4

TRITS: Combinations = {0: (0,), 1: (1,), 3: (-1,)}

PAIRS: Combinations = {
    0: (0, 0), 1: (1, 0), 2: (-1, 0), 3: (0, 1), 4: (0, -1),
    9: (1, 1), 10: (-1, -1), 11: (-1, 1), 12: (1, -1)}


def pack(weight: np.ndarray, combinations: Combinations) -> np.ndarray:
    """Return the codes of -1, 0 and 1 ``[..., columns]``; uint8 ``[..., codes]``.

    Columns are filled up with zeros to whole combinations.

    >>> pack(np.array([0, 1, -1]), TRITS).tolist()
    [0, 1, 3]
    >>> pack(np.array([1, 0, -1, 1, 0]), PAIRS).tolist()
    [1, 11, 0]
    """
    weight = np.asarray(weight)
    if not np.isin(weight, (-1, 0, 1)).all():
        raise ValueError("weights must be -1, 0 or 1")
    size = len(combinations[0])
    places = 3 ** np.arange(size)
    codes = np.zeros(3 ** size, dtype=np.uint8)
    for code, trits in combinations.items():
        codes[(np.array(trits) + 1) @ places] = code
    filling = [(0, 0)] * (weight.ndim - 1) + [(0, -weight.shape[-1] % size)]
    padded = np.pad(weight.astype(np.int64), filling).reshape(*weight.shape[:-1], -1, size)
    return codes[(padded + 1) @ places]


def unpack(codes: np.ndarray, columns: int, combinations: Combinations) -> np.ndarray:
    """Undo :func:`pack`; int8 ``[..., columns]``."""
    codes, size = np.asarray(codes), len(combinations[0])
    if codes.ndim < 1 or codes.shape[-1] != -(-columns // size):
        raise ValueError(
            f"{columns} columns take {-(-columns // size)} codes, got shape {codes.shape}")
    bad = codes[~np.isin(codes, list(combinations))]
    if bad.size:
        raise ValueError(f"code {bad.flat[0]} is none of {', '.join(map(str, combinations))}")
    trits = np.zeros((max(combinations) + 1, size), dtype=np.int8)
    trits[list(combinations)] = list(combinations.values())
    flat = trits[codes].reshape(*codes.shape[:-1], -1)
    if flat[..., columns:].any():
        raise ValueError("the filling after the last column is not zero")
    return flat[..., :columns]
