"""Conversion of torch modules to integer layers, in the trainer's float32; and composition of such
modules: in sequence, or inside a residual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from sterna.model.layers import (
    BitLinearLayer,
    GluLayer,
    InputLayer,
    Layer,
    MlgruLayer,
    ResidualLayer,
    SequentialLayer,
    TernaryMatrix,
)
from sterna.model.profile import S16, FixedPoint, NumericProfile, profile_of
from sterna.model.torch.mixers.channel import GLU
from sterna.model.torch.mixers.recurrent import MLGRU
from sterna.model.torch.network.bitlinear import BitLinear
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.network.numerics import S16_LIMITS, Numerics
from sterna.model.torch.network.quantizers import ternary_codes

__all__ = [
    "Input", "Residual", "States", "advance", "from_brevitas", "from_module", "initial_states",
    "ternary_matrix_of",
]

States: TypeAlias = tuple[State, ...]
"""The state of every token mixer inside a module, in the order of computation."""


class Input(nn.Module):
    """First layer of a sensor network: ``[..., channels]`` to ``[..., channels + 1]``.

    Each channel minus an offset, times a power of two, and a 1 after the channels; see
    :class:`~sterna.model.layers.InputLayer` for why. :meth:`fit` takes the constants from data.
    """

    offset: Tensor
    exponent: Tensor
    largest: Tensor

    def __init__(self, channels: int, numerics: Numerics = S16_LIMITS) -> None:
        super().__init__()
        self.numerics = numerics
        self.register_buffer("offset", torch.zeros(channels))
        self.register_buffer("exponent", torch.zeros(channels))
        self.register_buffer("largest", torch.full((channels,), 8.0))

    def fit(self, frames: Tensor) -> Input:
        """Set offset and exponent from the mean and the deviation of each channel of ``frames
        [..., channels]``, with room for twice their distance from the mean; return itself.

        Raises ValueError if frames have another length, there is none, or a number is not finite.
        """
        values = frames.detach().reshape(-1, frames.shape[-1]).double()
        if values.shape[1] != len(self.offset) or not len(values):
            raise ValueError(
                f"frames must be [..., {len(self.offset)}], one or more, got {list(frames.shape)}")
        if not values.isfinite().all():
            raise ValueError("frames must be finite numbers")
        mean, deviation = values.mean(dim=0), values.std(dim=0, correction=0)
        # A constant channel carries no information.
        deviation = torch.where(deviation > 0, deviation, 1)
        most = mean.abs() + 2 * (values - mean).abs().amax(dim=0)
        self.offset.copy_(mean)
        self.exponent.copy_(-deviation.log2().round())
        self.largest.copy_(torch.where(most > 0, most, 1))
        return self

    def forward(self, x: Tensor) -> Tensor:
        y = self.numerics.x((x - self.offset) * self.exponent.exp2())
        return torch.cat([y, torch.ones_like(y[..., :1])], dim=-1)


class Residual(nn.Module):
    """``y = x + inner(x)``, for ``[..., d]``, limited by ``numerics``; by default to ``x`` of
    profile S16."""

    def __init__(self, inner: nn.Module, numerics: Numerics = S16_LIMITS) -> None:
        super().__init__()
        self.inner, self.numerics = inner, numerics

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., d]`` to ``[..., d]``; with a token mixer inside, ``x`` is
        ``[time, batch, d]`` and starts from the initial state; :func:`advance` takes any state."""
        return advance(self, x, initial_states(self, x))[0]


def initial_states(module: nn.Module, x: Tensor) -> States:
    """The states at the start of a sequence ``x [time, batch, columns]``."""
    return tuple(each.initial_state(x) for each in _token_mixers(module))


def _token_mixers(module: nn.Module) -> list[TokenMixer]:
    """Every token mixer inside, repeated ones too, as each occurrence has a separate state."""
    if isinstance(module, TokenMixer):
        return [module]
    return [each for inner in module._modules.values() if inner is not None
            for each in _token_mixers(inner)]


def advance(module: nn.Module, x: Tensor, states: Sequence[State]) -> tuple[Tensor, States]:
    """Run a Sterna module, a :class:`Residual`, or an ``nn.Sequential`` of such: from ``x [time,
    batch, columns]`` and the states of every token mixer inside, from :func:`initial_states` or the
    previous call, to ``[time, batch, rows]`` and the states after the last token."""
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


