"""The computation of the form ``fast`` in float64 NumPy: the expected values of its load test, and
the rounding errors of a model's integers against them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sterna.model.profile import FixedPoint
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.real import Matrix, run_real
from sterna.model.quantized.taps import Tap, TapRecorder, ignore

__all__ = ["TensorError", "float_logits", "real_scale", "rounding_errors"]


def real_scale(model: QuantizedModel, name: str) -> float:
    """The factor from ``T y / |y|`` of a projection to its real output:
    ``127 K / 2^(MK - MA + shift + F)``, with F the fraction bits of the output
    (docs/numerics.md)."""
    projection, record = model.projections[name], model.projects[name]
    exponent = (record.combine_shift - record.scale_frac + projection.shift
                + record.output.frac)
    return math.ldexp(127 * projection.k, -exponent)


def float_logits(
    model: QuantizedModel, tokens: np.ndarray, *, saturate: bool, tap: Tap = ignore,
) -> np.ndarray:
    """Real logits float64 ``[batch, length, vocab]`` for tokens ``[batch, length]``.

    ``saturate`` clips values as in training, which ``fast`` does not. ``tap`` is called as by
    :func:`sterna.model.quantized.real.run_real`.
    """
    profile = model.profile

    def matrix(name: str) -> Matrix:
        weight = model.projections[name].weight
        return weight, real_scale(model, name) / math.sqrt(weight.shape[1])

    logits = run_real(
        model.records, tokens, np.ldexp(model.embedding, -profile.x.frac), matrix, {}, {}, tap,
        biases={name: np.ldexp(projection.bias, -model.projects[name].output.frac)
                for name, projection in model.projections.items()},
        quantises=False, saturates=saturate)
    assert logits is not None
    return logits


@dataclass(frozen=True, slots=True)
class TensorError:
    """The error of a tensor, named as in the integer reference (``layer0.glu.x``), against real
    numbers: the RMS of the difference over that of the real values, the fraction of integers at a
    limit of their format, and the number of compared values."""

    name: str
    relative: float
    saturated: float
    values: int


def rounding_errors(model: QuantizedModel, tokens: np.ndarray) -> list[TensorError]:
    """Run the integer and the float64 reference on tokens ``[batch, length]``, and compare their
    results: of each layer the state ``h``, the residual stream ``x`` after each half and the
    product ``p``, and the logits; in the order of computation.

    Both have the same quantised weights, biases and embedding, and saturate alike; the float64 one
    rounds no activation, and its norm, scales, sigmoid and state are real numbers. The error of a
    tensor includes those of all earlier layers.
    """
    profile = model.profile
    of_value = {"h": profile.h, "x": profile.x, "p": profile.p}
    formats = {name: of_value[value] for stage in model.stages
               for value, name in stage.values if value in of_value}
    whole, real = TapRecorder(list(formats)), TapRecorder(list(formats))
    integer_logits, _ = IntegerModel(model).run(tokens, tap=whole)
    logits = float_logits(model, tokens, saturate=True, tap=real)
    return [*(_error(name, fmt, whole[name], real[name][0].swapaxes(0, 1))
              for name, fmt in formats.items()),
            _error("logits", profile.logit, integer_logits, logits)]


def _error(name: str, fmt: FixedPoint, whole: np.ndarray, real: np.ndarray) -> TensorError:
    difference = whole * math.ldexp(1.0, -fmt.frac) - real
    size = float(np.sqrt(np.mean(np.square(real))))
    error = float(np.sqrt(np.mean(np.square(difference))))
    at_limit = (whole == fmt.min) | (whole == fmt.max)
    return TensorError(name, error / size if size else error, float(at_limit.mean()), whole.size)
