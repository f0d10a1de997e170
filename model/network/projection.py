"""What the projections of a mixer compute with: ternary weights, or floats to compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import nn

from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.joint import prepare, project
from sterna.model.network.numerics import S16_LIMITS, Numerics

__all__ = ["MixerInit", "Projection", "prepare", "project"]

Projection: TypeAlias = BitLinear | nn.Linear


@dataclass(frozen=True, slots=True)
class MixerInit:
    """What every mixer is made with, beside options of its own.

    Parameters
    ----------
    d
        Width of the residual stream, in channels.
    dff
        Width of the hidden vector of a channel mixer, in channels.
    ternary
        Whether projections are a ``BitLinear``, which normalises and quantises its own input,
        or an ``nn.Linear``, which does neither.
    generator
        Source of all initial weights.
    numerics
        What is done to values that have a format in integers. Without ``ternary`` it is nothing,
        whatever is given here.
    """

    d: int
    dff: int = 0
    ternary: bool = True
    generator: torch.Generator | None = None
    numerics: Numerics = S16_LIMITS

    def __post_init__(self) -> None:
        if not self.ternary:
            object.__setattr__(self, "numerics", Numerics())

    def linear(
        self, columns: int, rows: int, *, bias: bool = True, residual: bool = False,
    ) -> Projection:
        """A projection ``[..., columns]`` to ``[..., rows]``.

        ``residual`` says that its output is added to the residual stream: in float it then
        starts at zero, so that a block begins as the identity. (Ternary weights of zero would
        have no scale.)
        """
        if self.ternary:
            return BitLinear(
                columns, rows, bias=bias, generator=self.generator,
                round_bias=partial(self.numerics.bias, residual=residual))
        linear = nn.utils.skip_init(nn.Linear, columns, rows, bias=bias)
        bound = 0.0 if residual else 1.0 / math.sqrt(columns)
        nn.init.uniform_(linear.weight, -bound, bound, generator=self.generator)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
        return linear

    def embedding(self, count: int) -> nn.Embedding:
        """Vectors of ``count`` tokens, normal: in ternary models with deviation 1, in float ones
        1/sqrt(d), so that what blocks add, from zero on, soon counts beside them."""
        std = 1.0 if self.ternary else self.d ** -0.5
        return nn.Embedding(count, self.d, _weight=torch.empty(count, self.d).normal_(
            0.0, std, generator=self.generator))

    def parameter(self, *shape: int, std: float = 0.02) -> nn.Parameter:
        """A trained tensor that is no projection, normal with deviation ``std`` at the start."""
        return nn.Parameter(torch.empty(shape).normal_(0.0, std, generator=self.generator))
