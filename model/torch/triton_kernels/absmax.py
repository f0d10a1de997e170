"""Norm and quantisation of activations in one kernel, and the gradient through both.

The equations are those of ``absmax_codes`` and ``absmax_gradient`` in
``model/torch/network/quantizers.py``: a vector is scaled so that its largest magnitude is 127,
rounded with halves to even, and divided by the root mean square of what came out. Codes are stored
as int8, a quarter of the bytes that float32 ones take until the backward pass.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from sterna.model.torch.triton_kernels.kernel import Form, Kernel
from sterna.model.torch.triton_kernels.limits import WIDEST_ROW

__all__ = ["KERNELS", "absmax_codes", "absmax_gradient", "absmax_quantize", "round_half_even"]

_SMALLEST_PEAK = tl.constexpr(1e-30)
_MOST = tl.constexpr(127.0)
_ROUNDER = tl.constexpr(12582912.0)   # 1.5 * 2^23, where float32 has steps of 1


@triton.jit
def round_half_even(z):
    """``z`` to a whole number, halves to even; the magnitude is at most 2^22."""
    return (z + _ROUNDER) - _ROUNDER


@triton.jit
def _absmax_forward(x, codes, gains, inverses, columns, root, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    at = row.to(tl.int64) * columns + column
    y = tl.load(x + at, mask=inside, other=0.0)
    peak = tl.max(tl.abs(y), 0)
    zero = peak < _SMALLEST_PEAK
    # 127 / peak as torch divides a constant by a tensor: by the reciprocal.
    gain = tl.where(zero, 0.0, tl.div_rn(1.0, tl.where(zero, 1.0, peak)) * _MOST)
    q = round_half_even(y * gain).to(tl.int8)
    whole = q.to(tl.int32)
    # As a whole number the sum is exact, for rows of up to 133,000 columns.
    norm = tl.sqrt_rn(tl.sum(whole * whole, 0).to(tl.float32))
    # 127 is always among the magnitudes, so only a zero vector is below the limit.
    inverse = tl.div_rn(1.0, tl.maximum(norm, _MOST)) * root
    tl.store(codes + at, q, mask=inside)
    tl.store(gains + row, gain)
    # A maximum passes over NaN and int8 has none: where x is not finite, nothing after it may be.
    tl.store(inverses + row, inverse + tl.sum(y * 0.0, 0))


@triton.jit
def _absmax_backward(grad, codes, gains, inverses, to_x, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    at = row.to(tl.int64) * columns + column
    g = tl.load(grad + at, mask=inside, other=0.0)
    inverse = tl.load(inverses + row)
    normalised = tl.load(codes + at, mask=inside, other=0).to(tl.float32) * inverse
    along = tl.div_rn(tl.sum(g * normalised, 0), tl.cast(columns, tl.float32))
    slope = tl.load(gains + row) * inverse
    tl.store(to_x + at, (g - normalised * along) * slope, mask=inside)


_FORMS = tuple(Form({"BLOCK": block}, warps=max(1, min(16, block // 512)))
               for block in (256, 1024, 4096, WIDEST_ROW))
_FORWARD = Kernel(
    _absmax_forward, ("*fp32", "*i8", "*fp32", "*fp32", "i32", "fp32"), _FORMS)
_BACKWARD = Kernel(
    _absmax_backward, ("*fp32", "*i8", "*fp32", "*fp32", "*fp32", "i32"), _FORMS)

KERNELS = (_FORWARD, _BACKWARD)
"""Every kernel of this file."""


def _form(columns: int) -> Form:
    """The smallest that holds a row."""
    for form in _FORMS:
        if columns <= form.constants["BLOCK"]:
            return form
    raise ValueError(f"columns ({columns}) must be at most {WIDEST_ROW} for the Triton kernels")


def absmax_codes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise each row of ``x``, float32 ``[rows, columns]``, on a GPU unless interpreted.

    Returns the codes -127 to 127, int8 ``[rows, columns]``; the gain ``127 / max|x|`` and
    ``1 / rms(code)``, float32 ``[rows]``. A zero vector has codes and gain 0; a row that is not
    finite has a second factor that is not. Raises ValueError if a row is wider than the widest
    form.
    """
    rows, columns = x.shape
    form = _form(columns)
    x = x.contiguous()
    codes = torch.empty_like(x, dtype=torch.int8)
    gains, inverses = x.new_empty(rows), x.new_empty(rows)
    _FORWARD.launch((rows,), x, codes, gains, inverses, columns, math.sqrt(columns), form=form)
    return codes, gains, inverses


def absmax_gradient(grad: Tensor, codes: Tensor, gains: Tensor, inverses: Tensor) -> Tensor:
    """The gradient of ``x [rows, columns]``, given that of ``codes / rms(codes)``.

    The other arguments are what :func:`absmax_codes` returned.
    """
    rows, columns = codes.shape
    to_x = torch.empty_like(codes, dtype=torch.float32)
    _BACKWARD.launch(
        (rows,), grad.contiguous(), codes, gains, inverses, to_x, columns, form=_form(columns))
    return to_x


class _AbsmaxQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        codes, gains, inverses = absmax_codes(x.reshape(-1, x.shape[-1]))
        ctx.save_for_backward(codes, gains, inverses)
        return (codes * inverses[:, None]).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        codes, gains, inverses = ctx.saved_tensors
        return absmax_gradient(
            grad.reshape(codes.shape), codes, gains, inverses).view(grad.shape)


def absmax_quantize(x: Tensor) -> Tensor:
    """Normalise and quantise ``x [..., columns]``, float32, to 8 bits per vector.

    Returns ``codes / rms(codes)``, whose gradient passes straight through the rounding.
    """
    result: Tensor = _AbsmaxQuantize.apply(x)
    return result
