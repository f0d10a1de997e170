"""Three ternary weights in five bits: the index of a table and a sign.

Of the 27 combinations of three trits one is zero and the others are 13 and their
negatives. So a table of 14 combinations, which is what an array that looks sums up in
place of adding keeps of every three activations, serves all: an index selects an entry
and a sign negates it. Nothing is left to decode.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from sterna.hw.trit import to_codes

__all__ = ["TRIPLES", "TRIPLE_BITS", "pack_triples", "unpack_triples"]

TRIPLES: tuple[tuple[int, int, int], ...] = tuple(
    (a, b, c) for c, b, a in product((0, 1, -1), repeat=3)
    if next((trit for trit in (c, b, a) if trit), 1) == 1)
"""The combinations that an index selects: zero, then those whose last non-zero trit is 1."""

TRIPLE_BITS = 5
"""Bits of a code: the index in the low four, the sign above them."""

_SIGN = 1 << (TRIPLE_BITS - 1)


def pack_triples(weight: np.ndarray) -> np.ndarray:
    """Return the codes of a row, or of the rows of a matrix, of -1, 0 and 1.

    Parameters
    ----------
    weight
        Integers ``[..., columns]``; the last triple is filled up with zeros.

    Returns
    -------
    np.ndarray
        uint8 ``[..., ceil(columns / 3)]``, each 0 to 13, or 17 to 29 with the sign.

    Raises
    ------
    ValueError
        If a weight is none of the three, or there is no row.

    >>> pack_triples(np.array([1, 0, 0, -1, 0, 0, 1])).tolist()
    [1, 17, 1]
    """
    weight = np.asarray(weight)
    if weight.ndim < 1:
        raise ValueError("weights must be a row or a matrix, got a single number")
    to_codes(weight)        # refuses what is no trit
    filling = [(0, 0)] * (weight.ndim - 1) + [(0, -weight.shape[-1] % 3)]
    trits = np.pad(weight.astype(np.int8), filling)
    return _CODES[_number(trits.reshape(*weight.shape[:-1], -1, 3))]


def unpack_triples(codes: np.ndarray, columns: int) -> np.ndarray:
    """Undo :func:`pack_triples`; int8 ``[..., columns]``.

    Raises
    ------
    ValueError
        If the number of codes is wrong, a code is no triple, or the filling is not zero.
    """
    codes = np.asarray(codes)
    if codes.ndim < 1 or codes.shape[-1] != -(-columns // 3):
        raise ValueError(
            f"{columns} columns take {-(-columns // 3)} codes, got shape {codes.shape}")
    bad = codes[~np.isin(codes, _CODES)]
    if bad.size:
        raise ValueError(
            f"code {bad.flat[0]} is no triple: those are 0 to 13, and 17 to 29 with the sign")
    trits = np.array(TRIPLES, dtype=np.int8)[codes & (_SIGN - 1)]
    trits = np.where(codes[..., None] & _SIGN, -trits, trits)
    flat = trits.reshape(*codes.shape[:-1], -1)
    if flat[..., columns:].any():
        raise ValueError("the filling after the last column is not zero")
    return flat[..., :columns]


def _number(trits: np.ndarray) -> np.ndarray:
    """Number combinations ``[..., 3]`` from 0 to 26."""
    return (trits.astype(np.int64) + 1) @ np.array([1, 3, 9])


def _make_codes() -> np.ndarray:
    codes = np.zeros(27, dtype=np.uint8)
    for index, triple in enumerate(TRIPLES[1:], start=1):
        codes[_number(np.array(triple))] = index
        codes[_number(-np.array(triple))] = index | _SIGN
    return codes


_CODES = _make_codes()
