"""Modules one after the other, and around them a residual; running them with their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor, nn

from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.numerics import S16_LIMITS, Numerics

__all__ = ["Residual", "States", "advance", "initial_states"]

States: TypeAlias = tuple[State, ...]
"""The state of every token mixer inside a module, in the order of computation."""


class Residual(nn.Module):
    """``y = x + inner(x)``, limited to the range of the profile's ``x`` format.

    Parameters
    ----------
    inner
        A module from ``[..., d]`` to ``[..., d]``.
    numerics
        Limits the sum; by default to the range of profile S16.
    """

    def __init__(self, inner: nn.Module, numerics: Numerics = S16_LIMITS) -> None:
        super().__init__()
        self.inner, self.numerics = inner, numerics

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., d]`` to ``[..., d]``; with a token mixer inside, ``x`` is
        ``[time, batch, d]`` and begins at its initial state; :func:`advance` goes on from
        another."""
        return advance(self, x, initial_states(self, x))[0]


def initial_states(module: nn.Module, x: Tensor) -> States:
    """The states at the start of a sequence ``x [time, batch, columns]``."""
    return tuple(each.initial_state(x) for each in _token_mixers(module))


def _token_mixers(module: nn.Module) -> list[TokenMixer]:
    """Every token mixer inside, one that comes twice also twice: each has a state of its own."""
    if isinstance(module, TokenMixer):
        return [module]
    return [each for inner in module._modules.values() if inner is not None
            for each in _token_mixers(inner)]


def advance(module: nn.Module, x: Tensor, states: Sequence[State]) -> tuple[Tensor, States]:
    """Run a module that may have token mixers inside.

    Parameters
    ----------
    module
        A module of Sterna, a :class:`Residual`, or an ``nn.Sequential`` of such.
    x
        ``[time, batch, columns]``.
    states
        Of every token mixer inside, as :func:`initial_states` or the call before gave them.

    Returns
    -------
    The output ``[time, batch, rows]`` and the states after the last token.
    """
    if isinstance(module, TokenMixer):
        (before,) = states
        y, last = module(x, before)
        return y, (last,)
    if isinstance(module, Residual):
        y, after = advance(module.inner, x, states)
        return module.numerics.x(x + y), after
    if isinstance(module, nn.Sequential):
        after, rest = (), tuple(states)
        for each in module:
            count = len(_token_mixers(each))
            x, new = advance(each, x, rest[:count])
            after, rest = after + new, rest[count:]
        return x, after
    return module(x), ()
