"""Calls that repeat from layer to layer, as a loop in C."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["folded"]

_VARIES = re.compile(r"weights \+ (\d+)|state->h\[(\d+)\]")
"""What differs between the calls of two layers."""


@dataclass(frozen=True, slots=True)
class _Loop:
    """``count`` times the ``period`` calls from ``start`` on, by as many bytes further on."""

    start: int
    period: int
    count: int
    stride: int


def folded(calls: Sequence[str]) -> list[str]:
    """The calls as lines of C, the longest repetition as a loop over ``layer``; ``w`` are then the
    weights of the layer."""
    found = max((loop for start in range(len(calls)) for period in range(1, len(calls) // 2 + 1)
                 if (loop := _loop(calls, start, period)).count > 1),
                key=lambda each: (each.period * (each.count - 1), -each.period, -each.start),
                default=None)
    if found is None:
        return [f"    {call}" for call in calls]
    end = found.start + found.period
    return [
        *(f"    {call}" for call in calls[:found.start]),
        f"    for (layer = 0; layer < {found.count}; layer++, w += {found.stride}) {{",
        *(f"        {_general(one, other)}" for one, other in zip(
            calls[found.start:end], calls[end:end + found.period], strict=True)),
        "    }",
        *(f"    {call}" for call in calls[found.start + found.period * found.count:])]


def _loop(calls: Sequence[str], start: int, period: int) -> _Loop:
    """The repetitions of a period of calls from ``start`` on, one if there is no other."""
    first = calls[start:start + period]
    steps = _steps(first, calls[start + period:start + 2 * period])
    strides = {step for call in steps or () for kind, step in call if kind == 0 and step}
    if steps is None or len(strides) > 1:
        return _Loop(start, period, 1, 0)
    count, before = 2, calls[start + period:start + 2 * period]
    while _steps(before, after := calls[start + count * period:start + (count + 1) * period]
                 ) == steps:
        before, count = after, count + 1
    return _Loop(start, period, count, *(strides or {0}))


def _steps(
    calls: Sequence[str], others: Sequence[str],
) -> list[list[tuple[int, int]]] | None:
    """By how much each number of the other calls is greater, and of which group of the pattern it
    is; None if they differ otherwise."""
    if len(calls) != len(others):
        return None
    steps = []
    for one, other in zip(calls, others, strict=True):
        if _VARIES.sub("", one) != _VARIES.sub("", other):
            return None
        steps.append([(kind, int(b[kind]) - int(a[kind])) for a, b in zip(
            _VARIES.findall(one), _VARIES.findall(other), strict=True)
            for kind in (0, 1) if a[kind]])
    return steps


def _general(one: str, other: str) -> str:
    """A call of the first layer as that of any, from it and the call of the second."""
    others = iter(_VARIES.finditer(other))

    def any_layer(match: re.Match[str]) -> str:
        following = next(others)
        if match[2] is None:
            return match[0] if following[0] == match[0] else f"w + {match[1]}"
        first, step = int(match[2]), int(following[2]) - int(match[2])
        times = "layer" if step == 1 else f"{step} * layer"
        return f"state->h[{times} + {first}]" if first else f"state->h[{times}]"

    return _VARIES.sub(any_layer, one)