def ternary_matrix_of(linear: BitLinear) -> TernaryMatrix:
    """The ternary matrix of a BitLinear with its scale and bias, made by the same function, in the
    same float32, as in training."""
    if not isinstance(linear, BitLinear):
        raise ValueError(f"expected a BitLinear, got a {type(linear).__name__}: its weights are "
                         f"not ternary")
    codes, scale = ternary_codes(linear.latent)
    if not np.isfinite(scale):
        raise ValueError("not every weight is finite; the model did not converge")
    return TernaryMatrix(
        codes.cpu().numpy(), scale,
        None if linear.bias is None else linear.bias.detach().cpu().double().numpy())


def from_module(
    module: nn.Module, *, profile: NumericProfile | str = S16, output: FixedPoint | None = None,
) -> Layer:
    """The integer layer of a ``BitLinear``, ``MLGRU``, ``GLU``, ``Residual``, or an
    ``nn.Sequential`` of such, nested at will; an ``Input`` may come first.

    ``profile`` has the numeric formats, or is their name. ``output`` is the format of the result,
    2 to 23 bits; None takes ``profile.z`` for a BitLinear at the end, and ``profile.x`` for the
    others. Vectors between layers have the format ``profile.x``.

    Raises ValueError if a module is none of these (the message names its position), shapes or
    formats do not fit each other, a weight is not finite or a scale cannot be represented.
    """
    return _layer(module, "the module", profile_of(profile), output)


def _layer(module: Any, at: str, profile: NumericProfile, output: FixedPoint | None) -> Layer:
    if isinstance(module, nn.Sequential):
        # Not named_children(), which skips repeated modules.
        children: list[tuple[str, Any]] = [*module._modules.items()]
        layers = [_layer(child, _inside(at, name), profile,
                         output if index + 1 == len(children) else profile.x)
                  for index, (name, child) in enumerate(children)]
        return _named(at, SequentialLayer, layers)
    if isinstance(module, Residual):
        if output not in (None, profile.x):
            raise ValueError(
                f"{at}: the output of a residual has the format {profile.x} of the residual "
                f"stream, got {output}")
        inner = _layer(module.inner, _inside(at, "inner"), profile, profile.x)
        return _named(at, ResidualLayer, inner)
    if isinstance(module, Input):
        return _named(at, InputLayer.of, *(_numpy(each) for each in (
            module.offset, module.exponent, module.largest)), profile=profile)
    make: Callable[..., Layer]
    linears: Sequence[Any]
    match module:
        case BitLinear():
            make, linears = BitLinearLayer.of, [module]
        case MLGRU():
            make, linears = MlgruLayer.of, [*module.fcg.values(), module.out]
        case GLU():
            make, linears = GluLayer.of, [*module.gate_up.values(), module.down]
        case _:
            raise ValueError(
                f"{at} is a {type(module).__name__}; there are layers for BitLinear, MLGRU, GLU, "
                f"Residual, Input and nn.Sequential")
    matrices = [_named(at, ternary_matrix_of, each) for each in linears]
    return _named(at, make, *matrices, profile=profile, output=output)


def _inside(at: str, name: str) -> str:
    """The position of a module, as torch names it: ``module 0.inner``."""
    return f"module {name}" if at == "the module" else f"{at}.{name}"


def _named(at: str, make: Any, *arguments: Any, **options: Any) -> Any:
    """Call ``make``, adding the position of the module to error messages."""
    try:
        return make(*arguments, **options)
    except ValueError as error:
        raise ValueError(f"{at}: {error}") from error


def from_brevitas(layer: Any) -> TernaryMatrix:
    """The ternary matrix of a ``brevitas.nn.QuantLinear``, with its scale and bias; its weight
    quantiser must be ternary with one scale for the matrix, as
    ``SignedTernaryWeightPerTensorConst``. Its input, output and bias quantisers are ignored:
    activations are quantised by Sterna."""
    name = type(layer).__name__
    if not (hasattr(layer, "quant_weight") and getattr(layer, "weight", None) is not None):
        raise ValueError(
            f"expected a brevitas.nn.QuantLinear with quantised weights, got a {name}")
    quantized = layer.quant_weight()
    if getattr(quantized, "scale", None) is None:
        raise ValueError(f"the weights of the {name} are not quantised")
    scales = _numpy(quantized.scale)
    if scales.size != 1:
        raise ValueError(
            f"one scale for the matrix is possible, got {scales.size} for the weights of the "
            f"{name}; take a quantiser per tensor")
    scale = scales.item()
    codes = np.rint(_numpy(quantized.value) / scale)
    bias = getattr(layer, "bias", None)
    return TernaryMatrix(codes, scale, None if bias is None else _numpy(bias))


def _numpy(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().double().numpy())
