"""From real numbers to the integers of a projection."""

from __future__ import annotations

import math

import numpy as np

from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized.records import Projection

__all__ = ["bias_format", "check_bias", "quantize_projection", "to_fixed"]


def bias_format(output: FixedPoint) -> FixedPoint:
    """Format of a bias: one bit more than the output, so that a bias alone can saturate it.

    Raises ValueError if the output is not a format or does not have 2 to 23 bits.
    """
    if not isinstance(output, FixedPoint):
        raise ValueError(f"output must be a FixedPoint, got {output!r}")
    if output.bits > 23:
        raise ValueError(
            f"output must have 2 to 23 bits, got {output.bits}: a bias has one bit more, and a "
            f"format at most 24")
    return FixedPoint(output.bits + 1, output.frac)


def check_bias(name: str, bias: np.ndarray | None, output: FixedPoint) -> None:
    """Raise ValueError if a bias would be clipped to :func:`bias_format`."""
    wider = bias_format(output)
    if bias is None:
        return
    step = 2.0 ** -wider.frac
    low, high = (wider.min - 0.5) * step, (wider.max + 0.5) * step
    outside = np.flatnonzero((bias < low) | (bias >= high))
    if outside.size:
        raise ValueError(
            f"{name}: the bias of row {outside[0]} is {bias[outside[0]]:g}, and with results of "
            f"{output.bits} bits, {output.frac} of them behind the point, it may be from "
            f"{wider.min * step:g} to {wider.max * step:g}: give an output with more bits")


def to_fixed(name: str, values: np.ndarray, fmt: FixedPoint) -> np.ndarray:
    """Round half up to ``fmt``, saturating like the clamp in training; int32.

    Raises ValueError if a value is not finite; the message contains ``name``.
    """
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: not every value is finite; the model did not converge")
    scaled = np.floor(values.astype(np.float64) * 2.0 ** fmt.frac + 0.5)
    return np.clip(scaled, fmt.min, fmt.max).astype(np.int32)


def quantize_projection(
    name: str, codes: np.ndarray, scale: float, bias: np.ndarray | None,
    profile: NumericProfile, output: FixedPoint,
) -> Projection:
    """Quantise a ternary matrix behind a norm, with its scale and its bias.

    ``codes`` are integers ``[rows, columns]`` of -1, 0 and 1, ``scale`` is the value of code 1
    (the mean magnitude of a BitNet matrix, for example), ``bias`` real numbers ``[rows]`` or None.

    The scale becomes a mantissa and a shift; the root of the fan-in and the 127 of the
    activations are folded in, so that no consumer ever computes a scale. The bias has one bit more
    than ``output``, the format of the results.

    Raises ValueError if the scale cannot be represented, or a bias is not finite; the message
    begins with ``name``.
    """
    wider = bias_format(output)
    rows, columns = codes.shape
    real_scale = scale * math.sqrt(columns) / 127 * 2.0 ** output.frac
    try:
        k, shift = profile.quantize_scale(real_scale)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    bias = np.zeros(rows) if bias is None else bias
    return Projection(
        codes.astype(np.int8), to_fixed(f"{name}.bias", bias, wider), k, shift)
