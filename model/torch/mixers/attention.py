"""Attention over all earlier tokens, or over those in a window.

One class does the work. Its forms say which keys a query sees, which keys a state keeps, how
queries and keys are turned, or what becomes of the scores.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sterna.model.checks import check_whole
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.network.projection import Joint, MixerInit
from sterna.model.torch.network.registry import token_mixer
from sterna.model.torch.parallel.context import part_lengths
from sterna.model.torch.parallel.ring import ring_attention

__all__ = ["Attention", "GroupedQueryAttention", "MultiQueryAttention", "ReluAttention",
           "RingAttention", "Sinks", "Window", "group_count", "head_count", "merge_heads", "rotate",
           "split_heads"]


def head_count(d: int, heads: int, name: str = "heads") -> int:
    """``heads``, or if that is 0 one for every 32 channels or wider, and at least one.

    >>> [head_count(d, 0) for d in (16, 64, 112, 128)]
    [1, 2, 2, 4]
    """
    check_whole(name, heads, 0)
    heads = heads or next(count for count in range(max(1, d // 32), 0, -1) if d % count == 0)
    if d % heads:
        raise ValueError(f"d ({d}) must be a multiple of {name} ({heads})")
    return heads


def split_heads(x: Tensor, heads: int) -> Tensor:
    """``[time, batch, heads * width]`` to ``[batch, heads, time, width]``."""
    return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def merge_heads(x: Tensor) -> Tensor:
    """``[batch, heads, time, width]`` to ``[time, batch, heads * width]``."""
    return x.permute(2, 0, 1, 3).flatten(-2)


def rotate(x: Tensor, positions: Tensor, theta: float = 1e4) -> Tensor:
    """Rotary position embedding (RoPE, arXiv 2104.09864, equation 34).

    Channels i and i + width/2 of ``x [..., time, width]`` are turned as a pair by
    ``position * theta^(-2i/width)``, so that the product of a query and a key depends on the
    difference of their positions ``[time]`` only. The last channel of an odd width stays.
    """
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, device=x.device, dtype=torch.float64) / max(half, 1))
    angle = positions.to(torch.float64).unsqueeze(-1) * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], dim=-1)


@token_mixer("attention")
class Attention(TokenMixer):
    """``softmax(s Q K^T) V`` for each head, then a projection (arXiv 1706.03762, equation 1).

    ``s = 1/sqrt(width of a head)``; Q, K and V are projections ``[time, d]`` cut into heads. Per
    token after n: 2 n d products, 2 n d words of state (keys and values).

    - ``heads``: number of heads; 0 is one per 32 channels.
    - ``causal``: whether a token sees earlier ones only.
    - ``rope``: whether queries and keys are rotated by position (:func:`rotate`).
    """

    theta: float = 1e4
    """Base of the rotation; to be set for weights that were trained with another."""
    forgets: ClassVar[bool] = False
    """Whether :meth:`kept` drops keys. Then a single query sees all that is kept, positions are
    those among the keys at hand, and keys are kept as they were before they are turned."""

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

    def pattern(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Bool ``[queries, keys]``: which of the keys at ``0, 1, ... n - 1`` the queries at the
        positions ``[queries]`` see, each one at least. None: all, if causal up to its own."""
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
        alone = self.forgets and queries.shape[0] == 1
        mask = None if alone else self.pattern(queries, keys)
        if mask is None and self.causal and x.shape[0] > 1 and before:
            mask = keys <= queries.unsqueeze(-1)
        return self.out(merge_heads(self.scores(q, k, v, mask))), state

    def initial_state(self, x: Tensor) -> State:
        none = x.new_zeros(x.shape[-2], self.kv_heads, 0, self.width)
        return (none, none.clone()) if self.causal else ()

    def state_words(self, length: int) -> int:
        kept = self.kept(torch.empty(1, 1, length, 1, device="meta")).shape[2]
        return 2 * kept * self.kv_heads * self.width if self.causal else 0

    def seen(self, length: int) -> int:
        """Keys that token number ``length`` sees; if not causal the mean of all, rounded up."""
        keys = torch.arange(length)
        queries = keys[-1:] if self.causal else keys
        pairs = 0
        for part in queries.split(256):
            mask = self.pattern(part, keys)
            pairs += len(part) * length if mask is None else int(mask.sum())
        return -(-pairs // max(1, len(queries)))

    def products(self, length: int) -> int:
        """Scores and weighted sum of the keys seen. With RoPE, turning the query and its own key,
        or, if keys are kept unturned, all that are seen."""
        seen, turned = self.seen(length), 0
        if self.rope:
            turned = self.heads + (seen if self.forgets and self.causal else 1) * self.kv_heads
        return 2 * (seen * self.heads + turned) * self.width


def group_count(heads: int, groups: int) -> int:
    """``groups``, or if that is 0 half of ``heads`` or the next smaller divisor, at least one.

    >>> [group_count(heads, 0) for heads in (1, 2, 3, 8, 9)]
    [1, 1, 1, 4, 3]
    """
    check_whole("groups", groups, 0)
    groups = groups or max(
        count for count in range(1, max(2, heads // 2 + 1)) if heads % count == 0)
    if heads % groups:
        raise ValueError(f"heads ({heads}) must be a multiple of groups ({groups})")
    return groups


@token_mixer("gqa")
class GroupedQueryAttention(Attention):
    """Causal :class:`Attention` with ``groups`` heads of keys and values (arXiv 2305.13245).

    ``softmax(s Q_h K_g^T) V_g`` for query head h with ``g = h // (heads / groups)``. With
    ``r = groups / heads``, per token after n: 2 (1 + r) d^2 MACs, 2 n d products, 2 r n d words of
    state.

    - ``groups``: a divisor of ``heads``; 0 is half, or the next smaller divisor.
    """

    def __init__(
        self, init: MixerInit, *, heads: int = 0, groups: int = 0, rope: bool = True,
    ) -> None:
        heads = head_count(init.d, heads)
        super().__init__(init, group_count(heads, groups), heads=heads, rope=rope)


@token_mixer("mqa")
class MultiQueryAttention(GroupedQueryAttention):
    """:class:`GroupedQueryAttention` with one head of keys and values (arXiv 1911.02150).

    ``softmax(s Q_h K^T) V`` for every query head h. Per token after n: 2 (1 + 1/heads) d^2 MACs,
    2 n d products, 2 n d / heads words of state.
    """

    def __init__(self, init: MixerInit, *, heads: int = 0, rope: bool = True) -> None:
        super().__init__(init, heads=heads, groups=1, rope=rope)


@token_mixer("relu_attention")
class ReluAttention(Attention):
    """``relu(s Q K^T) V / n``, n keys seen, for each head (arXiv 2309.08586, section 3).

    It needs no exponential, and non-matching keys contribute nothing. A causal query divides by the
    number of keys up to its own, others by the length. Options and cost are those of
    :class:`Attention`.
    """

    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        weights = F.relu(q @ k.transpose(-1, -2)) * self.width ** -0.5
        if mask is None and self.causal and q.shape[2] > 1:
            mask = weights.new_ones(weights.shape[-2:]).tril().bool()
        if mask is None:
            return weights @ v / k.shape[2]
        return (weights * mask) @ v / mask.sum(dim=-1, keepdim=True)


@token_mixer("window")
class Window(Attention):
    """``softmax(s Q K^T) V`` over the keys ``i - size < j <= i`` of query i (arXiv 2004.05150).

    Per token, once full: 2 size d products, 2 (size - 1) d words of state. Keys are kept unrotated,
    so with ``rope`` a step rotates all it compares: 2 (size + 1) d products more. A piece of n
    tokens computes all n^2 scores under a mask.

    - ``size``: keys that a token sees, including its own.
    """

    forgets = True

    def __init__(
        self, init: MixerInit, *, size: int = 64, heads: int = 0, rope: bool = True,
    ) -> None:
        check_whole("size", size, 1)
        super().__init__(init, heads=heads, rope=rope)
        self.size = size

    def pattern(self, queries: Tensor, keys: Tensor) -> Tensor:
        back = queries.unsqueeze(-1) - keys
        return (back >= 0) & (back < self.size)

    def kept(self, keys: Tensor) -> Tensor:
        """The newest ``size - 1``: with the next token's own that is all it sees. A copy, as a
        slice would hold the memory of all keys."""
        return keys[:, :, max(0, keys.shape[2] - self.size + 1):].clone()


@token_mixer("sinks")
class Sinks(Window):
    """Attention sinks (StreamingLLM, arXiv 2309.17453): a window, and always the first keys.

    ``softmax(s Q K^T) V`` over the keys ``j < sinks`` and ``i - size < j <= i`` of query i. A key's
    position is its index in the cache (section 3.2), which holds unrotated keys: distances within
    the window are true, and a sink is never farther than ``sinks + size - 1``. Per token, once
    full: 2 (sinks + size) d products and with ``rope`` 2 (sinks + size + 1) d more, 2 (sinks +
    size - 1) d words of state.

    - ``sinks``: first tokens that every later one sees; 0 is :class:`Window`.
    - ``size``: newest keys that a token sees, including its own.
    """

    def __init__(
        self, init: MixerInit, *, sinks: int = 4, size: int = 64, heads: int = 0,
        rope: bool = True,
    ) -> None:
        check_whole("sinks", sinks, 0)
        super().__init__(init, size=size, heads=heads, rope=rope)
        self.sinks = sinks

    def pattern(self, queries: Tensor, keys: Tensor) -> Tensor:
        return super().pattern(queries, keys) | (
            (keys < self.sinks) & (keys <= queries.unsqueeze(-1)))

    def kept(self, keys: Tensor) -> Tensor:
        first, others = keys[:, :, :self.sinks], keys[:, :, self.sinks:]
        return torch.cat([first, super().kept(others)], dim=2)

    def turned(self, q: Tensor, k: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Turned by the index in the cache as each query meets it.

        For one query that is the index in the state. Of several, a later one meets a cache from
        which keys between sinks and window are gone: it is nearer to the sinks than to its own
        place. So each query has two forms side by side, ``[..., 2 * width]``, one for either
        kind of key, and a key has zeros where it does not meet the form.
        """
        if queries.shape[0] == 1:
            return super().turned(q, k, queries, keys)
        near, _ = super().turned(q, k, queries.clamp(max=self.sinks + self.size - 1), keys)
        true, k = super().turned(q, k, queries, keys)
        first, others = k[:, :, :self.sinks], k[:, :, self.sinks:]
        k = torch.cat([F.pad(first, (0, self.width)), F.pad(others, (self.width, 0))], dim=2)
        return torch.cat([near, true], dim=-1), k


@token_mixer("ring")
class RingAttention(Attention):
    """``softmax(s Q K^T) V`` of sequences that P processes share (arXiv 2310.01889).

    In one process this is :class:`Attention`, with the same weights. Within ``context_parallel``
    each process maps its part ``[time/P, batch, d]``. Keys and values pass once round the ring, and
    a query adds each block's scores s_j to its sums: ``m' = max(m, max_j s_j)``, ``l' = l e^(m -
    m') + sum_j e^(s_j - m')``, ``o' = o e^(m - m') + sum_j e^(s_j - m') v_j``; finally ``y = o /
    l``. A process computes 2 n^2 d / P products for n tokens (if causal, the first 2 n^2 d / P^2,
    the last all), keeps n/P tokens' data, and sends 2 (P - 1) n d / P numbers forward.
    """

    shares_sequences = True

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """As :meth:`Attention.forward`; of a shared sequence, which starts from the initial state,
        ``x`` is the own part, and so is the next state, keys and values of the own tokens."""
        if self.group is None:
            return super().forward(x, state)
        if self.causal and state[0].shape[2]:
            raise ValueError(
                f"a sequence shared by processes starts from the initial state, got one after "
                f"{state[0].shape[2]} tokens")
        q, k, v = self.heads_of(x)
        lengths = part_lengths(k, self.group)
        if self.rope:
            before = sum(lengths[:dist.get_rank(self.group)])
            positions = torch.arange(before, before + x.shape[0], device=x.device)
            q, k = self.turned(q, k, positions, positions)
        state = (k, v) if self.causal else ()
        return self.out(merge_heads(
            ring_attention(q, k, v, self.group, self.causal, lengths))), state
