"""Conversion between NumPy arrays and the wide integers of stream payloads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["elements_of", "from_ints", "signed_bits", "to_bits", "to_ints"]


def signed_bits(values: np.ndarray) -> int:
    """Return the bits of the narrowest two's complement format that holds every value.

    >>> signed_bits(np.array([-128, 127])), signed_bits(np.array([128])), signed_bits(np.zeros(1))
    (8, 9, 1)
    """
    return max(int(values.max()), ~int(values.min())).bit_length() + 1


def to_bits(values: np.ndarray, width: int) -> np.ndarray:
    """Return the low ``width`` bits of ``values [n, k]``, lowest first; uint8 ``[n, k*width]``.

    >>> to_bits(np.array([[1, -2]]), 3).tolist()
    [[1, 0, 0, 0, 1, 1]]
    """
    bits = (values[..., None].astype(np.int64) >> np.arange(width)) & 1
    return bits.astype(np.uint8).reshape(len(values), -1)


def to_ints(bits: np.ndarray) -> list[int]:
    """Return one integer per row of ``bits [n, width]``; bit 0 comes first in a row."""
    packed = np.packbits(bits, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def from_ints(values: Sequence[int], low: int, width: int) -> np.ndarray:
    """Return bits ``low`` to ``low + width - 1`` of each value; uint8 ``[n, width]``."""
    size = -(-width // 8)
    mask = (1 << width) - 1
    raw = b"".join(((value >> low) & mask).to_bytes(size, "little") for value in values)
    packed = np.frombuffer(raw, dtype=np.uint8).reshape(len(values), size)
    return np.unpackbits(packed, axis=1, bitorder="little")[:, :width]


def elements_of(bits: np.ndarray, element_bits: int, *, signed: bool = True) -> np.ndarray:
    """Return ``bits [n, k*element_bits]`` as numbers, in two's complement if ``signed``; int64
    ``[n, k]``."""
    powers = 1 << np.arange(element_bits, dtype=np.int64)
    if signed:
        powers[-1] = -powers[-1]
    elements = bits.reshape(len(bits), bits.shape[1] // element_bits, element_bits)
    return elements.astype(np.int64) @ powers
