"""What the projections of a mixer compute with: ternary weights, or floats to compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.network.bitlinear import BitLinear

__all__ = ["MixerInit", "Projection", "project"]

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
    """

    d: int
    dff: int = 0
    ternary: bool = True
    generator: torch.Generator | None = None

    def linear(
        self, columns: int, rows: int, *, bias: bool = True, residual: bool = False,
    ) -> Projection:
        """A projection ``[..., columns]`` to ``[..., rows]``.

        ``residual`` says that its output is added to the residual stream: in float it then
        starts at zero, so that a block begins as the identity. (Ternary weights of zero would
        have no scale.)
        """
        if self.ternary:
            return BitLinear(columns, rows, bias=bias, generator=self.generator)
        linear = nn.utils.skip_init(nn.Linear, columns, rows, bias=bias)
        bound = 0.0 if residual else 1.0 / math.sqrt(columns)
        nn.init.uniform_(linear.weight, -bound, bound, generator=self.generator)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
        return linear

    def parameter(self, *shape: int, std: float = 0.02) -> nn.Parameter:
        """A trained tensor that is no projection, normal with deviation ``std`` at the start."""
        return nn.Parameter(torch.empty(shape).normal_(0.0, std, generator=self.generator))


def project(projections: Sequence[nn.Module], x: Tensor, limit: float = math.inf) -> Tensor:
    """The outputs of projections of one input ``x [..., columns]`` side by side.

    Ternary ones share the norm and quantisation of ``x``, and saturate at ``±limit``. All are
    of one kind, and either all have a bias or none has.
    """
    ternary = [each for each in projections if isinstance(each, BitLinear)]
    if len(ternary) == len(projections):
        return BitLinear.joint(ternary, x, limit)
    linears = [each for each in projections if isinstance(each, nn.Linear)]
    if len(linears) != len(projections):
        raise ValueError("joint projections must be all ternary or all float")
    biases = [each.bias for each in linears if each.bias is not None]
    if biases and len(biases) != len(linears):
        raise ValueError("either all joint projections have a bias or none has")
    return F.linear(x, torch.cat(tuple(each.weight for each in linears)),
                    torch.cat(tuple(biases)) if biases else None)
