"""The recurrence ``x[t] = L x[t-1] + u[t]`` with constant complex L, in pairs of real numbers.

Sequences are time-major ``[time, batch, channels]``, L is ``[channels]`` and the state before the
first step ``[batch, channels]``; each is a pair, real and imaginary part. No complex type is used,
so that graphs of other runtimes can compute it.

- :func:`naive_complex_scan`: the loop. What the other must equal.
- :func:`complex_scan`: ``log2(time)`` steps over the whole sequence. After the one of width w every
  token holds the sum over the last 2 w tokens: ``x[t] += L^w x[t-w]``.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from sterna.model.network.autocast import keeps_precision
from sterna.model.network.replaceable import Replaceable

__all__ = ["Pair", "complex_scan", "naive_complex_scan"]

Pair: TypeAlias = tuple[Tensor, Tensor]
"""Real and imaginary part."""


def _times(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def naive_complex_scan(multiplier: Pair, added: Pair, initial: Pair) -> Pair:
    """The recurrence as written, one step at a time."""
    states, state = [], initial
    for re, im in zip(*(each.unbind(0) for each in added), strict=True):
        moved = _times(multiplier, state)
        state = moved[0] + re, moved[1] + im
        states.append(state)
    return torch.stack([re for re, _ in states]), torch.stack([im for _, im in states])


@Replaceable
@keeps_precision
def complex_scan(multiplier: Pair, added: Pair, initial: Pair) -> Pair:
    """As :func:`naive_complex_scan`, in ``log2(time)`` steps."""
    carried = _times(multiplier, initial)
    re, im = (torch.cat([each[:1] + first, each[1:]])
              for each, first in zip(added, carried, strict=True))
    width = 1
    while width < re.shape[0]:
        moved = _times(multiplier, (re[:-width], im[:-width]))
        re, im = (torch.cat([each[:width], each[width:] + more])
                  for each, more in zip((re, im), moved, strict=True))
        multiplier = _times(multiplier, multiplier)
        width *= 2
    return re, im
