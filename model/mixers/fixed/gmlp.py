"""gMLP: half of the channels gates the other half, with a sum over positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.mixers.fixed.positions import PositionMixer
from sterna.model.network.mixer import State
from sterna.model.network.projection import Joint, MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["GMLP"]


@token_mixer("gmlp")
class GMLP(PositionMixer):
    """``y = out(u * (W n(v) + b))``, ``u, v = gelu(U x), gelu(V x)``  (arXiv 2105.08050,
    equations 1 to 4, with d channels for u and v).

    n is a LayerNorm of each token. W ``[length, length]`` mixes tokens, the same for all
    channels; it starts near 0 and b at 1, so that the gate is open at first. It stays float: a
    ternary projection would normalise over time. If causal, W is lower triangular. Per token
    after n: 3 d^2 MACs, n d + d products, n d words of state.

    Parameters
    ----------
    length
        Most tokens of a sequence.
    causal
        Whether a token sees earlier ones only.
    """

    def __init__(self, init: MixerInit, *, length: int = 256, causal: bool = True) -> None:
        super().__init__(length, causal, init.d)
        self.d = init.d
        self.uv = Joint(u=init.linear(init.d, init.d), v=init.linear(init.d, init.d))
        self.norm = nn.LayerNorm(init.d)
        self.weight = init.parameter(length, length, std=1e-3 / length)
        self.bias = nn.Parameter(torch.ones(length))
        self.out = init.linear(init.d, init.d, residual=True)

    def gated(self, u: Tensor, rows: Tensor) -> Tensor:
        """``u * (W rows + b)``: ``u [time, batch, d]`` are the last of ``rows [batch, n, d]``."""
        time, total = u.shape[0], rows.shape[1]
        mixed = self.rows(self.weight, time, total) @ rows              # [batch, time, d]
        bias = self.bias[total - time:total].unsqueeze(-1)
        return u * (mixed + bias).transpose(0, 1)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is ``n(v)`` of earlier tokens
        ``[batch, n, d]``."""
        u, v = F.gelu(self.uv(x)).chunk(2, dim=-1)
        rows = self.extended(state[:1], self.norm(v))
        return self.out(self.gated(u, rows)), self.after(rows)

    def products(self, length: int) -> int:
        """A row of W with the tokens, and the gate."""
        return (length + 1) * self.d
