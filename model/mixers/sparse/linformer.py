"""Linformer: attention to a fixed number of sums over all keys."""

from __future__ import annotations

from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.attention.dot_product import Attention
from sterna.model.network.mixer import State
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["Linformer"]


@token_mixer("linformer")
class Linformer(Attention):
    """``softmax(s Q (E K)^T) (F V)`` (arXiv 2006.04768, equation 7), heads as in attention.

    E and F ``[k, length]`` are trained floats, the same for all heads; a shorter sequence uses
    their first columns. Every sum is over the whole sequence, so it is not causal, and no exact
    causal form exists. Per token: 4 d^2 MACs, 4 k d products (2 k d for the sums, 2 k d for
    scores and weighting).

    Parameters
    ----------
    length
        Most tokens of a sequence.
    k
        Sums that a query sees in place of keys, at most ``length``; 0 is a quarter of it.
    shared
        Whether values are summed as keys are, F = E.
    heads
        Number of heads; 0 is one for every 32 channels.
    """

    def __init__(
        self, init: MixerInit, *, length: int = 256, k: int = 0, shared: bool = False,
        heads: int = 0,
    ) -> None:
        check_whole("length", length, 1)
        check_whole("k", k, 0, length)
        k = k or max(1, length // 4)
        super().__init__(init, heads=heads, causal=False)
        self.longest, self.sums = length, k
        # Keys of size 1 give sums of size 1.
        self.to_keys = init.parameter(k, length, std=length ** -0.5)
        self.to_values = self.to_keys if shared else init.parameter(k, length, std=length ** -0.5)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map the whole sequence ``x [time, batch, d]``."""
        self.check_length(x.shape[0])
        return super().forward(x, state)

    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Sum keys and values ``[batch, heads, time, width]``, then attend to the sums."""
        time = k.shape[2]
        return super().scores(
            q, self.to_keys[:, :time] @ k, self.to_values[:, :time] @ v, mask)

    def seen(self, length: int) -> int:
        """k, whatever the length."""
        return self.sums

    def products(self, length: int) -> int:
        """What attention to k keys needs, and a token's share in the sums of keys and values."""
        return super().products(length) + 2 * self.sums * self.heads * self.width
