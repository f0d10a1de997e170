"""Two ternary weights in the four bits that the pair cell of the 7 series takes.

Bit 3 says that neither weight is zero. The low three bits select one operand: nothing,
x0, ~x0, x1 or ~x1; with bit 3 they select the same operand of a sum of two, see
:mod:`sterna.hw.units.mac.xc7.pair_adder`. As many bits as two trits take by themselves, so
only the packer differs. Code 0 is a pair of zeros.
"""

from __future__ import annotations

import numpy as np

from sterna.hw.parts.trit import to_codes

__all__ = ["PAIRS", "PAIR_BITS", "pack_pairs", "unpack_pairs"]

PAIR_BITS = 4
"""Bits of a code."""

PAIRS: dict[int, tuple[int, int]] = {
    0: (0, 0), 1: (1, 0), 2: (-1, 0), 3: (0, 1), 4: (0, -1),
    9: (1, 1), 10: (-1, -1), 11: (-1, 1), 12: (1, -1)}
"""The two weights, that of the even column first, of every code."""


def pack_pairs(weight: np.ndarray) -> np.ndarray:
    """Return the codes of a row, or of the rows of a matrix, of -1, 0 and 1.

    Parameters
    ----------
    weight
        Integers ``[..., columns]``; an odd number of columns is filled up with a zero.

    Returns
    -------
    np.ndarray
        uint8 ``[..., ceil(columns / 2)]``, each a key of :data:`PAIRS`.

    Raises
    ------
    ValueError
        If a weight is none of the three, or there is no row.

    >>> pack_pairs(np.array([1, 0, -1, 1, 0])).tolist()
    [1, 11, 0]
    """
    weight = np.asarray(weight)
    if weight.ndim < 1:
        raise ValueError("weights must be a row or a matrix, got a single number")
    to_codes(weight)        # refuses what is no trit
    filling = [(0, 0)] * (weight.ndim - 1) + [(0, weight.shape[-1] % 2)]
    pairs = np.pad(weight.astype(np.int8), filling) + 1
    return _CODES[pairs[..., 0::2], pairs[..., 1::2]]


def unpack_pairs(codes: np.ndarray, columns: int) -> np.ndarray:
    """Undo :func:`pack_pairs`; int8 ``[..., columns]``.

    Raises
    ------
    ValueError
        If the number of codes is wrong, a code is no pair, or the filling is not zero.
    """
    codes = np.asarray(codes)
    if codes.ndim < 1 or codes.shape[-1] != -(-columns // 2):
        raise ValueError(
            f"{columns} columns take {-(-columns // 2)} codes, got shape {codes.shape}")
    bad = codes[~np.isin(codes, list(PAIRS))]
    if bad.size:
        raise ValueError(f"code {bad.flat[0]} is no pair: those are 0 to 4 and 9 to 12")
    trits = np.zeros((1 << PAIR_BITS, 2), dtype=np.int8)
    for code, pair in PAIRS.items():
        trits[code] = pair
    flat = trits[codes].reshape(*codes.shape[:-1], -1)
    if flat[..., columns:].any():
        raise ValueError("the filling after the last column is not zero")
    return flat[..., :columns]


def _make_codes() -> np.ndarray:
    codes = np.zeros((3, 3), dtype=np.uint8)
    for code, (even, odd) in PAIRS.items():
        codes[even + 1, odd + 1] = code
    return codes


_CODES = _make_codes()
