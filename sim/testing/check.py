"""Comparing what came out with what is expected: the first difference by name and index."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["check"]


def check(name: str, got: Any, expected: Any) -> None:
    """Compare two arrays of integers, value by value.

    Parameters
    ----------
    name
        The tensor, for the message: ``layer0.glu.p``.
    got, expected
        Integers, or arrays of them, of the same shape.

    Raises
    ------
    AssertionError
        If a value differs, naming the first one; or if the shapes differ, or there is no value,
        for a comparison of nothing is not a pass.

    >>> check("layer0.glu.p", [1, 2, 4], [1, 2, 3])
    Traceback (most recent call last):
    AssertionError: layer0.glu.p[2]: expected 3, got 4 (1 of 3 values differ)
    """
    ours, theirs = np.asarray(got), np.asarray(expected)
    if ours.shape != theirs.shape:
        raise AssertionError(f"{name}: expected the shape {theirs.shape}, got {ours.shape}")
    if not ours.size:
        raise AssertionError(f"{name}: there is no value to compare")
    wrong = np.argwhere(ours != theirs)
    if len(wrong):
        at = tuple(wrong[0].tolist())
        where = f"[{', '.join(map(str, at))}]" if at else ""
        raise AssertionError(
            f"{name}{where}: expected {theirs[at]}, got {ours[at]} "
            f"({len(wrong)} of {ours.size} values differ)")
