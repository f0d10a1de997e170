"""Scaled dot-product attention over all earlier tokens, with heads and rotary positions."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.network.heads import head_count, merge_heads, rotate, split_heads
from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import Joint, MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["Attention"]


@token_mixer("attention")
class Attention(TokenMixer):
    """``softmax(s Q K^T) V`` for each head, then a projection (arXiv 1706.03762, equation 1).

    ``s = 1/sqrt(width of a head)``; Q, K and V are projections ``[time, d]`` cut into heads. Per
    token after n: 4 d^2 MACs, 2 n d products (with ``rope`` 4 d more), 2 n d words of state (keys
    and values). Other forms extend this class by saying which keys a query may see.

    Parameters
    ----------
    heads
        Number of heads; 0 is one for every 32 channels.
    causal
        Whether a token sees earlier ones only.
    rope
        Whether queries and keys are turned by their positions (:func:`rotate`).
    kv_heads
        For classes that extend this one: heads of keys and values, by default as many.
    """

    theta: float = 1e4
    """Base of the rotation; to be set for weights that were trained with another."""
    forgets: ClassVar[bool] = False
    """Whether :meth:`kept` drops keys. Positions are then those among the keys at hand, and keys
    are remembered as they were before they are turned."""

    def __init__(self, init: MixerInit, kv_heads: int | None = None, *, heads: int = 0,
                 causal: bool = True, rope: bool = True) -> None:
        super().__init__()
        self.d, self.causal, self.rope = init.d, causal, rope
        self.heads = head_count(init.d, heads)
        self.kv_heads = self.heads if kv_heads is None else kv_heads
        self.width = init.d // self.heads
        self.qkv = Joint(
            q=init.linear(self.d, self.heads * self.width),
            k=init.linear(self.d, self.kv_heads * self.width),
            v=init.linear(self.d, self.kv_heads * self.width))
        self.out = init.linear(self.heads * self.width, self.d, residual=True)

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Keys that queries may see, bool ``[queries, keys]``; None: all, if causal up to own."""
        return None

    def kept(self, keys: Tensor) -> Tensor:
        """The part of the keys (or values) ``[batch, heads, time, width]`` to be remembered."""
        return keys

    def turned(self, q: Tensor, k: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys ``[batch, heads, n, width]`` turned by their positions ``[n]``."""
        return rotate(q, queries, self.theta), rotate(k, keys, self.theta)

    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Mix values ``[batch, kv_heads, keys, width]`` for queries ``[batch, heads, ...]``.

        Without a mask one query sees every key; more are as many as the keys, and if causal each
        sees those up to its own.
        """
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None and self.causal and q.shape[2] > 1,
            scale=self.width ** -0.5, enable_gqa=self.heads != self.kv_heads)

    def heads_of(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys, values ``[batch, heads, time, width]`` of ``x [time, batch, d]``."""
        heads = [self.heads, self.kv_heads, self.kv_heads]
        return split_heads(self.qkv(x), sum(heads)).split(heads, dim=1)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is the earlier keys and values, each
        ``[batch, kv_heads, n, width]``, the keys turned unless the mixer forgets some."""
        q, k, v = self.heads_of(x)
        before = state[0].shape[2] if self.causal else 0
        keys = torch.arange(before + x.shape[0], device=x.device)
        queries = keys[before:]
        if self.rope and not self.forgets:
            q, k = self.turned(q, k, queries, queries)
        if self.causal:
            k, v = torch.cat([state[0], k], dim=2), torch.cat([state[1], v], dim=2)
            state = (self.kept(k), self.kept(v))
            assert self.forgets or state[0].shape[2] == k.shape[2], "a class that forgets says so"
        if self.rope and self.forgets:
            q, k = self.turned(q, k, queries, keys)
        mask = self.allowed(queries, keys)
        if mask is None and self.causal and x.shape[0] > 1 and before:
            mask = keys <= queries.unsqueeze(-1)
        return self.out(merge_heads(self.scores(q, k, v, mask))), state

    def initial_state(self, x: Tensor) -> State:
        """No keys and no values."""
        none = x.new_zeros(x.shape[-2], self.kv_heads, 0, self.width)
        return (none, none.clone()) if self.causal else ()

    def seen(self, length: int) -> int:
        """Keys that token number ``length`` sees, or any token if not causal."""
        return length

    def state_words(self, length: int) -> int:
        """Keys and values of all tokens."""
        return 2 * length * self.kv_heads * self.width if self.causal else 0

    def products(self, length: int) -> int:
        """Scores and the weighted sum; with RoPE four for each pair of query and of key."""
        turned = 2 * (self.heads + self.kv_heads) * self.width if self.rope else 0
        return 2 * self.seen(length) * self.heads * self.width + turned
