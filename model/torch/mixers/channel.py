"""Channel mixers: each token by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.torch.network.dense_mml import activation_named, gained, make_dense
from sterna.model.torch.network.gates import gated_silu
from sterna.model.torch.network.mixer import ChannelMixer
from sterna.model.torch.network.projection import Joint, MixerInit, project
from sterna.model.torch.network.registry import channel_mixer

__all__ = ["GLU", "GLUMML", "MLP", "Bilinear", "GeGLU", "ReGLU", "ReLU2", "ReLU2GLU", "SeGLU",
           "SigmoidGLU"]


def _squared_relu(z: Tensor) -> Tensor:
    return F.relu(z).square()


class _Activated(ChannelMixer):
    """A channel mixer with a hidden vector of dff numbers, its activation by its classes."""

    activate: Callable[[Tensor], Tensor]
    each: ClassVar[int] = 1
    """Products for each hidden number."""

    def __init__(self, init: MixerInit) -> None:
        super().__init__()
        self.dff, self.numerics = init.dff, init.numerics

    def products(self, length: int) -> int:
        return self.each * self.dff


class GatedLinear(_Activated):
    """``y = down(a(gate(x)) * up(x))``, as :class:`GLU` says, with another activation ``a``."""

    def __init__(self, init: MixerInit) -> None:
        super().__init__(init)
        self.gate_up = Joint(gate=init.linear(init.d, init.dff), up=init.linear(init.d, init.dff))
        self.down: nn.Module = init.linear(init.dff, init.d, residual=True)

    def forward(self, x: Tensor) -> Tensor:
        z = self.numerics.z(self.gate_up(x, self.numerics.z_limit))
        y: Tensor = self.down(self.gated(z))
        return y

    def gated(self, z: Tensor) -> Tensor:
        """The hidden vector ``[..., dff]`` of pre-activations ``[gate | up] [..., 2 dff]``."""
        gate, up = z.chunk(2, dim=-1)
        return self.numerics.p(self.activate(gate) * up)


@channel_mixer("bilinear")
class Bilinear(GatedLinear):
    """``y = down(gate(x) * up(x))`` (arXiv 2002.05202, equation 4): no table is needed."""

    activate = staticmethod(activation_named("linear"))


@channel_mixer("sigmoid_glu")
class SigmoidGLU(GatedLinear):
    """``y = down(sigmoid(gate(x)) * up(x))``, the first GLU (arXiv 1612.08083, equation 1;
    2002.05202, 4)."""

    activate = staticmethod(torch.sigmoid)


@channel_mixer("reglu")
class ReGLU(GatedLinear):
    """``y = down(max(gate(x), 0) * up(x))`` (arXiv 2002.05202, equation 5): no table is needed."""

    activate = staticmethod(F.relu)


@channel_mixer("geglu")
class GeGLU(GatedLinear):
    """``y = down(gelu(gate(x)) * up(x))`` with the exact ``gelu(z) = z Phi(z)``, not the one by
    tanh (arXiv 2002.05202, equation 5)."""

    activate = staticmethod(F.gelu)


@channel_mixer("seglu")
class SeGLU(GatedLinear):
    """``y = down(selu(gate(x)) * up(x))`` with ``selu(z) = 1.0507 z``, or for negative z
    ``1.7581 (e^z - 1)`` (arXiv 1706.02515), which Keras-MML added to the family."""

    activate = staticmethod(F.selu)


@channel_mixer("relu2_glu")
class ReLU2GLU(GatedLinear):
    """``y = down(norm(max(gate(x), 0)^2 * up(x)))`` (BitNet b1.58 2B4T, arXiv 2504.12285; the gated
    form is that of its code): 2 dff products, no table is needed."""

    activate = staticmethod(_squared_relu)
    each = 2


@channel_mixer("swiglu")
@channel_mixer("glu")
class GLU(GatedLinear):
    """``y = down(norm(silu(gate(n)) * up(n)))`` with ``n = norm(x)`` (SwiGLU, arXiv 2002.05202).

    Gate and up share one norm and quantisation and are limited to the profile's ``z`` format, their
    product to ``p``. Per token: 3 d dff ternary MACs, dff products. In float there are no limits
    and no norm before ``down``. Other gated mixers have the same limits and costs unless stated.
    Only the name ``glu`` has an integer form and gateware; ``swiglu`` is the same for comparisons.

    - ``gains``: a trained gain in each norm, plus one more norm in front, as in published
      checkpoints. An integer form exists only without.
    - ``joint``: gate and up are one matrix with one scale.
    - ``bias``: whether projections have biases.
    """

    def __init__(
        self, init: MixerInit, *, gains: bool = False, joint: bool = False, bias: bool = True,
    ) -> None:
        super(GatedLinear, self).__init__(init)
        linear, self.norm = gained(init, gains)
        rows = {"both": 2 * init.dff} if joint else {"gate": init.dff, "up": init.dff}
        self.gate_up = Joint(**{
            name: linear(init.d, count, bias=bias) for name, count in rows.items()})
        self.down = linear(init.dff, init.d, bias=bias, residual=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))

    def gated(self, z: Tensor) -> Tensor:
        """SiLU and product as one function, which has a kernel."""
        return gated_silu(z, self.numerics)


class _FeedForward(_Activated):
    """``y = down(a(up(x)))``: 2 d dff ternary MACs per token."""

    def __init__(self, init: MixerInit) -> None:
        super().__init__(init)
        self.up = init.linear(init.d, init.dff)
        self.down = init.linear(init.dff, init.d, residual=True)

    def forward(self, x: Tensor) -> Tensor:
        z = self.numerics.z(project((self.up,), x, self.numerics.z_limit))
        return self.down(self.numerics.p(self.activate(z)))


@channel_mixer("mlp")
class MLP(_FeedForward):
    """``y = down(gelu(up(x)))``, the channel mixer of GPT-2 and BERT (GELU: arXiv 1606.08415).

    GELU is exact. Ternary: ``up`` is limited to the profile's ``z`` format. Per token 2 d dff
    ternary MACs and no products.
    """

    activate = staticmethod(F.gelu)
    each = 0


@channel_mixer("relu2")
class ReLU2(_FeedForward):
    """``y = down(max(up(x), 0)^2)`` (Primer, arXiv 2109.08668, section 3).

    Needs no table in gateware. Limits are those of ``mlp``; the square has that of ``p``. Per token
    2 d dff ternary MACs and dff products. With a gate it is ``relu2_glu``.
    """

    activate = staticmethod(_squared_relu)


@channel_mixer("glumml")
class GLUMML(ChannelMixer):
    """``y = down(a(g) * u)`` with ``[g | u] = kernel(x)`` (keras-matmulless 0.1.2, ``GLUMML``).

    Gate and up are **one** ``DenseMML`` of 2 dff rows, a ternary layer preceded by a norm with
    gain: they share one scale, and nothing is limited. Per token: 3 d dff ternary MACs, dff
    products. The package's family by activation: ``linear`` is its BilinearMML, ``relu`` ReGLUMML,
    ``gelu`` GeGLUMML, ``silu`` SwiGLUMML, ``selu`` SeGLUMML.

    - ``activation``: one of linear, sigmoid, tanh, relu, gelu, silu and selu.
    """

    def __init__(self, init: MixerInit, *, activation: str = "sigmoid") -> None:
        super().__init__()
        self.dff = init.dff
        self.activate = activation_named(activation)
        self.kernel = make_dense(init, init.d, 2 * init.dff)
        self.down = make_dense(init, init.dff, init.d, residual=True)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.kernel(x).chunk(2, dim=-1)
        return self.down(self.activate(gate) * up)

    def products(self, length: int) -> int:
        return self.dff
