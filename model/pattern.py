"""Patterns that choose the mixer of every layer by name, such as ``3*mlgru + window(size=64)``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

__all__ = ["Choice", "Option", "parse_pattern", "shortest"]

Option: TypeAlias = int | float | bool | str
"""Types of a mixer's option."""

_TERM = re.compile(
    r"(?:(?P<count>\d+)\s*\*\s*)?(?P<name>[^\s*+()=,]+)\s*(?:\((?P<options>[^()]*)\))?")
_LARGEST = (1 << 31) - 1
"""Largest whole number of an option: above any size, and no overflow in values computed from it."""
_OPTION = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>[^\s,=]+)")


@dataclass(frozen=True, slots=True)
class Choice:
    """A mixer of a pattern: its name, or ``module:Class``, and its options.

    >>> str(parse_pattern("window( size=64,heads=2 )")[0])
    'window(size=64, heads=2)'
    """

    name: str
    options: tuple[tuple[str, Option], ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={_spelled(value)}" for name, value in self.options)
        return f"{self.name}({inside})" if inside else self.name


def parse_pattern(pattern: str) -> tuple[Choice, ...]:
    """The choices of a pattern, in the order of the layers.

    A pattern is ``count*name(option=value, ...)`` one or more times with ``+`` between; count and
    options are optional. A model with more layers than choices repeats them. Raises ValueError if
    the text is not a pattern. The registry, not this function, checks names and options of mixers.

    >>> [str(choice) for choice in parse_pattern("3*mlgru + window(size=64)")]
    ['mlgru', 'mlgru', 'mlgru', 'window(size=64)']
    """
    if not isinstance(pattern, str):
        raise ValueError(f"expected a pattern such as '3*mlgru + window', got {pattern!r}")
    choices: list[Choice] = []
    for term in re.split(r"\+(?![^()]*\))", pattern):
        found = _TERM.fullmatch(term.strip())
        count = int(found["count"] or 1) if found else 0
        if not found or not 1 <= count <= 1024:
            raise ValueError(
                f"{term.strip()!r} in the pattern {pattern!r} is no mixer: expected "
                f"name, count*name (1 to 1024 times) or name(option=value, ...)")
        choices += [Choice(found["name"], _options(found["options"], pattern))] * count
    return tuple(choices)


def shortest(choices: Sequence[Choice]) -> str:
    """The shortest pattern of these choices, the same for all that are equal when repeated.

    >>> [shortest(parse_pattern(each)) for each in ("mlgru+mlgru + mqa()", "2*mlgru", "a+b+a+b")]
    ['2*mlgru + mqa', 'mlgru', 'a + b']
    """
    count = len(choices)
    period = next(length for length in range(1, count + 1) if count % length == 0
                  and list(choices) == count // length * list(choices[:length]))
    runs = [(str(choice), len(list(run))) for choice, run in groupby(choices[:period])]
    return " + ".join(f"{count}*{name}" if count > 1 else name for name, count in runs)


def _options(text: str | None, pattern: str) -> tuple[tuple[str, Option], ...]:
    options: dict[str, Option] = {}
    for part in (text or "").split(",") if (text or "").strip() else ():
        found = _OPTION.fullmatch(part.strip())
        if not found or found["name"] in options:
            raise ValueError(
                f"{part.strip()!r} in the pattern {pattern!r} is no option, or comes twice: "
                f"expected option=value")
        value = options[found["name"]] = _value(found["value"])
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ValueError(f"the option {part.strip()!r} in the pattern {pattern!r} must be at "
                             f"most {_LARGEST}")
    return tuple(options.items())


def _value(text: str) -> Option:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _spelled(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
