"""GLUMML, the gated linear unit of Keras-MML, with any activation."""

from __future__ import annotations

from torch import Tensor

from sterna.model.network.dense_mml import activation_named, make_dense
from sterna.model.network.mixer import ChannelMixer
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import channel_mixer

__all__ = ["GLUMML"]


@channel_mixer("glumml")
class GLUMML(ChannelMixer):
    """``y = down(a(g) * u)`` with ``[g | u] = kernel(x)`` (keras-matmulless 0.1.2, ``GLUMML``).

    Gate and up are **one** :class:`DenseMML` of 2 dff rows, a ternary layer with a norm and its
    gain in front: they share one scale, and nothing is limited. Per token: 3 d dff ternary MACs,
    dff products. The family of the package by activation: ``linear`` is its BilinearMML, ``relu``
    ReGLUMML, ``gelu`` GeGLUMML, ``silu`` SwiGLUMML, ``selu`` SeGLUMML.

    Parameters
    ----------
    activation
        One of linear, sigmoid, tanh, relu, gelu, silu and selu.
    """

    def __init__(self, init: MixerInit, *, activation: str = "sigmoid") -> None:
        super().__init__()
        self.dff = init.dff
        self.activate = activation_named(activation)
        self.kernel = make_dense(init, init.d, 2 * init.dff)
        self.down = make_dense(init, init.dff, init.d, residual=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., d]`` to ``[..., d]``; every vector by itself."""
        gate, up = self.kernel(x).chunk(2, dim=-1)
        return self.down(self.activate(gate) * up)

    def products(self, length: int) -> int:
        """Gate with up."""
        return self.dff
