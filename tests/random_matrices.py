"""Thirty ternary matrices that every way to export one is tried with.

Shapes from 1 x 1 to 300 x 1000, all +1, all -1 and all 0 among them, and shapes that no lane
count divides.
"""

from __future__ import annotations

import numpy as np

__all__ = ["random_matrices"]

_CONSTANT = {"plus": 1, "minus": -1, "zero": 0}
_CONSTANT_SHAPES = ((1, 1), (3, 7), (16, 64))
_DRAWN_SHAPES = (
    (1, 1), (1, 2), (2, 1), (1, 37), (41, 1), (5, 9), (8, 8), (12, 16), (13, 17), (24, 20),
    (31, 33), (64, 64), (1, 1000), (300, 1), (65, 127), (128, 96), (100, 300), (77, 501),
    (300, 1000))
_DENSITIES = (0.1, 0.5, 2 / 3, 0.95)


def random_matrices() -> list[tuple[str, np.ndarray]]:
    """The name and the int8 weight ``[rows, columns]`` of each; the same on every call.

    >>> matrices = random_matrices()
    >>> len(matrices), matrices[0][0], matrices[-1][0]
    (30, 'plus-1x1', 'drawn-300x1000')
    """
    found = [
        (f"{name}-{rows}x{columns}", np.full((rows, columns), value, dtype=np.int8))
        for name, value in _CONSTANT.items() for rows, columns in _CONSTANT_SHAPES]
    rng = np.random.default_rng(12)
    one_sided = rng.random((9, 40)) < 0.5
    found += [
        ("minus_or_zero-9x40", -one_sided.astype(np.int8)),
        ("plus_or_minus-9x40", (2 * one_sided - 1).astype(np.int8))]
    for index, shape in enumerate(_DRAWN_SHAPES):
        used = rng.random(shape) < _DENSITIES[index % len(_DENSITIES)]
        signs = np.where(rng.random(shape) < 0.5, 1, -1)
        found.append((f"drawn-{shape[0]}x{shape[1]}", (signs * used).astype(np.int8)))
    return found
