"""BitLinear's product of codes, with the element-wise work after it inside.

With codes ``q`` of the activations and their factors ``r = 1 / rms(q)``, codes ``w`` and scales
``s`` of the weights::

    sums = q w^T              whole numbers, int8 to int32, exact
    out  = clamp(sums s r + bias)
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from sterna.model.torch.triton_kernels.kernel import Form, Kernel

__all__ = ["KERNELS", "product"]


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


def _forms(vectors: int, rows: int) -> tuple[Form, ...]:
    return tuple(Form({"VECTORS": vectors, "ROWS": rows, "COLUMNS": 128, "CLAMPED": clamped},
                      stages=3) for clamped in (False, True))


_FEW, _MANY = _forms(32, 64), _forms(64, 128)
"""Both without and with a limit."""
_PRODUCT = Kernel(
    _product, ("*i8", "*fp32", "*i8", "*fp32", "*fp32", "*fp32", "i32", "i32", "i32", "fp32"),
    (*_FEW, *_MANY))

KERNELS = (_PRODUCT,)
"""Every kernel of this file."""


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
    few = vectors <= _FEW[0].constants["VECTORS"]
    form = (_FEW if few else _MANY)[limit < math.inf]
    grid = (triton.cdiv(vectors, form.constants["VECTORS"]),
            triton.cdiv(rows, form.constants["ROWS"]))
    _PRODUCT.launch(grid, codes, inverses, weights, scales, bias, out, vectors, rows, columns,
                    float(limit), form=form)
    return out
