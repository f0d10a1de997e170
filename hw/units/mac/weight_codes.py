"""Codes of ternary weights: one in two bits, two in four, three in five.

Of two weights (xc7-pair), bit 3 says that neither is zero. The low three bits select one
operand: nothing, x0, ~x0, x1 or ~x1; with bit 3 they select the same operand of a sum of two, see
:class:`~sterna.hw.units.mac.xc7_rows.PairAdder`. As many bits as two trits take by
themselves, so only the packer differs. Code 0 is a pair of zeros.

Of the 27 combinations of three trits (styles with tables) one is zero and the others are 13 and
their negatives. So a table of 14 combinations serves all: an index selects an entry and a sign
negates it. Nothing is left to decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TypeAlias

import numpy as np
from amaranth.lib import enum

__all__ = [
    "PAIRS", "PAIR_BITS", "SIGNED_TRIPLES", "TRIPLES", "TRIPLE_BITS", "TRITS", "Trit",
    "from_relative", "missing_ones", "pack", "to_relative", "unpack"]


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

PAIR_BITS, TRIPLE_BITS = 4, 5
"""Bits of a code; of one of three trits the index is in the low four, the sign above them."""

TRITS: Combinations = {0: (0,), 1: (1,), 3: (-1,)}

PAIRS: Combinations = {
    0: (0, 0), 1: (1, 0), 2: (-1, 0), 3: (0, 1), 4: (0, -1),
    9: (1, 1), 10: (-1, -1), 11: (-1, 1), 12: (1, -1)}

TRIPLES: tuple[tuple[int, int, int], ...] = tuple(
    (a, b, c) for c, b, a in product((0, 1, -1), repeat=3)
    if next((trit for trit in (c, b, a) if trit), 1) == 1)
"""The combinations that an index selects: zero, then those whose last non-zero trit is 1."""

_SIGN = 1 << (TRIPLE_BITS - 1)
SIGNED_TRIPLES: Combinations = dict(enumerate(TRIPLES)) | {
    index | _SIGN: (-a, -b, -c) for index, (a, b, c) in enumerate(TRIPLES) if index}


def pack(weight: np.ndarray, combinations: Combinations) -> np.ndarray:
    """Return the codes of -1, 0 and 1 ``[..., columns]``; uint8 ``[..., codes]``.

    Columns are filled up with zeros to whole combinations.

    >>> pack(np.array([0, 1, -1]), TRITS).tolist()
    [0, 1, 3]
    >>> pack(np.array([1, 0, -1, 1, 0]), PAIRS).tolist()
    [1, 11, 0]
    >>> pack(np.array([1, 0, 0, -1, 0, 0, 1]), SIGNED_TRIPLES).tolist()
    [1, 17, 1]
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


def to_relative(codes: np.ndarray) -> np.ndarray:
    """Make the signs of codes ``[..., triples]`` relative, for a tree of adders that take signs.

    Neighbours are added in pairs, then the pairs, and so on. The sign of triple i enters
    the adder that takes it, and what was added to it before, as second operand. The first
    operand is headed there by triple ``i & (i - 1)``, and the sign is relative to that one's.
    What triple 0 heads has its own sign throughout.

    >>> to_relative(np.array([17, 17, 17, 17])).tolist()
    [17, 17, 17, 1]
    """
    relative = np.array(codes)
    for index in range(codes.shape[-1]):
        relative[..., index] ^= _sign_of_head(codes, index)
    return relative


def from_relative(codes: np.ndarray) -> np.ndarray:
    """Undo :func:`to_relative`."""
    absolute = np.array(codes)
    for index in range(codes.shape[-1]):
        absolute[..., index] ^= _sign_of_head(absolute, index)
    return absolute


def missing_ones(relative: np.ndarray) -> np.ndarray:
    """Return what a tree's sum lacks when it adds a complement for each negative; int64.

    A complement is one less than the negative, and a complement of a sum that lacks n is
    -n - 1 too small.
    """
    negative = np.asarray(relative) & _SIGN != 0
    lacks = np.zeros(negative.shape, dtype=np.int64)
    lacks[..., 0] = negative[..., 0]
    stride = 1
    while stride < negative.shape[-1]:
        second = slice(stride, None, 2 * stride)
        count = negative[..., second].shape[-1]
        first = slice(0, 2 * stride * count, 2 * stride)
        lacks[..., first] += np.where(
            negative[..., second], 1 - lacks[..., second], lacks[..., second])
        stride *= 2
    return lacks[..., 0]


def _sign_of_head(codes: np.ndarray, index: int) -> np.ndarray | int:
    head = index & (index - 1)
    return codes[..., head] & _SIGN if head else 0
