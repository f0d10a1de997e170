"""What the integers of a quantised model lose against real numbers, tensor by tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sterna.export.float.reference import float_logits
from sterna.model.profile import FixedPoint
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder

__all__ = ["TensorError", "rounding_errors"]


@dataclass(frozen=True, slots=True)
class TensorError:
    """How far a tensor is from what real numbers give.

    Parameters
    ----------
    name
        Of the tensor, as the integer reference calls it: ``layer0.glu.x``.
    relative
        Root mean square of the difference, over that of the real values.
    saturated
        Fraction of the integers that are at a limit of their format.
    values
        How many were compared.
    """

    name: str
    relative: float
    saturated: float
    values: int


def rounding_errors(model: QuantizedModel, tokens: np.ndarray) -> list[TensorError]:
    """Run the integer reference and the float64 one beside it, and compare what both compute.

    Both have the same quantised weights, biases and embedding, and saturate alike; the float64
    one rounds no activation, and its norm, scales, sigmoid and state are real numbers. The
    errors of all layers before are in that of a tensor.

    Parameters
    ----------
    model
        The quantised model.
    tokens
        int64 ``[batch, length]``.

    Returns
    -------
    list of TensorError
        Of the state ``h``, the residual stream ``x`` after each half of a layer, and the
        product ``p`` of each layer, and of the logits; in the order in which they are computed.
    """
    formats = _formats(model)
    whole, real = TapRecorder(list(formats)), TapRecorder(list(formats))
    IntegerModel(model).run(tokens, tap=whole)
    float_logits(model, tokens, saturate=True, tap=real)
    return [_error(name, fmt, whole[name], real[name])
            for name, fmt in formats.items()]


def _formats(model: QuantizedModel) -> dict[str, FixedPoint]:
    profile = model.profile
    formats: dict[str, FixedPoint] = {}
    for layer in range(model.config.layers):
        at = f"layer{layer}"
        formats |= {f"{at}.mlgru.h": profile.h, f"{at}.mlgru.x": profile.x,
                    f"{at}.glu.p": profile.p, f"{at}.glu.x": profile.x}
    return {**formats, "logits": profile.logit}


def _error(name: str, fmt: FixedPoint, whole: np.ndarray, real: np.ndarray) -> TensorError:
    difference = whole * math.ldexp(1.0, -fmt.frac) - real
    size = float(np.sqrt(np.mean(np.square(real))))
    error = float(np.sqrt(np.mean(np.square(difference))))
    at_limit = (whole == fmt.min) | (whole == fmt.max)
    return TensorError(name, error / size if size else error, float(at_limit.mean()), whole.size)
