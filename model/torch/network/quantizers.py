"""The two quantisers of a BitLinear, as functions with straight-through gradients.

Activations: the vector is scaled so that its largest magnitude is 127, rounded, and
divided by the root mean square *of the rounded vector*. Norm and quantisation are thus
one operation, without a gain or an epsilon.

Weights: one scale for the matrix, the mean magnitude, and a code -1, 0 or +1 for each
weight. :func:`ternary_codes_and_scale` is the only definition; the exporter calls it too
(through :func:`ternary_codes`), so that both round a weight near a threshold alike.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sterna.model.torch.network.autocast import keeps_precision
from sterna.model.torch.network.kernels import Replaceable

__all__ = ["SMALLEST_SCALE", "absmax_codes", "absmax_gradient", "absmax_quantize",
           "naive_absmax_quantize", "round_codes", "ternarize", "ternary_codes",
           "ternary_codes_and_scale", "ternary_scale"]

SMALLEST_SCALE = 1e-5
"""Lower limit of a matrix's scale, which keeps an all-zero matrix defined."""

_SMALLEST_PEAK = 1e-30
"""A vector whose largest magnitude is below this counts as zero."""


@Replaceable
def round_codes(scaled: Tensor) -> Tensor:
    """Codes of activations: ``scaled`` rounded in place, halves to even."""
    return scaled.round_()


def absmax_codes(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise ``y [..., n]`` to integers from -127 to 127 over the last dimension.

    Returns ``q = round(127 * y / max|y|) [..., n]``, the gain ``127 / max|y| [..., 1]`` and
    ``1 / rms(q) [..., 1]``, in the type of ``y``. The zero vector has ``q = 0`` and gain 0.
    """
    peak = y.abs().amax(-1, keepdim=True)
    gain = (127.0 / peak).masked_fill_(peak < _SMALLEST_PEAK, 0.0)
    q = round_codes(y * gain)
    # 127 is always among the magnitudes, so only a zero vector is below the limit.
    norm = torch.linalg.vector_norm(q, dim=-1, keepdim=True).clamp_min_(127.0)
    return q, gain, norm.reciprocal_().mul_(math.sqrt(y.shape[-1]))


def absmax_gradient(grad: Tensor, normalised: Tensor, slope: Tensor) -> Tensor:
    """Return the gradient of ``y``, given that of ``normalised = q / rms(q)``.

    Rounding passes gradients straight through and the maximum is held constant (which is sound, as
    the result does not depend on the scale of ``y``), so ``dq/dy`` is the gain. The rest is
    the derivative of the division, ``(grad - normalised * mean(grad * normalised)) / rms``;
    ``slope [..., 1]`` is the gain divided by the rms. Overwrites ``grad``.
    """
    along = (grad * normalised).mean(-1, keepdim=True)
    return grad.addcmul_(normalised, along, value=-1.0).mul_(slope)


class _AbsmaxQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        q, gain, inverse = absmax_codes(y)
        normalised = q.mul_(inverse)
        ctx.save_for_backward(normalised, gain.mul_(inverse))
        return normalised

    @staticmethod
    @keeps_precision
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return absmax_gradient(grad.clone(), *ctx.saved_tensors)


@keeps_precision
def absmax_quantize(y: Tensor) -> Tensor:
    """Normalise and quantise ``y [..., n]`` to 8 bits per vector; return ``q / rms(q)``.

    The root mean square of the result is 1; the zero vector gives zeros. Gradients pass
    straight through the rounding.
    """
    result: Tensor = _AbsmaxQuantize.apply(y)
    return result


def naive_absmax_quantize(y: Tensor) -> Tensor:
    """Reference version from elementary operations, with autograd's gradient."""
    peak = y.detach().abs().amax(-1, keepdim=True)
    scaled = torch.where(peak < _SMALLEST_PEAK, torch.zeros_like(y), y * (127.0 / peak))
    q = scaled + (scaled.round() - scaled).detach()
    return q / torch.linalg.vector_norm(q, dim=-1, keepdim=True).clamp_min(127.0) * (
        y.shape[-1] ** 0.5)


def ternary_scale(weight: Tensor) -> Tensor:
    """The scale of a matrix ``[rows, columns]``, float32 without dimensions, without gradients:
    ``max(mean|weight|, 1e-5)``."""
    # Rows first: the same sum whatever the number of threads.
    return weight.detach().float().abs().mean(dim=1).mean().clamp_min_(SMALLEST_SCALE)


def ternary_codes_and_scale(
    weight: Tensor, scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The codes ``[rows, columns]`` -1, 0, +1, and the scale, without dimensions, of a matrix; in
    float32, without gradients.

    ``s`` is that of :func:`ternary_scale`, or the given one for some rows of a matrix, and the
    code is ``rint(weight / s)`` limited to ±1, in float32 whatever the type of ``weight``.
    """
    if scale is None:
        scale = ternary_scale(weight)
    return (weight.detach().float() / scale).round_().clamp_(-1.0, 1.0), scale


class _Ternarize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        codes, scale = ternary_codes_and_scale(weight)
        return codes.mul_(scale).to(weight.dtype)

    @staticmethod
    @keeps_precision
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@keeps_precision
def ternarize(weight: Tensor) -> Tensor:
    """``weight [rows, columns]`` with every element one of ``-s, 0, +s``, codes times scale of
    :func:`ternary_codes_and_scale`; the gradient passes to the weight unchanged."""
    result: Tensor = _Ternarize.apply(weight)
    return result


def ternary_codes(weight: Tensor) -> tuple[Tensor, float]:
    """The codes of ``weight`` as int8 ``[rows, columns]``, and ``s``, exactly as in training, for
    the quantised model file."""
    codes, scale = ternary_codes_and_scale(weight)
    return codes.to(torch.int8), float(scale)
