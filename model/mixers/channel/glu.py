"""The GLU channel mixer: two projections up, their gated product, one projection down."""

from __future__ import annotations

from torch import Tensor

from sterna.model.mixers.channel.gated import GatedLinear
from sterna.model.network.gates import gated_silu
from sterna.model.network.registry import channel_mixer

__all__ = ["GLU"]


@channel_mixer("swiglu")
@channel_mixer("glu")
class GLU(GatedLinear):
    """``y = down(norm(silu(gate(n)) * up(n)))`` with ``n = norm(x)`` (SwiGLU, arXiv 2002.05202).

    Gate and up share one norm and quantisation and are limited to the range of the
    profile's ``z`` format, their product to that of ``p``. Per token: 3 d dff ternary MACs, dff
    products. In float there are no limits, and no norm before ``down``. Under the name ``glu`` a
    model has an integer form and gateware; ``swiglu`` is the same for comparisons.
    """

    def activate(self, gate: Tensor) -> Tensor:
        """SiLU, ``z * sigmoid(z)``."""
        return self.numerics.silu(gate)

    def gated(self, z: Tensor) -> Tensor:
        """The same as one function, which has a kernel."""
        return gated_silu(z, self.numerics)
