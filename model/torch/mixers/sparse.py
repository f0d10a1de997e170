"""Attention over a part of the tokens, chosen by position or by content.

Under a pattern of positions a piece of several tokens is computed with all products of its queries
and the keys at hand; costs are those of the mechanism, of the keys that the pattern lets through.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.checks import check_whole, real_number
from sterna.model.torch.mixers.attention import (
    Attention,
    head_count,
    merge_heads,
    rotate,
    split_heads,
)
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.network.projection import Joint, MixerInit
from sterna.model.torch.network.registry import token_mixer

__all__ = ["BigBird", "Linformer", "Local", "Reformer", "Sinkhorn", "Strided", "hash_buckets",
           "sinkhorn_normalise"]

_LIMIT = 1 << 31
"""Of the numbers by which random blocks are drawn."""
_SELF = -5e4
"""Score of a token with itself: it is its own nearest, so it counts only if there is no other."""


@token_mixer("local")
class Local(Attention):
    """:class:`Attention` of a query in block b to the keys of blocks b - 1 and b up to its own.

    Blocks have ``block`` tokens (Image Transformer, arXiv 1802.05751, section 3.3). Not causal, a
    query sees all of blocks b - 1, b and b + 1. A band about each query, also called local, is the
    mixer ``window``.

    Per token, with block to 2 block keys: 2 d products per key and 2 d more to rotate it, as keys
    are kept unrotated; fewer than 4 block d words of state, halved where a block begins.
    """

    forgets = True

    def __init__(
        self, init: MixerInit, *, block: int = 32, causal: bool = True, heads: int = 0,
        rope: bool = True,
    ) -> None:
        check_whole("block", block, 1)
        super().__init__(init, heads=heads, causal=causal, rope=rope)
        self.block = block

    def pattern(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Neighbouring blocks. Whole blocks are forgotten, so blocks at hand begin where those of
        the text do."""
        back = (queries // self.block).unsqueeze(-1) - keys // self.block
        if not self.causal:
            return back.abs() <= 1
        return (back >= 0) & (back <= 1) & (keys <= queries.unsqueeze(-1))

    def kept(self, keys: Tensor) -> Tensor:
        """What there is of the block that the next token is in, and the one before.

        A copy: a slice would hold the memory of what it leaves out, and in an exported graph its
        strides would depend on whether it leaves out anything.
        """
        length = keys.shape[2]
        kept = length - self.block * max(0, length // self.block - 1)
        return keys.index_select(2, torch.arange(length, device=keys.device)[length - kept:])


@token_mixer("strided")
class Strided(Attention):
    """:class:`Attention` of query i to keys j with ``i - j < l`` or ``(i - j) mod l = 0``.

    Every head combines both parts of the factorised attention of Sparse Transformers (arXiv
    1904.10509, section 4.3), the paper's merged head (section 5.1), which also works for one head.
    Two layers reach every earlier token from any token.

    Per token after n: 2 (l + n / l) d products, least for l near the root of the length; 2 n d
    words of state, as every key is seen again.

    - ``stride``: the l above; 1 is full attention.
    """

    def __init__(
        self, init: MixerInit, *, stride: int = 32, heads: int = 0, rope: bool = True,
    ) -> None:
        check_whole("stride", stride, 1)
        super().__init__(init, heads=heads, rope=rope)
        self.stride = stride

    def pattern(self, queries: Tensor, keys: Tensor) -> Tensor:
        back = queries.unsqueeze(-1) - keys
        return (back >= 0) & ((back < self.stride) | (back % self.stride == 0))


@token_mixer("bigbird")
class BigBird(Attention):
    """:class:`Attention` over blocks of tokens (arXiv 2007.14062, section 2 and appendix D).

    A query sees its own block and both neighbours, the first and last block (global: their queries
    see everything), and ``random`` others; if causal, its own block up to itself, the one before,
    the first, and ``random`` earlier ones. The choice follows from a number drawn with the initial
    weights, the query's block and, if not causal, the number of blocks. All heads see the same.

    Per token, of block b: at most 2 (5 + random) b d products for a non-global query, 2 (3 +
    random) b d if causal; 2 n d words of state, as any block may be drawn later.

    - ``block``: tokens per block; the last may be shorter.
    - ``random``: blocks drawn per block of queries, or all others if fewer.
    """

    draw: Tensor

    def __init__(
        self, init: MixerInit, *, block: int = 16, random: int = 3, causal: bool = True,
        heads: int = 0,
    ) -> None:
        check_whole("block", block, 1)
        check_whole("random", random, 0)
        super().__init__(init, heads=heads, causal=causal)
        self.block, self.random = block, random
        self.register_buffer("draw", torch.randint(1 << 31, (), generator=init.generator))

    def pattern(self, queries: Tensor, keys: Tensor) -> Tensor:
        count = -(-keys.shape[0] // self.block)
        mask = self.blocks(queries // self.block, count)[:, keys // self.block]
        return mask & (keys <= queries.unsqueeze(-1)) if self.causal else mask

    def blocks(self, rows: Tensor, count: int) -> Tensor:
        """Bool ``[rows, count]``: which of ``count`` blocks the queries of blocks ``rows`` see."""
        row, column = rows.unsqueeze(-1), torch.arange(count, device=rows.device)
        if self.causal:
            always = (column == 0) | (column == row) | (column == row - 1)
            others = (column < row) & ~always
        else:
            ends = (column == 0) | (column == count - 1) | (row == 0) | (row == count - 1)
            always = ends | ((row - column).abs() <= 1)
            others = ~always
        lots = _lots(self.draw.to(rows.device), row, column)
        order = torch.where(others, lots, _LIMIT).argsort(dim=-1, stable=True)    # others first
        rank = order.argsort(dim=-1)
        return always | (others & (rank < self.random))


def _lots(draw: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Numbers below 2^31, mixed as by a hash of 32 bits: the same on every machine, for a block
    whatever the length of the text, and without a generator that would have to be kept."""
    x = draw
    for part in (row, column):
        x = (x ^ (part + 1)) & (_LIMIT - 1)
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            x = ((x ^ (x >> shift)) * factor) & (_LIMIT - 1)
        x = x ^ (x >> 15)
    return x


@token_mixer("linformer")
class Linformer(Attention):
    """``softmax(s Q (E K)^T) (F V)`` (arXiv 2006.04768, equation 7), heads as in attention.

    Queries and keys are rotated by position before the sums, unlike in the paper. E and F ``[k,
    length]`` are trained floats shared by all heads; a shorter sequence uses their first columns.
    Sums cover the whole sequence, so no exact causal form exists. Per token: 4 k d products (2 k d
    for the sums, 2 k d for scores and weighting).

    - ``k``: sums that replace the keys, at most ``length``; 0 is a quarter of it.
    - ``shared``: whether values share the keys' sums, F = E.
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
        self.check_length(x.shape[0])
        return super().forward(x, state)

    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Sum keys and values ``[batch, heads, time, width]``, then attend to the sums."""
        time = k.shape[2]
        return super().scores(
            q, self.to_keys[:, :time] @ k, self.to_values[:, :time] @ v, mask)

    def seen(self, length: int) -> int:
        return self.sums

    def products(self, length: int) -> int:
        """What attention to k keys needs, and a token's share in the sums of keys and values."""
        return super().products(length) + 2 * self.sums * self.heads * self.width


@token_mixer("sinkhorn")
class Sinkhorn(Attention):
    """Attention of block i to its own keys and to ``sum_j P_ij K_j`` (arXiv 2002.11296, section 3).

    ``P [blocks, blocks]`` approximates a permutation: ``exp(mean(Q_i) mean(K_j) / (tau
    sqrt(width)))`` with rows, then columns, scaled to sum to 1, ``iterations`` times. Means are
    over a block's tokens, before RoPE; so the sorting net has no weights of its own and no fixed
    number of blocks. A partial last block is padded with zeros, which its own queries do not see.
    Each head has its own order.

    Not causal: columns are normalised over all rows, so later blocks change earlier weights; and
    over earlier blocks alone P would be strictly triangular, without such sums. Per token, b tokens
    a block, n in all: (4 b + 2 n / b + n / b^2) d products.

    - ``tau``: temperature; P tends to a permutation as it falls to zero.
    """

    def __init__(
        self, init: MixerInit, *, block: int = 32, iterations: int = 8, tau: float = 0.75,
        heads: int = 0,
    ) -> None:
        check_whole("block", block, 1)
        check_whole("iterations", iterations, 1)
        if not real_number("tau", tau) > 0:
            raise ValueError(f"tau must be above 0, got {tau}")
        # Blocks are compared before their tokens are turned, so the turning is done below.
        super().__init__(init, heads=heads, causal=False, rope=False)
        self.block, self.iterations, self.tau = block, iterations, tau

    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Sort the blocks of keys and values ``[batch, heads, time, width]``, then attend."""
        time = k.shape[2]
        block = min(self.block, time)
        order = self.order(q, k, block)
        at = torch.arange(time, device=q.device)
        q, k, v = (_cut(each, block) for each in (rotate(q, at), rotate(k, at), v))
        matched = (torch.einsum("bhij,bhjpw->bhipw", order, each) for each in (k, v))
        keys, values = (torch.cat(pair, dim=3) for pair in zip(matched, (k, v), strict=True))
        real = (torch.arange(q.shape[2] * block, device=q.device) < time).view(-1, 1, block)
        mixed = F.scaled_dot_product_attention(
            q, keys, values, attn_mask=torch.cat([torch.ones_like(real), real], dim=-1))
        return mixed.flatten(2, 3)[:, :, :time]

    def order(self, q: Tensor, k: Tensor, block: int) -> Tensor:
        """The matrix P ``[batch, heads, blocks, blocks]``."""
        sizes = _cut(q.new_ones(q.shape[2], 1), block).sum(-2)
        q, k = (_cut(each, block).sum(-2) / sizes for each in (q, k))
        return sinkhorn_normalise(
            q @ k.transpose(-1, -2) / (self.tau * self.width ** 0.5), self.iterations)

    def products(self, length: int) -> int:
        """Scores and weighted sum over two blocks, both kinds of sorted blocks, the means' scores,
        and RoPE; the last block counted as full."""
        block = min(self.block, max(1, length))
        count = -(-length // block)
        sequence = count * block * 4 * block + 2 * count * count * block + count * count
        return (-(-sequence // max(1, length)) + 4) * self.heads * self.width


def sinkhorn_normalise(logits: Tensor, iterations: int) -> Tensor:
    """``exp(logits [..., n, n])`` scaled so that rows sum to 1, then columns, again and again, in
    logarithms (the paper's section 3.1.2). How nearly rows then sum to 1 is a matter of the
    iterations."""
    for _ in range(iterations):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits.exp()



@token_mixer("reformer")
class Reformer(TokenMixer):
    """Attention among tokens of like hash, queries and keys shared (arXiv 2001.04451, section 2).

    ``q = QK n``, rotated by position, ``k = q / |q|``; the hash of q is ``argmax [q R; -q R]``.
    Tokens are sorted by hash and cut into chunks; each sees its own chunk and the one before (the
    first sees the last), itself only if there is no other; ``rounds`` such results are weighted by
    their sums of exponentials. R is drawn with the initial weights and fixed, like the number of
    buckets. A key seen in several rounds counts each time; the paper divides by that number.

    Not causal by default: later tokens move chunk borders, so even under the paper's causal mask
    earlier ones depend on them, and no decoder can follow. The causal form sees, in each round, the
    newest ``2 bucket`` tokens of its own hash, computed under a mask from all products of the
    available queries and keys.

    Per token after n, c the bucket, r rounds: 3 d^2 MACs, r (buckets / 2 + 4 c) d products, fewer
    where a hash has fewer tokens; causal n (2 d + heads r) words of state: keys, values, hashes.

    - ``bucket``: tokens per chunk.
    - ``buckets``: hash values; even.
    - ``rounds``: hashes whose results are merged.
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
            return self.out(merge_heads(_attend_in_chunks(q, v, hashes, self.bucket))), state
        k, v, hashes = (torch.cat(pair, dim=-2 if pair[0].is_floating_point() else -1)
                        for pair in zip(state, (F.normalize(q, dim=-1), v, hashes), strict=True))
        mixed = _attend_to_newest(q, k, v, hashes, 2 * self.bucket)
        return self.out(merge_heads(mixed)), (k, v, hashes)

    def initial_state(self, x: Tensor) -> State:
        if not self.causal:
            return ()
        none = x.new_zeros(x.shape[-2], self.heads, 0, self.d // self.heads)
        hashes = x.new_zeros(x.shape[-2], self.rounds, self.heads, 0, dtype=torch.int64)
        return none, none.clone(), hashes

    def state_words(self, length: int) -> int:
        return length * (2 * self.d + self.heads * self.rounds) if self.causal else 0

    def products(self, length: int) -> int:
        """Hashes, then scores and weighted sums of as many keys as there can be, and RoPE."""
        seen = min(length, 2 * self.bucket)
        hashing = self.rotations.shape[-1] * self.rounds
        return (hashing + 2 * seen * self.rounds + 2) * self.d


def hash_buckets(x: Tensor, rotations: Tensor) -> Tensor:
    """The bucket of each vector, ``argmax [x R; -x R]``: ``x [batch, heads, n, width]`` and
    ``rotations [rounds, width, buckets / 2]`` to whole numbers ``[batch, rounds, heads, n]``. The
    smaller the angle between two vectors, the likelier they share one; their lengths do not matter.
    """
    turned = x.unsqueeze(1) @ rotations.unsqueeze(1)
    return torch.cat([turned, -turned], dim=-1).argmax(dim=-1)


def _attend_in_chunks(q: Tensor, v: Tensor, hashes: Tensor, chunk: int) -> Tensor:
    """Sort by hash, cut into chunks, attend to the own chunk and the one before, merge rounds: from
    queries and values ``[batch, heads, n, width]`` and the hashes of :func:`hash_buckets` to the
    same."""
    n = q.shape[2]
    order = hashes.argsort(dim=-1, stable=True)
    queries, values = (_cut(_taken(each.unsqueeze(1), order), chunk) for each in (q, v))
    at = _cut(order.unsqueeze(-1), chunk, fill=-1)  # [batch, rounds, heads, chunks, chunk, 1]
    keys, values, key_at = (_with_previous(each) for each in (
        F.normalize(queries, dim=-1), values, at))
    scores = queries @ keys.transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(key_at.transpose(-1, -2) == at, _SELF)
    scores = scores.masked_fill(key_at.transpose(-1, -2) < 0, -torch.inf)
    size = scores.logsumexp(dim=-1, keepdim=True)
    mixed = (scores - size).exp() @ values
    back = order.argsort(dim=-1)
    mixed, size = (_taken(each.flatten(-3, -2)[..., :n, :], back) for each in (mixed, size))
    return (mixed * size.softmax(dim=1)).sum(dim=1)


def _attend_to_newest(
    q: Tensor, k: Tensor, v: Tensor, hashes: Tensor, newest: int,
) -> Tensor:
    """Attend to the ``newest`` keys of the own bucket up to the own token, rounds merged.

    ``q`` are the queries ``[batch, heads, queries, width]`` of the last of the keys, ``k`` (of
    length 1) and ``v`` ``[batch, heads, n, width]``, ``hashes`` ``[batch, rounds, heads, n]``. The
    merge of rounds by their sums of exponentials is one softmax in which a key counts as often as
    rounds have it.
    """
    n = k.shape[2]
    key_at = torch.arange(n, device=q.device)
    # Not slices of it: an exporter would not see that they are as many as the queries.
    own = torch.arange(n - q.shape[2], n, device=q.device)
    at = own.unsqueeze(-1)
    mates = hashes.index_select(-1, own).unsqueeze(-1) == hashes.unsqueeze(-2)
    mates = mates & (key_at <= at)                            # [batch, rounds, heads, queries, n]
    oldest = torch.where(mates, key_at, -1).topk(min(newest, n), dim=-1).values[..., -1:]
    times = (mates & (key_at >= oldest)).sum(dim=1).to(q.dtype)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return (scores.masked_fill(key_at == at, _SELF) + times.log()).softmax(dim=-1) @ v


def _taken(x: Tensor, order: Tensor) -> Tensor:
    """The vectors ``x [..., n, width]`` in an order ``[..., n]``."""
    index = order.unsqueeze(-1).expand(*order.shape, x.shape[-1])
    return x.expand(index.shape).gather(-2, index)


def _with_previous(x: Tensor) -> Tensor:
    """Every chunk of ``[..., chunks, chunk, width]`` after the one before, if there is another."""
    return torch.cat([x.roll(1, dims=-3), x], dim=-2) if x.shape[-3] > 1 else x


def _cut(x: Tensor, block: int, fill: int = 0) -> Tensor:
    """``[..., time, width]`` to ``[..., blocks, block, width]``, the last one filled up."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % block), value=fill).unflatten(-2, (-1, block))
