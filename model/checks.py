"""Checks of arguments, with one wording for all.

All raise ``ValueError``, for a wrong type too: to a caller 2.5 tokens, "many" tokens and -1 tokens
are the same mistake.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from numbers import Integral, Real
from typing import TypeVar

__all__ = ["check_fields", "check_whole", "one_of", "real_number", "whole_number"]

_Choice = TypeVar("_Choice", bound=Enum)


def check_whole(name: str, value: object, low: int, high: int | None = None) -> None:
    """Require a whole number from ``low`` to ``high``, or from ``low`` up if that is None."""
    if (not isinstance(value, int) or isinstance(value, bool) or value < low
            or (high is not None and value > high)):
        reach = f"from {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {reach}, got {value!r}")


def whole_number(name: str, value: object, low: int, high: int | None = None) -> int:
    """``value`` as an int, checked as by :func:`check_whole`; also accepts NumPy integers.

    >>> whole_number("tokens", 2.0, 1)
    Traceback (most recent call last):
    ValueError: tokens must be a whole number from 1, got 2.0
    """
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value
    check_whole(name, number, low, high)
    assert isinstance(number, int)
    return number


def real_number(name: str, value: object) -> float:
    """``value`` as a float, of any range; also accepts NumPy numbers."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)


def one_of(name: str, value: object, kind: type[_Choice]) -> _Choice:
    """The member of ``kind`` given by ``value``, a member or the value of one.

    >>> one_of("size", "big", Enum("Size", {"S": "small", "L": "large"}))
    Traceback (most recent call last):
    ValueError: size must be one of small, large, got 'big'
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
        raise ValueError(f"{name} must be one of {known}, got {value!r}") from None


def check_fields(name: str, value: object, fields: Iterable[str]) -> None:
    """Require an object with exactly these fields, as read from JSON.

    >>> check_fields("config", {"d": 8, "heads": 2}, ["d", "layers"])
    Traceback (most recent call last):
    ValueError: config must have the fields d, layers; missing: layers; unknown: heads
    """
    wanted = list(fields)
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object with the fields {', '.join(wanted)}, "
                         f"got {value!r}")
    problems = [f"; {what}: {', '.join(map(str, names))}" for what, names in (
        ("missing", [each for each in wanted if each not in value]),
        ("unknown", [each for each in value if each not in wanted])) if names]
    if problems:
        raise ValueError(f"{name} must have the fields {', '.join(wanted)}{''.join(problems)}")
