"""Ternary matrices of Keras 3, as trained and saved by the package keras-matmulless."""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.model.layers.matrix import TernaryMatrix

__all__ = ["from_keras"]


def from_keras(layer: Any) -> TernaryMatrix:
    """The ternary matrix of a built ``keras_mml.layers.DenseMML``, trained or loaded from a file,
    with its scale and bias.

    The layer quantises it, with any Keras backend. Its norm and activation function are ignored.
    Raises ValueError for another layer or one not built.
    """
    name = type(layer).__name__
    kernel = getattr(layer, "_kernel", None)
    if kernel is None or not hasattr(layer, "_quantize_kernel"):
        raise ValueError(f"expected a keras_mml.layers.DenseMML that is built, got a {name}")
    scale = layer._kernel_scale     # set in a loaded layer, which holds codes
    if not scale:
        scale = layer._compute_kernel_scale(kernel)
        kernel = layer._quantize_kernel(kernel, scale)
    bias = None if layer._bias is None else _numpy(layer._bias)
    return TernaryMatrix(_numpy(kernel).T, 1 / float(_numpy(scale)), bias)


def _numpy(values: Any) -> np.ndarray:
    """Numbers of any backend; torch tensors may be on a GPU or part of a graph."""
    values = getattr(values, "value", values)
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, np.float64)
