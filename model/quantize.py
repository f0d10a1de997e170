"""From the trained float model to the quantised one: the only place where floats become
integers, once, in the trainer's float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sterna.model.language_model import MatMulFreeLM
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantizers import ternary_codes

__all__ = ["quantize"]


def quantize(
    model: MatMulFreeLM, profile: NumericProfile, provenance: dict[str, Any] | None = None,
) -> QuantizedModel:
    """Quantise a trained model.

    Each matrix is ternarised by the same function, in the same float32, as in training.
    Its weight scale becomes a mantissa and a shift; the root of the fan-in and the 127 of
    the activations are folded in, so that no consumer ever computes a scale.

    Parameters
    ----------
    model
        The float model; its config becomes the file's.
    profile
        Formats of the integer model.
    provenance
        JSON-serialisable record of where the model comes from.

    Raises
    ------
    ValueError
        If a weight is not finite or a scale cannot be represented.
    """
    projections = {}
    for name, linear in model.named_projections().items():
        fmt = profile.output_format(name)
        codes, weight_scale = ternary_codes(linear.weight)
        columns = linear.weight.shape[1]
        real_scale = weight_scale * math.sqrt(columns) / 127 * 2.0 ** fmt.frac
        try:
            k, shift = profile.quantise_scale(real_scale)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        bias = np.zeros(codes.shape[0]) if linear.bias is None else _numpy(linear.bias)
        bias_format = FixedPoint(profile.bias_bits(name), fmt.frac)
        projections[name] = Projection(
            _numpy(codes).astype(np.int8),
            _to_fixed(f"{name}.bias", bias, bias_format), k, shift)
    return QuantizedModel(
        model.config, profile, projections,
        _to_fixed("embedding", _numpy(model.embedding.weight), profile.x),
        np.array(profile.sigmoid_table(), dtype=np.int32), provenance or {})


def _numpy(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().numpy())


def _to_fixed(name: str, values: np.ndarray, fmt: FixedPoint) -> np.ndarray:
    """Round half up to ``fmt``, saturating, as the clamp in training does."""
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: not every value is finite; the model did not converge")
    scaled = np.floor(values.astype(np.float64) * 2.0 ** fmt.frac + 0.5)
    return np.clip(scaled, fmt.min, fmt.max).astype(np.int32)
