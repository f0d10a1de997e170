"""The three matrix products of BitLinear, with the element-wise work around each inside it.

With codes ``q`` of the activations and their factors ``r = 1 / rms(q)``, codes ``w`` and scales
``s`` of the weights::

    sums = q w^T              whole numbers, int8 to int32, exact
    out  = clamp(sums s r + bias)
    grad = 0 where out is at the limit
    to_normalised = (grad s) w
    to_weight     = (grad r)^T q
    to_bias       = the sum of grad over the vectors

Every program writes its own tile and adds in a fixed order, so the same tensors give the same
bits.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from sterna.model.triton_kernels.kernel import Form, Kernel

__all__ = ["KERNELS", "input_gradient", "product", "weight_gradient"]


@triton.jit
def _product(
    codes, inverses, weights, scales, bias, out, vectors, rows, columns, limit,
    VECTORS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CLAMPED: tl.constexpr,
):
    vector = tl.program_id(0) * VECTORS + tl.arange(0, VECTORS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    known, wanted = vector < vectors, row < rows
    left = codes + vector.to(tl.int64)[:, None] * columns + column[None, :]
    right = weights + row.to(tl.int64)[None, :] * columns + column[:, None]
    sums = tl.zeros([VECTORS, ROWS], tl.int32)
    for start in range(0, columns, COLUMNS):
        inside = start + column < columns
        q = tl.load(left + start, mask=known[:, None] & inside[None, :], other=0)
        w = tl.load(right + start, mask=inside[:, None] & wanted[None, :], other=0)
        sums = tl.dot(q, w, sums, out_dtype=tl.int32)
    s = tl.load(scales + row, mask=wanted, other=0.0)
    r = tl.load(inverses + vector, mask=known, other=0.0)
    b = tl.load(bias + row, mask=wanted, other=0.0)
    y = sums.to(tl.float32) * s[None, :] * r[:, None] + b[None, :]
    if CLAMPED:   # comparisons, which leave NaN as it is
        y = tl.where(y > limit, limit, tl.where(y < -limit, -limit, y))
    at = vector.to(tl.int64)[:, None] * rows + row[None, :]
    tl.store(out + at, y, mask=known[:, None] & wanted[None, :])


@triton.jit
def _unsaturated(grad, out, at, inside, limit, CLAMPED: tl.constexpr):
    """The gradient of the outputs, 0 where they are at the limit."""
    g = tl.load(grad + at, mask=inside, other=0.0)
    if CLAMPED:
        y = tl.load(out + at, mask=inside, other=0.0)
        g = tl.where((y >= limit) | (y <= -limit), 0.0, g)
    return g


@triton.jit
def _input_gradient(
    grad, out, weights, scales, to_normalised, vectors, rows, columns, limit,
    VECTORS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CLAMPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    vector = tl.program_id(0) * VECTORS + tl.arange(0, VECTORS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known, wanted = vector < vectors, column < columns
    sums = tl.zeros([VECTORS, COLUMNS], tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = row < rows
        at = vector.to(tl.int64)[:, None] * rows + row[None, :]
        g = _unsaturated(grad, out, at, known[:, None] & inside[None, :], limit, CLAMPED)
        g *= tl.load(scales + row, mask=inside, other=0.0)[None, :]
        w = tl.load(weights + row.to(tl.int64)[:, None] * columns + column[None, :],
                    mask=inside[:, None] & wanted[None, :], other=0)
        sums = tl.dot(g, w.to(tl.float32), sums, input_precision=PRECISION)
    at = vector.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(to_normalised + at, sums, mask=known[:, None] & wanted[None, :])


@triton.jit
def _weight_gradient(
    grad, out, codes, inverses, to_weight, to_bias, vectors, rows, columns, limit,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, VECTORS: tl.constexpr, CLAMPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known, wanted = row < rows, column < columns
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_bias = tl.zeros([ROWS], tl.float32)
    for start in range(0, vectors, VECTORS):
        vector = start + tl.arange(0, VECTORS)
        inside = vector < vectors
        at = vector.to(tl.int64)[None, :] * rows + row[:, None]
        g = _unsaturated(grad, out, at, known[:, None] & inside[None, :], limit, CLAMPED)
        of_bias += tl.sum(g, 1)
        q = tl.load(codes + vector.to(tl.int64)[:, None] * columns + column[None, :],
                    mask=inside[:, None] & wanted[None, :], other=0)
        # Not with q: whole numbers up to 127 stay exact where TF32 is multiplied.
        g *= tl.load(inverses + vector, mask=inside, other=0.0)[None, :]
        sums = tl.dot(g, q.to(tl.float32), sums, input_precision=PRECISION)
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(to_weight + at, sums, mask=known[:, None] & wanted[None, :])
    if tl.program_id(1) == 0:
        tl.store(to_bias + row, of_bias, mask=known)


def _forms(tiles: dict[str, int], *, warps: int, precisions: tuple[str, ...] = ()) -> tuple[
        Form, ...]:
    choices = [{"PRECISION": name} for name in precisions] or [{}]
    # Outside the matrix units ("ieee") every thread keeps more of a tile in registers.
    return tuple(Form({**tiles, "CLAMPED": clamped, **choice}, stages=3,
                      warps=2 * warps if choice.get("PRECISION") == "ieee" else warps)
                 for clamped in (False, True) for choice in choices)


_FEW, _MANY = 32, 128
_PRECISIONS = ("ieee", "tf32")
_PRODUCT = Kernel(
    _product, ("*i8", "*fp32", "*i8", "*fp32", "*fp32", "*fp32", "i32", "i32", "i32", "fp32"),
    (*_forms({"VECTORS": _FEW, "ROWS": 64, "COLUMNS": 128}, warps=4),
     *_forms({"VECTORS": _MANY, "ROWS": 128, "COLUMNS": 64}, warps=8)))
_INPUT_GRADIENT = Kernel(
    _input_gradient, ("*fp32", "*fp32", "*i8", "*fp32", "*fp32", "i32", "i32", "i32", "fp32"),
    _forms({"VECTORS": 64, "COLUMNS": 64, "ROWS": 32}, warps=4, precisions=_PRECISIONS))
_WEIGHT_GRADIENT = Kernel(
    _weight_gradient,
    ("*fp32", "*fp32", "*i8", "*fp32", "*fp32", "*fp32", "i32", "i32", "i32", "fp32"),
    _forms({"ROWS": 64, "COLUMNS": 64, "VECTORS": 32}, warps=4, precisions=_PRECISIONS))

KERNELS = (_PRODUCT, _INPUT_GRADIENT, _WEIGHT_GRADIENT)
"""Every kernel of this file."""


def _pick(kernel: Kernel, **wanted: object) -> Form:
    return next(form for form in kernel.forms
                if all(form.constants[name] == value for name, value in wanted.items()))


def _precision() -> str:
    """As torch multiplies float32 matrices."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def product(
    codes: Tensor, inverses: Tensor, weights: Tensor, scales: Tensor, bias: Tensor, *,
    limit: float,
) -> Tensor:
    """The outputs of all vectors, float32 ``[vectors, rows]``, saturated at ``±limit``.

    ``codes`` int8 ``[vectors, columns]`` and ``inverses`` float32 ``[vectors]`` are of the
    activations, ``weights`` ternary codes, int8 ``[rows, columns]``, ``scales`` and ``bias``
    float32 ``[rows]``.
    """
    (vectors, columns), rows = codes.shape, len(weights)
    out = inverses.new_empty((vectors, rows))
    form = _pick(_PRODUCT, VECTORS=_FEW if vectors <= _FEW else _MANY, CLAMPED=limit < math.inf)
    _PRODUCT.launch(_grid(form, VECTORS=vectors, ROWS=rows), codes, inverses, weights, scales,
                    bias, out, vectors, rows, columns, float(limit), form=form)
    return out


