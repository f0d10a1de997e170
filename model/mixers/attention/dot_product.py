"""Scaled dot-product attention over all earlier tokens, with heads and rotary positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.network.heads import head_count, merge_heads, rotate, split_heads
from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import MixerInit, project
from sterna.model.network.registry import token_mixer

__all__ = ["Attention"]


@token_mixer("attention")
class Attention(TokenMixer):
    """``softmax(s Q K^T) V`` for each head, then a projection (arXiv 1706.03762, equation 1).

    ``s = 1/sqrt(width of a head)``; Q, K and V are projections ``[time, d]`` cut into heads. Per
    token after n: 4 d^2 MACs, 2 n d products, 2 n d words of state (keys and values).

    Other forms of attention extend this class by saying which keys a query may see.

    Parameters
    ----------
    heads
        Number of heads; 0 is one for every 32 channels.
    causal
        Whether a token sees earlier ones only.
    rope
        Whether queries and keys are turned by their positions (:func:`rotate`).
    """

    def __init__(
        self, init: MixerInit, *, heads: int = 0, causal: bool = True, rope: bool = True,
    ) -> None:
        super().__init__()
        self.d, self.causal, self.rope = init.d, causal, rope
        self.heads = self.kv_heads = head_count(init.d, heads)
        self.width = init.d // self.heads
        self.make_projections(init)

    def make_projections(self, init: MixerInit) -> None:
        """Make the projections, when the numbers of heads are known."""
        self.q = init.linear(self.d, self.heads * self.width)
        self.k = init.linear(self.d, self.kv_heads * self.width)
        self.v = init.linear(self.d, self.kv_heads * self.width)
        self.out = init.linear(self.heads * self.width, self.d, residual=True)

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Which keys a query may see: bool ``[queries, keys]`` of their positions ``[n]``.

        None is all, or all earlier ones if causal.
        """
        return None

    def kept(self, keys: Tensor) -> Tensor:
        """The part of the keys (or values) ``[batch, heads, time, width]`` to be remembered."""
        return keys

    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Mix values ``[batch, kv_heads, keys, width]`` for queries ``[batch, heads, ...]``."""
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=self.heads != self.kv_heads)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is the earlier keys and values, each
        ``[batch, kv_heads, n, width]``, the keys not yet rotated."""
        parts = project((self.q, self.k, self.v), x).split(
            [self.heads * self.width, *2 * [self.kv_heads * self.width]], dim=-1)
        q, k, v = (split_heads(part, heads) for part, heads in zip(
            parts, (self.heads, self.kv_heads, self.kv_heads), strict=True))
        if self.causal:
            k, v = torch.cat([state[0], k], dim=2), torch.cat([state[1], v], dim=2)
            state = (self.kept(k), self.kept(v))
        # Positions among the keys at hand: only differences of positions matter.
        keys = torch.arange(k.shape[2], device=x.device)
        queries = keys[k.shape[2] - x.shape[0]:]
        mask = self.allowed(queries, keys)
        if mask is None and self.causal:
            mask = keys <= queries.unsqueeze(-1)
        if self.rope:
            q, k = rotate(q, queries), rotate(k, keys)
        return self.out(merge_heads(self.scores(q, k, v, mask))), state

    def initial_state(self, x: Tensor) -> State:
        """No keys and no values."""
        if not self.causal:
            return ()
        none = x.new_zeros(x.shape[-2], self.kv_heads, 0, self.width)
        return none, none.clone()

    def seen(self, length: int) -> int:
        """The keys that token number ``length`` sees, or any token if not causal."""
        return length

    def state_words(self, length: int) -> int:
        """Keys and values of all tokens."""
        return 2 * length * self.kv_heads * self.width if self.causal else 0

    def products(self, length: int) -> int:
        """Scores and the weighted sum; with RoPE four for each pair of query and of key."""
        turned = 2 * (self.heads + self.kv_heads) * self.width if self.rope else 0
        return 2 * self.seen(length) * self.heads * self.width + turned
