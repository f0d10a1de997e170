"""Ternary weights in bytes: the packing of the quantised model file."""

from __future__ import annotations

import numpy as np

__all__ = ["pack_trits", "unpack_trits"]


def pack_trits(weight: np.ndarray) -> np.ndarray:
    """Pack -1, 0, 1 into bytes: 2-bit two's complement, 4 a byte, first in the low bits.

    Row-major over the whole matrix; the last byte is filled up with zeros. Returns uint8.

    >>> pack_trits(np.array([[1, 0, -1, 1, -1]], dtype=np.int8)).tolist()
    [113, 3]
    """
    codes = np.asarray(weight, dtype=np.int8).reshape(-1).view(np.uint8) & 3
    codes = np.concatenate([codes, np.zeros(-codes.size % 4, dtype=np.uint8)]).reshape(-1, 4)
    return (codes << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(axis=1).astype(np.uint8)


def unpack_trits(packed: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Undo :func:`pack_trits`; int8 of ``shape``.

    Raises
    ------
    ValueError
        If the size is wrong, a code is 2 (no trit) or the filling is not zero.
    """
    count = shape[0] * shape[1]
    if packed.dtype != np.uint8 or packed.shape != (-(-count // 4),):
        raise ValueError(
            f"{count} trits take {-(-count // 4)} uint8, got {packed.dtype} {packed.shape}")
    codes = (packed[:, None] >> np.array([0, 2, 4, 6], dtype=np.uint8)) & 3
    flat = codes.reshape(-1)
    bad = np.flatnonzero(flat == 2)
    if bad.size:
        raise ValueError(f"trit {bad[0]} has code 2; only 0, 1 and 3 are trits")
    if flat[count:].any():
        raise ValueError("the filling after the last trit is not zero")
    trits = flat.astype(np.int8)
    trits[trits == 3] = -1
    return trits[:count].reshape(shape)
