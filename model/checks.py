"""Checks of arguments, with one wording for all."""

from __future__ import annotations

__all__ = ["check_whole"]


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number from ``low`` to ``high``.

    Raises
    ------
    ValueError
        Naming the argument, the range and what came.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, got {value!r}")
