"""The GLU channel mixer: two projections up, their gated product, one projection down."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sterna.model.mixers.channel.gated import GatedLinear
from sterna.model.network.registry import channel_mixer

__all__ = ["GLU"]


@channel_mixer("swiglu")
@channel_mixer("glu")
class GLU(GatedLinear):
    """``y = down(norm(silu(gate(n)) * up(n)))`` with ``n = norm(x)`` (SwiGLU, arXiv 2002.05202).

    The one with an integer form and gateware, under the name ``glu``; costs and limits are
    those of :class:`GatedLinear`.
    """

    def activate(self, gate: Tensor) -> Tensor:
        """SiLU, ``z * sigmoid(z)``."""
        return F.silu(gate)
