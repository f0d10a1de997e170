"""The projections of a mixer, ternary or float, computed together if they share an input; and the
parameters of a mixer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from sterna.model.torch.network.autocast import keeps_precision
from sterna.model.torch.network.bitlinear import (
    BitLinear,
    KeepsCodes,
    bit_linear,
    codes_and_row_scale,
    project_codes,
)
from sterna.model.torch.network.numerics import S16_LIMITS, Numerics
from sterna.model.torch.network.quantizers import absmax_quantize, ternarize

__all__ = ["Joint", "MixerInit", "Projection", "project"]


class Joint(KeepsCodes, nn.ModuleDict):
    """Named projections of one input, from ``[..., columns]`` to ``[..., rows]``, each with any
    number of rows; the output is their concatenation.

    Ternary ones share the norm and quantisation of the input, and all of one kind are one matrix
    product. A modified projection is called separately: one with a hook, such as an FSDP unit, or
    another module in its place, such as an adapter.

    >>> both = Joint(f=nn.Linear(3, 2), g=nn.Linear(3, 4))
    >>> both(torch.zeros(5, 3)).shape, [*both.state_dict()]
    (torch.Size([5, 6]), ['f.weight', 'f.bias', 'g.weight', 'g.bias'])
    """

    def __init__(self, **projections: nn.Module) -> None:
        super().__init__(projections)

    def forward(self, x: Tensor, limit: float = math.inf) -> Tensor:
        """Map ``x [..., columns]`` to ``[..., rows of all]``, which saturate at ``±limit``."""
        modules = tuple(self.values())
        if not self.training and _are(BitLinear, modules):
            linears = [each for each in modules if isinstance(each, BitLinear)]
            given = [each for linear in linears for each in linear.sources]
            if self.keeps(given):
                codes, scales, bias = self.kept.get(given, lambda: _codes_and_bias(linears))
                return project_codes(x, codes, scales, bias, limit)
        return project(modules, x, limit)

    def prepared(self) -> Callable[[Tensor], Tensor]:
        """The same as a function of ``x``, for loops over time: work on the weights, above all
        ternarising them, is done once. Results differ by float rounding."""
        modules = tuple(self.values())
        if _are(BitLinear, modules):
            weight, bias = _joined(modules)
            return keeps_precision(lambda x: F.linear(absmax_quantize(x), weight, bias))
        if _are(nn.Linear, modules):
            weight, bias = _joined(modules)
            return lambda x: F.linear(x, weight, bias)
        return lambda x: project(modules, x)


def project(
    projections: Iterable[nn.Module], x: Tensor, limit: float = math.inf,
) -> Tensor:
    """The output of :class:`Joint` for projections held elsewhere; saturates at ``±limit``."""
    modules = tuple(projections)
    if _are(BitLinear, modules):
        linears = [each for each in modules if isinstance(each, BitLinear)]
        gains = [each.gain for each in linears if each.gain is not None]
        return bit_linear(
            x, [each.weight for each in linears], _biases(linears), limit, gains or None)
    if _are(nn.Linear, modules):
        y = F.linear(x, *_joined(modules))
    else:
        y = torch.cat([each(x) for each in modules], dim=-1)
    return y if limit == math.inf else F.hardtanh(y, -limit, limit)


def _are(kind: type[nn.Module], modules: tuple[nn.Module, ...]) -> bool:
    """Whether calling the modules would just run the forward pass of ``kind``, and all or none have
    a bias, and likewise a gain."""
    # Torch has no public way to query hooks, per module or global: these private names are those
    # that nn.Module.__call__ checks. tests/test_joint.py adds a hook of every kind.
    return (len({(each.bias is None, getattr(each, "gain", None) is None)
                 for each in modules if isinstance(each, kind)}) == 1
            and not _has_any_global_hook()
            and all(type(each).forward is kind.forward and "forward" not in vars(each)
                    and not (each._forward_hooks or each._forward_pre_hooks
                             or each._backward_hooks or each._backward_pre_hooks)
                    for each in modules))


def _biases(modules: Iterable[nn.Module]) -> list[Tensor] | None:
    biases = [each.added if isinstance(each, BitLinear) else each.bias for each in modules]
    return [each for each in biases if isinstance(each, Tensor)] or None


def _codes_and_bias(modules: Iterable[BitLinear]) -> tuple[Tensor, Tensor, Tensor | None]:
    biases = _biases(modules)
    return (*codes_and_row_scale([each.latent for each in modules]),
            torch.cat(biases) if biases else None)


def _joined(modules: tuple[nn.Module, ...]) -> tuple[Tensor, Tensor | None]:
    """Concatenated weights (ternary ones dequantised) and biases of projections."""
    weights: list[Tensor] = []
    for each in modules:
        assert isinstance(each, BitLinear | nn.Linear)
        weights.append(ternarize(each.latent) if isinstance(each, BitLinear) else each.weight)
    biases = _biases(modules)
    return torch.cat(weights), torch.cat(biases) if biases else None


Projection: TypeAlias = BitLinear | nn.Linear
"""A ternary or float matrix, according to the weights of the model."""


@dataclass(frozen=True, slots=True)
class MixerInit:
    """Parameters of every mixer beside its options: ``d`` and ``dff``, the widths of the residual
    stream and of the hidden vector of a channel mixer, in channels.

    Projections are a ``BitLinear``, which normalises and quantises its input, or, if not
    ``ternary``, an ``nn.Linear``, which does neither. ``generator`` draws all initial weights.
    ``numerics`` is for values with an integer format; ignored without ``ternary``. The mixer
    belongs to ``layer`` of ``layers``; modules common to all layers are in ``shared``, by name,
    once one layer has made them.
    """

    d: int
    dff: int = 0
    ternary: bool = True
    generator: torch.Generator | None = None
    numerics: Numerics = S16_LIMITS
    layer: int = 0
    layers: int = 1
    shared: dict[str, nn.Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.ternary:
            object.__setattr__(self, "numerics", Numerics())

    def linear(
        self, columns: int, rows: int, *, bias: bool = True, residual: bool = False,
        output: str = "z",
    ) -> Projection:
        """A projection ``[..., columns]`` to ``[..., rows]``, pre-activations unless ``output``
        names another format. A ``residual`` one, added to the residual stream, is initialised to
        zero in float, so that a block starts as the identity. (Zero ternary weights would have no
        scale.)"""
        if self.ternary:
            return BitLinear(
                columns, rows, bias=bias, generator=self.generator,
                round_bias=partial(self.numerics.bias, output="x" if residual else output))
        linear = nn.utils.skip_init(nn.Linear, columns, rows, bias=bias)
        bound = 0.0 if residual else 1.0 / math.sqrt(columns)
        nn.init.uniform_(linear.weight, -bound, bound, generator=self.generator)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
        return linear

    def embedding(self, count: int) -> nn.Embedding:
        """Normal vectors of ``count`` tokens: deviation 1 in ternary models, 1/sqrt(d) in float
        ones, so that the output of blocks, initially zero, soon matters beside them."""
        std = 1.0 if self.ternary else self.d ** -0.5
        return nn.Embedding(count, self.d, _weight=torch.empty(count, self.d).normal_(
            0.0, std, generator=self.generator))

    def parameter(self, *shape: int, std: float = 0.02) -> nn.Parameter:
        """A trained tensor other than a projection, initially normal with deviation ``std``."""
        return nn.Parameter(torch.empty(shape).normal_(0.0, std, generator=self.generator))
