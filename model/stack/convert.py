"""From torch modules to layers of integers, once, in the trainer's float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import nn

from sterna.model.layers import (
    BitLinearLayer,
    GluLayer,
    Layer,
    MlgruLayer,
    ResidualLayer,
    SequentialLayer,
    TernaryMatrix,
)
from sterna.model.mixers.channel import GLU
from sterna.model.mixers.recurrent import MLGRU
from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.quantizers import ternary_codes
from sterna.model.profile import S16, FixedPoint, NumericProfile
from sterna.model.stack.compose import Residual

__all__ = ["from_module", "ternary_matrix_of"]


def ternary_matrix_of(linear: BitLinear) -> TernaryMatrix:
    """The ternary matrix that a BitLinear computes with, with its scale and bias.

    It is ternarised by the same function, in the same float32, as in training.

    Raises
    ------
    ValueError
        If a weight or a bias is not finite.
    """
    if not isinstance(linear, BitLinear):
        raise ValueError(f"expected a BitLinear, got a {type(linear).__name__}: its weights are "
                         f"not ternary")
    codes, scale = ternary_codes(linear.weight)
    if not np.isfinite(scale):
        raise ValueError("not every weight is finite; the model did not converge")
    return TernaryMatrix(
        codes.cpu().numpy(), scale,
        None if linear.bias is None else linear.bias.detach().cpu().double().numpy())


def from_module(
    module: nn.Module, *, profile: NumericProfile = S16, output: FixedPoint | None = None,
) -> Layer:
    """The layer of integers of a torch module.

    Parameters
    ----------
    module
        A ``BitLinear``, ``MLGRU``, ``GLU``, ``Residual``, or an ``nn.Sequential`` of such, one
        inside the other as you like.
    profile
        Numeric formats.
    output
        Format of the result, 2 to 23 bits. None takes that of pre-activations, ``profile.z``,
        for a BitLinear at the end, and that of the residual stream, ``profile.x``, for the
        others. Vectors between layers have the format ``profile.x``, which saturates at ±16.

    Raises
    ------
    ValueError
        If a module is none of these, which is named with its position, shapes or formats do
        not fit each other, a weight is not finite or a scale cannot be represented.
    """
    return _layer(module, "the module", profile, output)


def _layer(module: Any, at: str, profile: NumericProfile, output: FixedPoint | None) -> Layer:
    if isinstance(module, nn.Sequential):
        # Not named_children(), which leaves out a module that comes a second time.
        return _sequence([*module._modules.items()], at, profile, output)
    if isinstance(module, Residual):
        if output not in (None, profile.x):
            raise ValueError(
                f"{at}: the output of a residual has the format {profile.x} of the residual "
                f"stream, got {output}")
        inner = _layer(module.inner, _inside(at, "inner"), profile, profile.x)
        return _named(at, ResidualLayer, inner)
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
                f"Residual and nn.Sequential")
    matrices = [_named(at, ternary_matrix_of, each) for each in linears]
    return _named(at, make, *matrices, profile=profile, output=output)


def _sequence(
    children: list[tuple[str, nn.Module]], at: str, profile: NumericProfile,
    output: FixedPoint | None,
) -> Layer:
    layers = [
        _layer(child, _inside(at, name), profile,
               output if index + 1 == len(children) else profile.x)
        for index, (name, child) in enumerate(children)]
    return _named(at, SequentialLayer, layers)


def _inside(at: str, name: str) -> str:
    """Where a module stands, as torch names it.

    >>> _inside(_inside("the module", "0"), "inner")
    'module 0.inner'
    """
    return f"module {name}" if at == "the module" else f"{at}.{name}"


def _named(at: str, make: Any, *arguments: Any, **options: Any) -> Any:
    """Call, with the position of the module in the message of what does not fit."""
    try:
        return make(*arguments, **options)
    except ValueError as error:
        raise ValueError(f"{at}: {error}") from error
