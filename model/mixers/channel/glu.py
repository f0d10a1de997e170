"""The GLU channel mixer: two projections up, their gated product, one projection down."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sterna.model.network.mixer import ChannelMixer
from sterna.model.network.projection import MixerInit, project
from sterna.model.network.registry import channel_mixer
from sterna.model.profile import S16

__all__ = ["GLU"]


@channel_mixer("glu")
class GLU(ChannelMixer):
    """``y = down(norm(silu(gate(n)) * up(n)))`` with ``n = norm(x)`` (SwiGLU, arXiv 2002.05202).

    Gate and up share one norm and quantisation and are limited to the range of the
    profile's ``z`` format, their product to that of ``p``. Per token: 3 d dff ternary MACs, dff
    products. In float there are no limits, and no norm before ``down``.
    """

    def __init__(self, init: MixerInit) -> None:
        super().__init__()
        self.dff = init.dff
        self.gate = init.linear(init.d, init.dff)
        self.up = init.linear(init.d, init.dff)
        self.down = init.linear(init.dff, init.d, residual=True)
        self.limit = S16.p.limit if init.ternary else float("inf")

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., d]`` to ``[..., d]``; every vector by itself."""
        z = project((self.gate, self.up), x, S16.z.limit)
        gate, up = z.chunk(2, dim=-1)
        product = F.silu(gate) * up
        return self.down(F.hardtanh_(product, -self.limit, self.limit))

    def products(self, length: int) -> int:
        """Gate with up."""
        return self.dff
