"""Channel mixers without a gate: one projection up, a function, one projection down."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sterna.model.network.mixer import ChannelMixer
from sterna.model.network.projection import MixerInit, project
from sterna.model.network.registry import channel_mixer

__all__ = ["MLP", "ReLU2"]


class _FeedForward(ChannelMixer):
    """``y = down(a(up(x)))``: 2 d dff ternary MACs per token."""

    def __init__(self, init: MixerInit) -> None:
        super().__init__()
        self.dff, self.numerics = init.dff, init.numerics
        self.up = init.linear(init.d, init.dff)
        self.down = init.linear(init.dff, init.d, residual=True)

    def activate(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., d]`` to ``[..., d]``; every vector by itself."""
        z = self.numerics.z(project((self.up,), x, self.numerics.z_limit))
        return self.down(self.numerics.p(self.activate(z)))


@channel_mixer("mlp")
class MLP(_FeedForward):
    """``y = down(gelu(up(x)))``, the channel mixer of GPT-2 and BERT (GELU: arXiv 1606.08415).

    GELU is the exact one. Ternary: ``up`` is limited to the range of the profile's ``z`` format.
    Per token 2 d dff ternary MACs and no products.
    """

    def activate(self, hidden: Tensor) -> Tensor:
        """GELU, ``z * Phi(z)``."""
        return F.gelu(hidden)


@channel_mixer("relu2")
class ReLU2(_FeedForward):
    """``y = down(max(up(x), 0)^2)`` (Primer, arXiv 2109.08668, section 3).

    Needs no table in gateware. Ternary: ``up`` is limited to the range of the profile's ``z``
    format, the square to that of ``p``. Per token 2 d dff ternary MACs and dff products. With a
    gate beside it, as in BitNet b1.58 2B4T, it is ``relu2_glu``.
    """

    def activate(self, hidden: Tensor) -> Tensor:
        """The square of the positive part."""
        return F.relu(hidden).square()

    def products(self, length: int) -> int:
        """The squares."""
        return self.dff
