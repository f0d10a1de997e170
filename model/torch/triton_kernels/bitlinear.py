"""BitLinear by kernels: quantise, multiply whole numbers, and the gradients of all of it.

The float products of the backward pass are torch's: faster than Triton's were, and they follow
torch's setting of precision.

The same function as ``bit_linear`` of ``model/torch/network/bitlinear.py``, whose naive twin is
``naive_bit_linear`` there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sterna.model.torch.triton_kernels.absmax import absmax_codes, absmax_gradient
from sterna.model.torch.triton_kernels.product import product
from sterna.model.torch.triton_kernels.ternary import ternary_codes

__all__ = ["bit_linear"]


class _BitLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scales: Sequence[Tensor], bias: Tensor | None, limit: float,
        *weights: Tensor,
    ) -> Tensor:
        codes, gains, inverses = absmax_codes(x.reshape(-1, x.shape[-1]))
        rows = [weight.shape[0] for weight in weights]
        ternary = ternary_codes(weights, scales)
        row_scales = torch.cat([scale.expand(count) for scale, count in zip(
            scales, rows, strict=True)])
        added = torch.zeros_like(row_scales) if bias is None else bias.contiguous()
        out = product(codes, inverses, ternary, row_scales, added, limit=limit)
        # Not a view: FSDP2 hangs its hooks on what modules return, and an operation in place on a
        # view would lose them.
        out = torch.ops.aten._unsafe_view(out, [*x.shape[:-1], out.shape[-1]])
        clamped = out if limit < math.inf else None
        ctx.save_for_backward(codes, gains, inverses, ternary, row_scales, clamped)
        ctx.limit, ctx.rows, ctx.has_bias = limit, rows, bias is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        codes, gains, inverses, ternary, row_scales, clamped = ctx.saved_tensors
        shape = grad.shape
        if clamped is not None:
            grad = torch.ops.aten.hardtanh_backward(grad, clamped, -ctx.limit, ctx.limit)
        grad = grad.reshape(len(codes), -1)
        to_bias = grad.sum(0) if ctx.has_bias else None
        with torch.autocast(grad.device.type, enabled=False):
            to_weights = grad.t() @ (codes * inverses[:, None])
            to_normalised = grad @ (ternary * row_scales[:, None])
        to_x = absmax_gradient(to_normalised, codes, gains, inverses)
        return to_x.view(*shape[:-1], -1), None, to_bias, None, *to_weights.split(ctx.rows)


def bit_linear(
    x: Tensor, weights: Sequence[Tensor], scales: Sequence[Tensor], bias: Tensor | None, *,
    limit: float = math.inf,
) -> Tensor:
    """Normalise and quantise ``x [..., columns]`` once, and project it with every weight.

    Parameters
    ----------
    x
        Float32 vectors, not normalised, on a GPU unless interpreted.
    weights
        Latent float32 matrices ``[rows, columns]``, one or several.
    scales
        The scale of each, float32 without dimensions.
    bias
        Float32 ``[rows of all]``, or None.
    limit
        Outputs saturate at plus and minus this, and saturated ones pass no gradient.

    Returns
    -------
    The outputs of all projections side by side, float32 ``[..., rows of all]``. Gradients pass
    straight through both quantisers.

    Raises
    ------
    ValueError
        If a vector is wider than the widest form.
    """
    result: Tensor = _BitLinear.apply(x, tuple(scales), bias, limit, *weights)
    return result
