"""Limits of the kernels, for code that chooses without importing Triton."""

from __future__ import annotations

__all__ = ["WIDEST_ROW"]

WIDEST_ROW = 16384
"""Columns of the widest vector that is quantised: a program holds all of it in registers."""
