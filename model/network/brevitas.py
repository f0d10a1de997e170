"""Ternary weights that Brevitas trained.

Needs the extra ``brevitas``; nothing of that package is imported here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.model.layers import TernaryMatrix

__all__ = ["from_brevitas"]


def from_brevitas(layer: Any) -> TernaryMatrix:
    """The ternary matrix of a Brevitas layer, with its scale and bias.

    Parameters
    ----------
    layer
        A ``brevitas.nn.QuantLinear`` with a ternary weight quantiser that has one scale for the
        matrix, ``SignedTernaryWeightPerTensorConst`` for example. Quantisers of its input,
        output and bias play no part: the activations are Sterna's.

    Raises
    ------
    ValueError
        If the layer has no weight quantiser, its weights are not ternary, or it has a scale
        for each row.
    """
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
