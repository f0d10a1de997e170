"""Elementwise functions between two projections of a block.

Each is written with torch's operators, and has a kernel (:mod:`sterna.model.torch.network.kernels`)
that does it in one pass over memory: the separate operators take as long as a matrix product.
Kernels support real numbers and limits; with other numerics, such as rounding ones, torch computes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sterna.model.torch.network.kernels import Kernels, kernels_for
from sterna.model.torch.network.numerics import Limits, Numerics

__all__ = ["gated_scan", "gated_silu", "mlgru_gates", "residual_sum", "started"]


def _kernels(numerics: Numerics, *tensors: Tensor) -> Kernels | None:
    # A subclass of Limits may round where a kernel would not.
    return kernels_for(*tensors) if type(numerics) in (Numerics, Limits) else None


def mlgru_gates(z: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor, Tensor]:
    """Forget gate, candidate and output gate ``[..., d]`` of ``z [..., 3 d]`` (arXiv 2406.02528,
    equations 8, 9 and 11)."""
    zf, zc, zg = z.chunk(3, dim=-1)
    candidate = numerics.h(zc * numerics.sigmoid(zc))
    return numerics.sigmoid(zf), candidate, numerics.sigmoid(zg)


def gated_scan(
    z: Tensor, initial: Tensor, numerics: Numerics, starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """MLGRU from the pre-activations of its gates, ``z [time, batch, 3 d]`` in the order forget,
    candidate, output, to the input of its last projection, output gate times state
    ``[time, batch, d]``, and the state after the last step.

    ``initial`` is the state before the first step ``[batch, d]``. Before the steps of ``starts``,
    bool ``[time, batch, 1]``, the state is zero.
    """
    kernels = _kernels(numerics, z, initial)
    if kernels is not None and starts is None:
        return kernels.gated_scan(z, initial)
    forget, candidate, gate = mlgru_gates(z, numerics)
    forget, candidate = started(forget, candidate, starts)
    states = numerics.scan(forget, candidate, initial)
    return numerics.o(gate * states), states[-1].clone()   # not all of the states


def started(
    forget: Tensor, candidate: Tensor, starts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Forget gate and candidate that reset the state before the steps of ``starts``:
    ``h = f 0 + (1 - f) c``."""
    if starts is None:
        return forget, candidate
    return (forget.masked_fill(starts, 0.0),
            torch.where(starts, (1 - forget) * candidate, candidate))


def gated_silu(z: Tensor, numerics: Numerics) -> Tensor:
    """``p(silu(gate) * up) [..., dff]`` of ``z = [gate | up] [..., 2 dff]`` (arXiv 2002.05202)."""
    kernels = _kernels(numerics, z)
    if kernels is not None:
        limit = numerics.profile.p.limit if isinstance(numerics, Limits) else math.inf
        return kernels.gated_silu(z, limit)
    gate, up = z.chunk(2, dim=-1)
    return numerics.p(numerics.silu(gate) * up)


def residual_sum(x: Tensor, added: Tensor, numerics: Numerics) -> Tensor:
    """``x + added``, of equal shapes, as the residual stream of ``numerics``."""
    kernels = _kernels(numerics, x, added) if x.shape == added.shape else None
    if kernels is not None:
        limit = numerics.profile.x.limit if isinstance(numerics, Limits) else math.inf
        return kernels.limited_sum(x, added, limit)
    return numerics.x(x + added)
