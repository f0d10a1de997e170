"""What functions take for a layer: one, or the weights of one."""

from __future__ import annotations

from typing import TypeAlias

from sterna.model.layers.layer import BitLinearLayer, Layer
from sterna.model.layers.matrix import MatrixLayer
from sterna.model.layers.ternary import Ternary
from sterna.model.profile import S16, FixedPoint, NumericProfile

__all__ = ["LayerOrWeights", "layer_of", "matrix_layer_of"]

LayerOrWeights: TypeAlias = Layer | MatrixLayer | Ternary
"""What is taken for a layer: one, or the ternary matrix of a BitLinear."""


def layer_of(
    layer_or_weights: LayerOrWeights, *, profile: NumericProfile | str | None = None,
    output: FixedPoint | None = None,
) -> Layer | MatrixLayer:
    """The layer itself, or the BitLinear of weights in these formats.

    Raises
    ------
    ValueError
        If the weights are none, or formats are given for a layer, which has its own.
    """
    if not isinstance(layer_or_weights, Layer | MatrixLayer):
        return BitLinearLayer.of(
            layer_or_weights, profile=S16 if profile is None else profile, output=output)
    if output is not None or profile is not None:
        raise _own_formats(layer_or_weights)
    return layer_or_weights


def matrix_layer_of(
    weights: MatrixLayer | Ternary, output: FixedPoint | None = None,
) -> MatrixLayer:
    """The layer itself, or that of a ternary matrix with this output format.

    Raises
    ------
    ValueError
        As :meth:`MatrixLayer.of` does, or if a format is given for a layer, which has its own.
    """
    if not isinstance(weights, MatrixLayer):
        return MatrixLayer.of(weights, output)
    if output is not None:
        raise _own_formats(weights)
    return weights


def _own_formats(layer: Layer | MatrixLayer) -> ValueError:
    return ValueError(
        f"a {type(layer).__name__} has its own formats: profile and output go with weights")
