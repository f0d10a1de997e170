"""Weights of a row as the codes and the start value that a style takes, and back."""

from __future__ import annotations

import numpy as np

from sterna.hw.parts.trit import from_codes, to_codes
from sterna.hw.parts.trit_codes import (
    from_relative,
    missing_ones,
    pack_triples,
    to_relative,
    unpack_triples,
)
from sterna.hw.units.mac.base.pair_codes import pack_pairs, unpack_pairs
from sterna.hw.units.mac.base.style import ArrayStyle

__all__ = ["row_codes", "row_starts", "row_trits"]


def row_codes(trits: np.ndarray, style: ArrayStyle) -> np.ndarray:
    """Return the codes of the weights that a row takes in a beat.

    Parameters
    ----------
    trits
        Integers ``[..., cols]`` of -1, 0 and 1.
    style
        Style of the array.

    Returns
    -------
    np.ndarray
        uint8 ``[..., codes]``, as many as ``MacParams.weight_layout`` has elements.

    Raises
    ------
    ValueError
        If a weight is none of the three.

    >>> row_codes(np.array([1, -1, -1, 1]), ArrayStyle.GENERIC).tolist()
    [1, 3, 3, 1]
    >>> row_codes(np.array([1, -1, -1, 1]), ArrayStyle.ECP5_TABLE).tolist()
    [26, 1]
    """
    match style:
        case ArrayStyle.XC7_PAIR:
            return pack_pairs(trits)
        case ArrayStyle.XC7_TABLE:
            return pack_triples(trits)
        case ArrayStyle.ECP5_TABLE:
            return to_relative(pack_triples(trits))
    return to_codes(trits)


def row_trits(codes: np.ndarray, cols: int, style: ArrayStyle) -> np.ndarray:
    """Undo :func:`row_codes`; int8 ``[..., cols]``.

    Raises
    ------
    ValueError
        If a code is none of the style's, or their number is wrong.
    """
    match style:
        case ArrayStyle.XC7_PAIR:
            return unpack_pairs(codes, cols)
        case ArrayStyle.XC7_TABLE:
            return unpack_triples(codes, cols)
        case ArrayStyle.ECP5_TABLE:
            return unpack_triples(from_relative(codes), cols)
    return from_codes(codes)


def row_starts(trits: np.ndarray, style: ArrayStyle) -> np.ndarray:
    """Return the start values of rows: what all the complements of a row lack.

    Parameters
    ----------
    trits
        Integers ``[..., beats, cols]`` of -1, 0 and 1, all beats of each row.
    style
        Style of the array.

    Returns
    -------
    np.ndarray
        int64 ``[...]``; zeros in a style that takes none.
    """
    match style:
        case ArrayStyle.XC7_TABLE:
            return np.zeros(trits.shape[:-2], dtype=np.int64)
        case ArrayStyle.ECP5_TABLE:
            return missing_ones(row_codes(trits, style)).sum(axis=-1)
    return (np.asarray(trits) == -1).sum(axis=(-2, -1))
