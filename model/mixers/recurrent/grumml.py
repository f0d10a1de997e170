"""GRUMML and AttentionMML, the MLGRU of Keras-MML."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sterna.model.checks import check_whole
from sterna.model.network.dense_mml import activation_named, make_dense
from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import MixerInit
from sterna.model.network.recurrence import mlgru_scan
from sterna.model.network.registry import token_mixer

__all__ = ["GRUMML", "AttentionMML"]


@token_mixer("grumml")
class GRUMML(TokenMixer):
    """``h = f*h + (1-f)*c``, ``y = O(g*h)`` with biases (keras-matmulless 0.1.2, ``GRUMML``; the
    equations of arXiv 2406.02528, 8 to 13).

    ``f`` and ``g`` are the recurrent activation, ``c`` the activation, of the parts of one
    :class:`DenseMML`, a ternary layer with a norm and its gain in front. So, unlike in MLGRU, f, c
    and g share one ternary scale, norms have gains, no pre-activation is limited, and all biases
    start at zero. Per token: 4 d^2 MACs, 3 d products, d words of state; unless ``fully_mml``,
    2 d^2 of the MACs are multiplications of floats.

    Parameters
    ----------
    fully_mml
        Whether g and O are ternary too.
    heads
        Only reshapes an element-wise recurrence: no number depends on it. d must be a multiple.
    activation, recurrent_activation
        Each one of linear, sigmoid, tanh, relu, gelu, silu and selu.
    """

    def __init__(
        self, init: MixerInit, *, fully_mml: bool = False, heads: int = 1,
        activation: str = "silu", recurrent_activation: str = "sigmoid",
    ) -> None:
        super().__init__()
        check_whole("heads", heads, 1)
        if init.d % heads:
            raise ValueError(f"d ({init.d}) must be a multiple of heads ({heads})")
        d = self.d = init.d
        self.wants_norm = not fully_mml
        self.activation = activation_named(activation)
        self.recurrent_activation = activation_named(recurrent_activation)
        floats = replace(init, ternary=False)
        self.kernel = make_dense(init, d, 3 * d if fully_mml else 2 * d)
        self.g: nn.Module | None = None if fully_mml else make_dense(floats, d, d)
        self.out = make_dense(init if fully_mml else floats, d, d, residual=True)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return forget gate, candidate and output gate of ``x [..., d]``, each ``[..., d]``."""
        parts = self.kernel(x)
        if self.g is not None:
            parts = torch.cat([parts, self.g(x)], dim=-1)
        f, c, g = parts.chunk(3, dim=-1)
        return self.recurrent_activation(f), self.activation(c), self.recurrent_activation(g)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map a sequence ``x [time, batch, d]`` from the state ``[batch, d]``."""
        f, c, g = self.gates(x)
        h = mlgru_scan(f, c, state[0])
        return self.out(g * h), (h[-1].clone(),)   # not all of h

    def initial_state(self, x: Tensor) -> State:
        """Zeros ``[batch, d]``."""
        return (x.new_zeros(x.shape[-2], self.d),)

    def state_words(self, length: int) -> int:
        """d, whatever the length."""
        return self.d

    def products(self, length: int) -> int:
        """Forget gate with state, its complement with the candidate, output gate with state."""
        return 3 * self.d


@token_mixer("attentionmml")
class AttentionMML(GRUMML):
    """:class:`GRUMML` with SiLU and sigmoid, ternary throughout unless told otherwise
    (keras-matmulless 0.1.2, ``AttentionMML``): no attention, despite its name.

    With post-norm and the channel mixer ``glumml(activation=silu)`` a block is the package's
    ``TransformerBlockMML``, without its dropout.
    """

    def __init__(self, init: MixerInit, *, heads: int = 1, fully_mml: bool = True) -> None:
        super().__init__(init, fully_mml=fully_mml, heads=heads)
