"""Reformer attention: a query sees keys that a random hash puts near it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.mixers.sparse.lsh import attend_in_chunks, attend_to_newest, hash_buckets
from sterna.model.network.heads import head_count, merge_heads, rotate, split_heads
from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import Joint, MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["Reformer"]


@token_mixer("reformer")
class Reformer(TokenMixer):
    """Attention among tokens of like hash, queries and keys shared (arXiv 2001.04451, section 2).

    ``q = QK n``, turned by its position, ``k = q / |q|``; the hash of q is ``argmax [q R; -q R]``.
    Tokens are sorted by hash and cut into chunks; each sees its own chunk and the one before,
    itself only if there is no other; ``rounds`` such results are weighted by their sums of
    exponentials. R is drawn with the initial weights and stays, as does the number of buckets.

    Not causal by default: a later token moves the borders of the chunks, so under the paper's
    causal mask, too, what an earlier one sees depends on it, and no decoder can follow. The causal
    form here sees, in each round, the newest ``2 bucket`` tokens of the own hash. It is computed
    under a mask, with all products of the queries and keys at hand.

    Per token after n, c the bucket, r rounds: 3 d^2 MACs, r (buckets / 2 + 4 c) d products, fewer
    where a hash has fewer tokens; causal n (2 d + heads r) words of state: keys, values, hashes.

    Parameters
    ----------
    bucket
        Tokens of a chunk.
    buckets
        Values of the hash; even.
    rounds
        Hashes whose results are merged.
    causal
        Whether a token sees earlier ones only.
    heads
        Number of heads; 0 is one for every 32 channels.
    """

    rotations: Tensor

    def __init__(
        self, init: MixerInit, *, bucket: int = 32, buckets: int = 16, rounds: int = 2,
        causal: bool = False, heads: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("bucket", bucket), ("buckets", buckets), ("rounds", rounds)):
            check_whole(name, value, 1)
        if buckets % 2:
            raise ValueError(f"buckets must be even, got {buckets}")
        self.d, self.causal, self.heads = init.d, causal, head_count(init.d, heads)
        self.bucket, self.rounds = bucket, rounds
        self.qkv = Joint(qk=init.linear(init.d, init.d), v=init.linear(init.d, init.d))
        self.out = init.linear(init.d, init.d, residual=True)
        self.register_buffer("rotations", torch.empty(
            rounds, init.d // self.heads, buckets // 2).normal_(generator=init.generator))

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Map ``x [time, batch, d]``; if causal the state is the earlier keys and values
        ``[batch, heads, n, width]`` and their hashes ``[batch, rounds, heads, n]``."""
        parts = self.qkv(x).chunk(2, dim=-1)
        q, v = (split_heads(part, self.heads) for part in parts)
        before = state[0].shape[2] if self.causal else 0
        q = rotate(q, torch.arange(before, before + x.shape[0], device=x.device))
        hashes = hash_buckets(q, self.rotations)
        if not self.causal:
            return self.out(merge_heads(attend_in_chunks(q, v, hashes, self.bucket))), state
        k, v, hashes = (torch.cat(pair, dim=-2 if pair[0].is_floating_point() else -1)
                        for pair in zip(state, (F.normalize(q, dim=-1), v, hashes), strict=True))
        mixed = attend_to_newest(q, k, v, hashes, 2 * self.bucket)
        return self.out(merge_heads(mixed)), (k, v, hashes)

    def initial_state(self, x: Tensor) -> State:
        """No keys, no values and no hashes."""
        if not self.causal:
            return ()
        none = x.new_zeros(x.shape[-2], self.heads, 0, self.d // self.heads)
        hashes = x.new_zeros(x.shape[-2], self.rounds, self.heads, 0, dtype=torch.int64)
        return none, none.clone(), hashes

    def state_words(self, length: int) -> int:
        """Keys, values and hashes of all tokens."""
        return length * (2 * self.d + self.heads * self.rounds) if self.causal else 0

    def products(self, length: int) -> int:
        """Hashes, then scores and weighted sums of as many keys as there can be, and RoPE."""
        seen = min(length, 2 * self.bucket)
        hashing = self.rotations.shape[-1] * self.rounds
        return (hashing + 2 * seen * self.rounds + 2) * self.d
