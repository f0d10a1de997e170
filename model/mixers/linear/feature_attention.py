"""What linear attention is beside its features: projections, heads, positions and sums."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from sterna.model.mixers.linear.sums import causal_by_sums, mixed_by_sums
from sterna.model.network.heads import head_count, merge_heads, rotate, split_heads
from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import Joint, MixerInit

__all__ = ["FeatureAttention"]


class FeatureAttention(TokenMixer):
    """``y_i = phi(q_i) sum_j phi(k_j)^T v_j / (phi(q_i) sum_j phi(k_j) + 1e-6)`` for each head.

    Per token, with m features of a head of width d / heads: 4 d^2 MACs, 2 m d + m heads products,
    m d + m heads words of state whatever the length, and one that counts the tokens if there are
    rotary positions, which take 4 d products.

    A form of linear attention extends this class by saying what phi is. Options as
    :class:`~sterna.model.mixers.linear.elu.LinearAttention` has them.
    """

    def __init__(
        self, init: MixerInit, *, heads: int = 0, causal: bool = True, rope: bool = True,
    ) -> None:
        super().__init__()
        self.d, self.causal, self.rope = init.d, causal, rope
        self.heads = head_count(init.d, heads)
        self.width = self.features = init.d // self.heads
        self.qkv = Joint(q=init.linear(init.d, init.d), k=init.linear(init.d, init.d),
                         v=init.linear(init.d, init.d))
        self.out = init.linear(init.d, init.d, residual=True)

    @abstractmethod
    def of_queries(self, q: Tensor) -> Tensor:
        """phi of queries ``[..., width]``, not negative: ``[..., features]``; each may be scaled by
        a factor of its own, which cancels."""

    def of_keys(self, k: Tensor) -> Tensor:
        """phi of keys, by default the same."""
        return self.of_queries(k)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; the state is the sum of ``phi(k)^T v``
        ``[batch, heads, features, width]``, that of ``phi(k)`` ``[batch, heads, features]``, and
        with positions the number of tokens so far ``[batch, 1]``."""
        q, k, v = (split_heads(part, self.heads)
                   for part in self.qkv(x).chunk(3, dim=-1))
        count: State = ()
        if self.rope:
            positions = torch.arange(x.shape[0], device=x.device)
            if self.causal:
                positions = positions + state[2]        # [batch, time]
                count = (state[2] + x.shape[0],)
            q, k = rotate(torch.stack([q, k]), positions.unsqueeze(-2)).unbind()
        q, k = self.of_queries(q), self.of_keys(k)
        if not self.causal:
            return self.out(merge_heads(mixed_by_sums(q, k, v))), ()
        y, values, keys = causal_by_sums(q, k, v, state[0], state[1])
        return self.out(merge_heads(y)), (values, keys, *count)

    def initial_state(self, x: Tensor) -> State:
        """Zeros."""
        if not self.causal:
            return ()
        batch = x.shape[-2]
        count = (torch.zeros(batch, 1, dtype=torch.int64, device=x.device),) if self.rope else ()
        return (x.new_zeros(batch, self.heads, self.features, self.width),
                x.new_zeros(batch, self.heads, self.features), *count)

    def state_words(self, length: int) -> int:
        """Both sums, and the count of tokens; whatever the length."""
        if not self.causal:
            return 0
        return self.heads * self.features * (self.width + 1) + int(self.rope)

    def products(self, length: int) -> int:
        """Into the sums, out of them, and the sum of the scores; with RoPE four for each pair of
        query and of key."""
        return self.heads * self.features * (2 * self.width + 1) + 4 * self.d * self.rope
