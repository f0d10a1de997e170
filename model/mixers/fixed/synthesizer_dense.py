"""Dense Synthesizer: a token says by itself how much it wants of every position."""

from __future__ import annotations

import torch
from torch import Tensor

from sterna.model.mixers.fixed.positions import PositionMixer
from sterna.model.network.heads import head_count, merge_heads, split_heads
from sterna.model.network.mixer import State
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["DenseSynthesizer"]


@token_mixer("synthesizer_dense")
class DenseSynthesizer(PositionMixer):
    """``softmax(W2 relu(W1 x_i)) V`` for each head (arXiv 2005.00743, section 3.1).

    No query meets a key: a row of ``length`` scores is a function of its token alone, cut to the
    positions that it may see. Per token after n: 3 d^2 + d heads length MACs, n d products, n d
    words of state (values).

    Parameters
    ----------
    length
        Most tokens of a sequence.
    heads
        Number of heads; 0 is one for every 32 channels.
    causal
        Whether a token sees earlier ones only.
    """

    def __init__(
        self, init: MixerInit, *, length: int = 256, heads: int = 0, causal: bool = True,
    ) -> None:
        super().__init__(length, causal, init.d)
        self.d, self.heads = init.d, head_count(init.d, heads)
        self.inner = init.linear(init.d, init.d)
        self.scores = init.linear(init.d, self.heads * length)
        self.v = init.linear(init.d, init.d)
        self.out = init.linear(init.d, init.d, residual=True)

    def attention(self, x: Tensor, total: int) -> Tensor:
        """The rows of the attention matrix of ``x [time, batch, d]``, which are the last of
        ``total`` tokens: ``[batch, heads, time, total]``."""
        scores = split_heads(self.scores(self.inner(x).relu()), self.heads)[..., :total]
        hidden = self.hidden(x.shape[0], total, x.device)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is the earlier values ``[batch, n, d]``."""
        values = self.extended(state[:1], self.v(x))
        mixed = self.attention(x, values.shape[1]) @ split_heads(
            values.transpose(0, 1), self.heads)
        return self.out(merge_heads(mixed)), self.after(values)

    def products(self, length: int) -> int:
        """The weighted sum of the values."""
        return length * self.d
