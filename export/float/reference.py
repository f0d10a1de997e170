"""What the form ``fast`` computes, in float64 NumPy: the values that its load test compares with,
and what the integers of a model lose against them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sterna.model.profile import FixedPoint
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import Tap, TapRecorder, ignore

__all__ = ["TensorError", "float_logits", "real_scale", "rounding_errors"]


_LEAST = 1e-12      # length of a vector of zeros


def real_scale(model: QuantizedModel, name: str) -> float:
    """What ``T y / |y|`` of a projection is multiplied with to give its real output:
    ``127 K / 2^(MK - MA + shift + F)``, with F the fraction bits of the output
    (docs/numerics.md)."""
    projection, profile = model.projections[name], model.profile
    exponent = (profile.mantissa_bits - profile.scale_bits + projection.shift
                + profile.output_format(name).frac)
    return math.ldexp(127 * projection.k, -exponent)


def float_logits(
    model: QuantizedModel, tokens: np.ndarray, *, saturate: bool, tap: Tap = ignore,
) -> np.ndarray:
    """Real logits float64 ``[batch, length, vocab]`` for tokens ``[batch, length]``.

    ``saturate`` where the model was trained to, which ``fast`` does not. ``tap`` is called with
    the state, the residual stream, the products and the logits of each token, under the names that
    the integer reference gives them.
    """
    profile, layers = model.profile, range(model.config.layers)
    weights_t = {name: projection.weight.T.astype(np.float64)
                 for name, projection in model.projections.items()}

    def clip(value: np.ndarray, fmt: FixedPoint) -> np.ndarray:
        unit = math.ldexp(1.0, -fmt.frac)
        return np.clip(value, fmt.min * unit, fmt.max * unit) if saturate else value

    def project(name: str, y: np.ndarray) -> np.ndarray:
        projection, frac = model.projections[name], profile.output_format(name).frac
        length = np.linalg.norm(y, axis=-1, keepdims=True)
        return (y / np.maximum(length, _LEAST) @ weights_t[name] * real_scale(model, name)
                + projection.bias * math.ldexp(1.0, -frac))

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1.0 / (1.0 + np.exp(-z))

    state = [np.zeros((len(tokens), model.config.d)) for _ in layers]
    rows = []
    for column in tokens.T:
        x = model.embedding[column] * math.ldexp(1.0, -profile.x.frac)
        for layer in layers:
            at = f"layer{layer}.mlgru"
            f, c, g = (clip(project(f"{at}.{gate}", x), profile.z) for gate in "fcg")
            f, c = sigmoid(f), c * sigmoid(c)
            state[layer] = c + f * (state[layer] - c)
            tap(f"{at}.h", state[layer])
            x = clip(x + project(f"{at}.out", sigmoid(g) * state[layer]), profile.x)
            tap(f"{at}.x", x)
            at = f"layer{layer}.glu"
            gate, up = (clip(project(f"{at}.{part}", x), profile.z) for part in ("gate", "up"))
            p = clip(gate * sigmoid(gate) * up, profile.p)
            tap(f"{at}.p", p)
            x = clip(x + project(f"{at}.down", p), profile.x)
            tap(f"{at}.x", x)
        rows.append(project("head", x))
        tap("logits", rows[-1])
    return np.stack(rows, axis=1)


@dataclass(frozen=True, slots=True)
class TensorError:
    """How far a tensor, called ``layer0.glu.x`` as in the integer reference, is from what real
    numbers give: the root mean square of the difference over that of the real values, the fraction
    of the integers that are at a limit of their format, and how many were compared."""

    name: str
    relative: float
    saturated: float
    values: int


def rounding_errors(model: QuantizedModel, tokens: np.ndarray) -> list[TensorError]:
    """Run the integer reference and the float64 one beside it on tokens ``[batch, length]``, and
    compare what both compute: of each layer the state ``h``, the residual stream ``x`` after each
    half and the product ``p``, and the logits; in the order in which they are computed.

    Both have the same quantised weights, biases and embedding, and saturate alike; the float64 one
    rounds no activation, and its norm, scales, sigmoid and state are real numbers. The errors of
    all layers before are in that of a tensor.
    """
    profile = model.profile
    of_layer = {"mlgru.h": profile.h, "mlgru.x": profile.x, "glu.p": profile.p, "glu.x": profile.x}
    formats = {f"layer{layer}.{name}": fmt for layer in range(model.config.layers)
               for name, fmt in of_layer.items()} | {"logits": profile.logit}
    whole, real = TapRecorder(list(formats)), TapRecorder(list(formats))
    IntegerModel(model).run(tokens, tap=whole)
    float_logits(model, tokens, saturate=True, tap=real)
    return [_error(name, fmt, whole[name], real[name])
            for name, fmt in formats.items()]


def _error(name: str, fmt: FixedPoint, whole: np.ndarray, real: np.ndarray) -> TensorError:
    difference = whole * math.ldexp(1.0, -fmt.frac) - real
    size = float(np.sqrt(np.mean(np.square(real))))
    error = float(np.sqrt(np.mean(np.square(difference))))
    at_limit = (whole == fmt.min) | (whole == fmt.max)
    return TensorError(name, error / size if size else error, float(at_limit.mean()), whole.size)
