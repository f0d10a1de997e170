"""The MLGRU token mixer: a gated recurrence without a matrix product on the state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.recurrence import mlgru_scan
from sterna.model.profile import S16

__all__ = ["MLGRU"]


class MLGRU(nn.Module):
    """``h = f*h + (1-f)*c``, ``y = out(norm(g*h))``.

    With ``n = norm(x)``: ``f = sigmoid(F n)``, ``c = silu(C n)``, ``g = sigmoid(G n)``.
    The three projections share one norm and quantisation, and are limited to the range
    of the profile's ``z`` format.
    """

    def __init__(self, d: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.f = BitLinear(d, d, generator=generator)
        self.c = BitLinear(d, d, generator=generator)
        self.g = BitLinear(d, d, generator=generator)
        self.out = BitLinear(d, d, generator=generator)
        assert self.f.bias is not None
        nn.init.constant_(self.f.bias, 1.0)  # forget slowly until told otherwise

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return forget gate, candidate and output gate of ``x [..., d]``, each ``[..., d]``."""
        z = BitLinear.joint((self.f, self.c, self.g), x, S16.z.limit)
        zf, zc, zg = z.chunk(3, dim=-1)
        return torch.sigmoid(zf), zc * torch.sigmoid(zc), torch.sigmoid(zg)

    def forward(self, x: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        """Map a sequence ``x [time, batch, d]`` from state ``initial [batch, d]``.

        Returns the output ``[time, batch, d]`` and the last state ``[batch, d]``.
        """
        f, c, g = self.gates(x)
        h = mlgru_scan(f, c, initial)
        return self.out(g * h), h[-1]

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Map one token ``x [batch, d]`` from state ``h [batch, d]``; as one step of forward."""
        f, c, g = self.gates(x)
        h = f * h + (1 - f) * c
        return self.out(g * h), h