def input_gradient(
    grad: Tensor, out: Tensor | None, weights: Tensor, scales: Tensor, *, limit: float,
) -> Tensor:
    """The gradient of the normalised activations, float32 ``[vectors, columns]``.

    ``grad`` is float32 ``[vectors, rows]``; ``out`` is what :func:`product` returned, or None
    without a limit; the others are as there.
    """
    (vectors, rows), columns = grad.shape, weights.shape[1]
    result = grad.new_empty((vectors, columns))
    form = _pick(_INPUT_GRADIENT, CLAMPED=out is not None, PRECISION=_precision())
    _INPUT_GRADIENT.launch(
        _grid(form, VECTORS=vectors, COLUMNS=columns), grad, grad if out is None else out, weights,
        scales, result, vectors, rows, columns, float(limit), form=form)
    return result


def weight_gradient(
    grad: Tensor, out: Tensor | None, codes: Tensor, inverses: Tensor, *, limit: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of the weights ``[rows, columns]`` and of the bias ``[rows]``, float32.

    Parameters as for :func:`input_gradient` and :func:`product`.
    """
    (vectors, rows), columns = grad.shape, codes.shape[1]
    to_weight, to_bias = grad.new_empty((rows, columns)), grad.new_empty(rows)
    form = _pick(_WEIGHT_GRADIENT, CLAMPED=out is not None, PRECISION=_precision())
    _WEIGHT_GRADIENT.launch(
        _grid(form, ROWS=rows, COLUMNS=columns), grad, grad if out is None else out, codes,
        inverses, to_weight, to_bias, vectors, rows, columns, float(limit), form=form)
    return to_weight, to_bias


def _grid(form: Form, **sizes: int) -> tuple[int, ...]:
    return tuple(triton.cdiv(size, form.constants[name]) for name, size in sizes.items())
