"""Gated linear units: what they share, and those with another activation than SiLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.network.mixer import ChannelMixer
from sterna.model.network.projection import Joint, MixerInit
from sterna.model.network.registry import channel_mixer

__all__ = ["Bilinear", "GatedLinear", "GeGLU", "ReGLU", "ReLU2GLU", "SeGLU", "SigmoidGLU"]


class GatedLinear(ChannelMixer):
    """``y = down(a(gate(x)) * up(x))`` (arXiv 2002.05202, equation 6), the activation ``a`` by
    the classes that extend it.

    Gate and up share one norm and quantisation and are limited to the range of the
    profile's ``z`` format, their product to that of ``p``. Per token: 3 d dff ternary MACs, dff
    products. In float there are no limits, and no norm before ``down``.
    """

    def __init__(self, init: MixerInit) -> None:
        super().__init__()
        self.dff, self.numerics = init.dff, init.numerics
        self.gate_up = Joint(gate=init.linear(init.d, init.dff), up=init.linear(init.d, init.dff))
        self.down = init.linear(init.dff, init.d, residual=True)

    def activate(self, gate: Tensor) -> Tensor:
        """The activation of the gate ``[..., dff]``, element by element."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., d]`` to ``[..., d]``; every vector by itself."""
        z = self.numerics.z(self.gate_up(x, self.numerics.z_limit))
        return self.down(self.gated(z))

    def gated(self, z: Tensor) -> Tensor:
        """The hidden vector ``[..., dff]`` of pre-activations ``[gate | up] [..., 2 dff]``."""
        gate, up = z.chunk(2, dim=-1)
        return self.numerics.p(self.activate(gate) * up)

    def products(self, length: int) -> int:
        """Gate with up."""
        return self.dff


@channel_mixer("bilinear")
class Bilinear(GatedLinear):
    """``y = down(gate(x) * up(x))`` (arXiv 2002.05202, equation 4).

    The GLU without an activation. Limits and costs are those of ``glu``; no table is needed.
    """

    def activate(self, gate: Tensor) -> Tensor:
        return gate


@channel_mixer("sigmoid_glu")
class SigmoidGLU(GatedLinear):
    """``y = down(sigmoid(gate(x)) * up(x))`` (arXiv 1612.08083, equation 1; 2002.05202, 4).

    The first GLU. Limits and costs are those of ``glu``.
    """

    def activate(self, gate: Tensor) -> Tensor:
        return torch.sigmoid(gate)


@channel_mixer("reglu")
class ReGLU(GatedLinear):
    """``y = down(max(gate(x), 0) * up(x))`` (arXiv 2002.05202, equation 5).

    Limits and costs are those of ``glu``; no table is needed.
    """

    def activate(self, gate: Tensor) -> Tensor:
        return F.relu(gate)


@channel_mixer("geglu")
class GeGLU(GatedLinear):
    """``y = down(gelu(gate(x)) * up(x))`` with ``gelu(z) = z Phi(z)`` (arXiv 2002.05202,
    equation 5).

    The exact GELU, not the one by tanh. Limits and costs are those of ``glu``.
    """

    def activate(self, gate: Tensor) -> Tensor:
        return F.gelu(gate)


@channel_mixer("seglu")
class SeGLU(GatedLinear):
    """``y = down(selu(gate(x)) * up(x))`` with ``selu(z) = 1.0507 z``, or for negative z
    ``1.7581 (e^z - 1)`` (arXiv 1706.02515).

    A member of the family that Keras-MML added. Limits and costs are those of ``glu``.
    """

    def activate(self, gate: Tensor) -> Tensor:
        return F.selu(gate)


@channel_mixer("relu2_glu")
class ReLU2GLU(GatedLinear):
    """``y = down(norm(max(gate(x), 0)^2 * up(x)))`` (BitNet b1.58 2B4T, arXiv 2504.12285).

    The gated form is that of its code. Limits are those of ``glu``; 2 dff products; no table is
    needed.
    """

    def activate(self, gate: Tensor) -> Tensor:
        return F.relu(gate).square()

    def products(self, length: int) -> int:
        """The square, and gate with up."""
        return 2 * self.dff
