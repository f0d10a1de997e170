"""Modules one after the other, and around them a residual; running them with their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor, nn

from sterna.model.network.mlgru import MLGRU
from sterna.model.profile import S16

__all__ = ["Residual", "States", "advance", "initial_states"]

States: TypeAlias = tuple[Tensor, ...]
"""The state ``[batch, d]`` of every MLGRU inside a module, in the order of computation."""


class Residual(nn.Module):
    """``y = x + inner(x)``, limited to the range of the profile's ``x`` format."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., d]`` to ``[..., d]``; of an MLGRU inside, ``x`` is ``[time, batch, d]``
        and begins at the state zero (:func:`advance` goes on from another)."""
        return advance(self, x, initial_states(self, x))[0]


def initial_states(module: nn.Module, x: Tensor) -> States:
    """The states at the start of a sequence ``x [time, batch, columns]``: zeros."""
    return tuple(x.new_zeros(x.shape[1], each.f.weight.shape[0])
                 for each in _recurrences(module))


def _recurrences(module: nn.Module) -> list[MLGRU]:
    """Every MLGRU inside, one that comes twice also twice: each has a state of its own."""
    if isinstance(module, MLGRU):
        return [module]
    return [each for inner in module._modules.values() if inner is not None
            for each in _recurrences(inner)]


def advance(module: nn.Module, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, States]:
    """Run a module that may have MLGRUs inside.

    Parameters
    ----------
    module
        A module of Sterna, a :class:`Residual`, or an ``nn.Sequential`` of such.
    x
        ``[time, batch, columns]``.
    states
        Of every MLGRU inside, as :func:`initial_states` or the call before gave them.

    Returns
    -------
    The output ``[time, batch, rows]`` and the states after the last token.
    """
    if isinstance(module, MLGRU):
        (initial,) = states
        y, last = module(x, initial)
        return y, (last,)
    if isinstance(module, Residual):
        y, after = advance(module.inner, x, states)
        return (x + y).clamp(-S16.x.limit, S16.x.limit), after
    if isinstance(module, nn.Sequential):
        after, rest = (), tuple(states)
        for each in module:
            count = len(_recurrences(each))
            x, new = advance(each, x, rest[:count])
            after, rest = after + new, rest[count:]
        return x, after
    return module(x), ()
