"""What the projections of a mixer compute with: ternary weights, or floats to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.quantizers import absmax_quantize, ternarize

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

    def embedding(self, count: int) -> nn.Embedding:
        """Vectors of ``count`` tokens, normal: in ternary models with deviation 1, in float ones
        1/sqrt(d), so that what blocks add, from zero on, soon counts beside them."""
        std = 1.0 if self.ternary else self.d ** -0.5
        return nn.Embedding(count, self.d, _weight=torch.empty(count, self.d).normal_(
            0.0, std, generator=self.generator))

    def parameter(self, *shape: int, std: float = 0.02) -> nn.Parameter:
        """A trained tensor that is no projection, normal with deviation ``std`` at the start."""
        return nn.Parameter(torch.empty(shape).normal_(0.0, std, generator=self.generator))


def project(projections: Sequence[nn.Module], x: Tensor, limit: float = math.inf) -> Tensor:
    """The outputs of projections of one input ``x [..., columns]`` side by side.

    Ternary ones share the norm and quantisation of ``x``, and saturate at ``±limit``. All are
    of one kind, and either all have a bias or none has.
    """
    ternary = _all_ternary(projections)
    if ternary:
        return BitLinear.joint(ternary, x, limit)
    return F.linear(x, *_joined(projections))


def prepare(projections: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    """:func:`project` of the same projections as a function of ``x``, without a limit.

    For loops over time: what depends on the weights alone, above all making them ternary, is done
    once. Results differ from :func:`project` by the rounding of floats.
    """
    weight, bias = _joined(projections)
    if _all_ternary(projections):
        return lambda x: F.linear(absmax_quantize(x), weight, bias)
    return lambda x: F.linear(x, weight, bias)


def _all_ternary(projections: Sequence[nn.Module]) -> list[BitLinear]:
    """The projections if they are ternary, none if all are float."""
    ternary = [each for each in projections if isinstance(each, BitLinear)]
    linears = [each for each in projections if isinstance(each, nn.Linear)]
    if len(projections) not in (len(ternary), len(linears)):
        raise ValueError("joint projections must be all ternary or all float")
    return ternary


def _joined(projections: Sequence[nn.Module]) -> tuple[Tensor, Tensor | None]:
    """Weights (ternary ones dequantised) and biases of projections, one after the other."""
    weights, biases = [], []
    for each in projections:
        assert isinstance(each, BitLinear | nn.Linear)
        weights.append(ternarize(each.weight) if isinstance(each, BitLinear) else each.weight)
        if each.bias is not None:
            biases.append(each.bias)
    if biases and len(biases) != len(projections):
        raise ValueError("either all joint projections have a bias or none has")
    return torch.cat(tuple(weights)), torch.cat(tuple(biases)) if biases else None
