"""Latent weights to ternary codes, in one pass over the matrix.

The scale is not computed here: it is a mean, which depends on the order of its sum in the last
bit, and a weight near a threshold must not fall on two sides. So torch computes it once for all,
``ternary_scale`` in ``model/torch/network/quantizers.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sterna.model.torch.triton_kernels.absmax import round_half_even
from sterna.model.torch.triton_kernels.kernel import Form, Kernel

__all__ = ["KERNELS", "ternary_codes"]


@triton.jit
def _ternary_codes(weight, scale, codes, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    w = tl.div_rn(tl.load(weight + at, mask=inside, other=0.0), tl.load(scale))
    # Limited first, which gives the same codes and keeps within the rounding's range.
    code = round_half_even(tl.minimum(tl.maximum(w, -1.0), 1.0))
    tl.store(codes + at, code.to(tl.int8), mask=inside)


_FORM = Form({"BLOCK": 1024})
_KERNEL = Kernel(_ternary_codes, ("*fp32", "*fp32", "*i8", "i32"), (_FORM,))

KERNELS = (_KERNEL,)
"""Every kernel of this file."""


def ternary_codes(weights: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """The codes ``rint(weight / scale)`` limited to -1, 0, +1, of all weights below each other.

    ``weights`` are float32 matrices ``[rows, columns]`` with the same columns, on a GPU unless
    interpreted, ``scales`` one of each, float32 without dimensions. Returns int8 ``[rows of all,
    columns]``.
    """
    rows = [weight.shape[0] for weight in weights]
    codes = weights[0].new_empty((sum(rows), weights[0].shape[1]), dtype=torch.int8)
    for weight, scale, part in zip(weights, scales, codes.split(rows), strict=True):
        programs = triton.cdiv(weight.numel(), _FORM.constants["BLOCK"])
        _KERNEL.launch((programs,), weight.detach().contiguous(), scale, part, weight.numel(),
                       form=_FORM)
    return codes
