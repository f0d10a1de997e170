"""MLP-Mixer: a small network over positions, the same for every channel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.checks import check_whole
from sterna.model.mixers.fixed.positions import PositionMixer
from sterna.model.network.mixer import State
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["MLPMixer"]


@token_mixer("mlp_mixer")
class MLPMixer(PositionMixer):
    """``y = W2 gelu(W1 x + b1) + b2``, x being a channel over time (arXiv 2105.01601, equation 1,
    token mixing).

    W1 has ``expansion`` rows for each position. If causal, W1 and W2 are lower triangular: rows
    of a position see earlier positions only. Both stay float, as a ternary projection would
    normalise over time. Per token after n, with e = expansion: no MACs, 2 e n d products,
    (1 + e) n d words of state (inputs and hidden values).

    Parameters
    ----------
    length
        Most tokens of a sequence.
    expansion
        Hidden values for each position.
    causal
        Whether a token sees earlier ones only.
    """

    wants_norm = True

    def __init__(
        self, init: MixerInit, *, length: int = 256, expansion: int = 1, causal: bool = True,
    ) -> None:
        super().__init__(length, causal, init.d, expansion * init.d)
        check_whole("expansion", expansion, 1, 64)
        self.d, self.expansion = init.d, expansion
        std = length ** -0.5
        self.w1 = init.parameter(expansion, length, length, std=std)
        self.b1 = nn.Parameter(torch.zeros(expansion, length))
        self.w2 = init.parameter(expansion, length, length, std=std / expansion ** 0.5)
        self.b2 = nn.Parameter(torch.zeros(length))

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is the earlier inputs and hidden values, each
        ``[batch, n, ...]``, the hidden ones with ``expansion * d`` numbers for a token."""
        rows = self.extended(state[:1], x)
        time, total = x.shape[0], rows.shape[1]
        new = slice(total - time, total)
        inner = self.rows(self.w1, time, total) @ rows.unsqueeze(1)     # [batch, e, time, d]
        inner = F.gelu(inner + self.b1[:, new].unsqueeze(-1))
        hidden = self.extended(state[1:], inner.permute(2, 0, 1, 3).flatten(-2))
        by_row = hidden.unflatten(-1, (self.expansion, -1)).transpose(1, 2)
        mixed = (self.rows(self.w2, time, total) @ by_row).sum(1)       # [batch, time, d]
        y = (mixed + self.b2[new].unsqueeze(-1)).transpose(0, 1)
        return y, self.after(rows, hidden)

    def products(self, length: int) -> int:
        """The new rows of W1 and a row of W2."""
        return 2 * self.expansion * length * self.d
