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
from sterna.model.quantized.records import (
    Energy,
    Norm,
    Project,
    Quantize,
    Root,
    Scale,
    Sigmoid,
)
from sterna.model.quantized.taps import Tap, TapRecorder, ignore

__all__ = ["RealNumbers", "TensorError", "float_logits", "rounding_errors"]


@dataclass(frozen=True)
class RealNumbers:
    """The real numbers that the integers of a model stand for, by the name of their record.

    ``frac`` are the fraction bits of values. ``scales`` of projections are the factors from
    ``T x / root`` to the real output, with the real input x of the norm and the root of a sum of
    squares. ``vectors`` are those of each :class:`Scale`; ``constants`` what a :class:`Root` adds
    to that sum, and what an :class:`Energy` multiplies its own sum by.

    After a :class:`Norm`, ``q / sqrt(S)`` of the integers is ``x / |x|``, so the scale of a
    projection is ``127 K / 2^(MK - MA + shift + F)``, with F the fraction bits of the output
    (docs/numerics.md). A :class:`Quantize` has other units: those of its input over its root's.
    """

    frac: dict[str, int]
    scales: dict[str, float]
    vectors: dict[str, np.ndarray]
    constants: dict[str, float]

    @classmethod
    def of(cls, model: QuantizedModel) -> RealNumbers:
        """Of the records and the integers of ``model``."""
        frac: dict[str, int] = {}
        units: dict[str, int] = {}      # of activations, as an exponent of two
        energies: dict[str, float] = {}
        self = cls(frac, {}, {}, {})
        for record in model.records:
            match record:
                case Scale(name, x, _, shift, output):
                    self.vectors[name] = np.ldexp(
                        model.vectors[name].astype(np.float64), frac[x] - shift - output.frac)
                case Norm(name):
                    units[name] = record.scale_frac
                case Energy(name, x, _, mantissa, shift):
                    energies[name] = math.ldexp(mantissa, 2 * frac[x] - shift)
                case Root(name, x, _, root_frac, epsilon, extra):
                    units[name] = -frac[x] - root_frac
                    self.constants[name] = math.ldexp(epsilon, -2 * frac[x])
                    if extra:
                        self.constants[extra] = math.ldexp(energies[extra], -2 * frac[x])
                case Quantize(name, x, root):
                    units[name] = frac[x] + record.scale_shift + units[root]
                case Project(name, norm):
                    own = model.projections[name]
                    self.scales[name] = math.ldexp(
                        127 * own.k,
                        units[norm] - record.combine_shift - own.shift - record.output.frac)
            if isinstance(record, Sigmoid):
                frac[record.result] = record.frac
            elif not isinstance(record, Norm | Energy | Root | Quantize):
                frac[record.result] = record.output.frac
        return self


def float_logits(
    model: QuantizedModel, tokens: np.ndarray, *, saturate: bool, quantises: bool = False,
    tap: Tap = ignore,
) -> np.ndarray:
    """Real logits float64 ``[batch, length, vocab]`` for tokens ``[batch, length]``.

    ``saturate`` clips values as in training, which ``fast`` does not; ``quantises`` rounds the
    activations of a token to 8 bits. ``tap`` is called as by
    :func:`sterna.model.quantized.real.run_real`.
    """
    real = RealNumbers.of(model)
    widths = {each.name: each.width for each in model.records}

    def matrix(name: str) -> Matrix:
        weight = model.projections[name].weight
        return weight, real.scales[name] / math.sqrt(weight.shape[1])

    # Of mean squares, where these are of sums.
    constants = {name: value / widths[name] for name, value in real.constants.items()}
    for record in model.records:
        if isinstance(record, Root) and record.extra:
            constants[record.extra] = (
                real.constants[record.extra] * widths[record.extra] / record.width)
    logits = run_real(
        model.records, tokens, np.ldexp(model.embedding, -model.row.frac), matrix, real.vectors,
        constants, tap,
        biases={name: np.ldexp(projection.bias, -model.projects[name].output.frac)
                for name, projection in model.projections.items()},
        quantises=quantises, saturates=saturate)
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
