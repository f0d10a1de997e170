"""Random Synthesizer: an attention matrix that is trained, and the same for every text."""

from __future__ import annotations

import torch
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.fixed.positions import PositionMixer
from sterna.model.network.heads import head_count, merge_heads, split_heads
from sterna.model.network.mixer import State
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["RandomSynthesizer"]


@token_mixer("synthesizer_random")
class RandomSynthesizer(PositionMixer):
    """``softmax(R) V`` for each head (arXiv 2005.00743, section 3.2), ``R = R1 R2^T`` with a rank
    (section 3.3).

    R ``[length, length]`` is trained and is no function of the text, so the mixer is linear in V,
    and its softmax can be computed beforehand. Per token after n: 2 d^2 MACs, n d products, n d
    words of state (values).

    Parameters
    ----------
    length
        Most tokens of a sequence.
    heads
        Number of heads, each with an R of its own; 0 is one for every 32 channels.
    rank
        Columns of R1 and R2, ``[length, rank]``; 0 trains R itself.
    causal
        Whether a token sees earlier ones only.
    """

    def __init__(
        self, init: MixerInit, *, length: int = 256, heads: int = 0, rank: int = 0,
        causal: bool = True,
    ) -> None:
        super().__init__(length, causal, init.d)
        check_whole("rank", rank, 0, length)
        self.d, self.heads, self.rank = init.d, head_count(init.d, heads), rank
        if rank:
            # The products then have the same deviation as R.
            std = (0.02 / rank ** 0.5) ** 0.5
            self.left = init.parameter(self.heads, length, rank, std=std)
            self.right = init.parameter(self.heads, length, rank, std=std)
        else:
            self.full = init.parameter(self.heads, length, length)
        self.v = init.linear(init.d, init.d)
        self.out = init.linear(init.d, init.d, residual=True)

    def attention(self, time: int, total: int) -> Tensor:
        """The last ``time`` rows of the attention matrix of ``total`` tokens:
        ``[heads, time, total]``."""
        if self.rank:
            scores = self.left[:, total - time:total] @ self.right[:, :total].transpose(-1, -2)
        else:
            scores = self.full[:, total - time:total, :total]
        hidden = self.hidden(time, total, scores.device)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is the earlier values ``[batch, n, d]``."""
        values = self.extended(state[:1], self.v(x))
        weights = self.attention(x.shape[0], values.shape[1])
        mixed = weights @ split_heads(values.transpose(0, 1), self.heads)
        return self.out(merge_heads(mixed)), self.after(values)

    def products(self, length: int) -> int:
        """The weighted sum of the values."""
        return length * self.d
