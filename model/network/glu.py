"""The GLU channel mixer: two projections up, their gated product, one projection down."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.network.bitlinear import BitLinear
from sterna.model.profile import S16

__all__ = ["GLU"]


class GLU(nn.Module):
    """``y = down(norm(silu(gate(n)) * up(n)))`` with ``n = norm(x)``.

    Gate and up share one norm and quantisation and are limited to the range of the
    profile's ``z`` format, their product to that of ``p``.
    """

    def __init__(self, d: int, dff: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.gate = BitLinear(d, dff, generator=generator)
        self.up = BitLinear(d, dff, generator=generator)
        self.down = BitLinear(dff, d, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., d]`` to ``[..., d]``; every vector by itself."""
        z = BitLinear.joint((self.gate, self.up), x, S16.z.limit)
        gate, up = z.chunk(2, dim=-1)
        product = F.silu(gate) * up
        return self.down(F.hardtanh_(product, -S16.p.limit, S16.p.limit))
