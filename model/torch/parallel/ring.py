"""Ring attention: full attention over a sequence split over processes.

Keys and values travel once round the ring of processes, while each works on those it has
(arXiv 2310.01889). The backward pass sends them round again, each block with its accumulated
gradients, which thus arrive at the block's owner.

For a row of scores ``s`` the partial result of a block of keys is the largest score ``m``, the
sum ``l = sum exp(s - m)`` and the mix ``o = sum exp(s - m) v``. The results of two blocks merge
into one (arXiv 2112.05682, 2205.14135)::

    m' = max(m1, m2)
    l' = l1 exp(m1 - m') + l2 exp(m2 - m')
    o' = o1 exp(m1 - m') + o2 exp(m2 - m')

and at the end the output is ``o / l``. The order of blocks is arbitrary. For float16 and bfloat16
all three are float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from sterna.model.torch.parallel.context import part_lengths, rank_and_size

__all__ = ["KEYS_AT_ONCE", "ring_attention"]


class _Partial(NamedTuple):
    """Attention of ``rows`` queries over some of the keys, not yet divided."""

    most: Tensor
    """``m``, the largest score ``[..., rows, 1]``; the lowest finite number without a key."""
    total: Tensor
    """``l``, ``[..., rows, 1]``."""
    mixed: Tensor
    """``o``, ``[..., rows, width]``."""


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type for sums of numbers of a type: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _nothing(q: Tensor) -> _Partial:
    """The partial result of queries ``[..., rows, width]`` over no key, neutral for merging."""
    mixed = torch.zeros_like(q, dtype=_wide(q.dtype))
    total = mixed[..., :1].clone()
    return _Partial(torch.full_like(total, torch.finfo(total.dtype).min), total, mixed)


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> _Partial:
    """The partial result of queries ``[..., rows, width]`` over keys and values
    ``[..., keys, width]``, except where ``hidden [rows, keys]`` is true."""
    scores = _scores(q, k, hidden)
    # With a finite maximum a fully hidden row gives sums of 0, not nan.
    most = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(most).exp_()
    return _Partial(most, weights.sum(-1, keepdim=True), (weights.to(v.dtype) @ v).to(most.dtype))


def _merge(a: _Partial, b: _Partial) -> _Partial:
    """The partial result over the keys of both."""
    most = torch.maximum(a.most, b.most)
    of_a, of_b = (a.most - most).exp_(), (b.most - most).exp_()
    return _Partial(most, a.total * of_a + b.total * of_b, a.mixed * of_a + b.mixed * of_b)


def _finish(partial: _Partial) -> tuple[Tensor, Tensor]:
    """The outputs ``[..., rows, width]``, and the logsumexp of each row's scores
    ``[..., rows, 1]``, for the backward pass."""
    return partial.mixed / partial.total, partial.most + partial.total.log()


def _attend_backward(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None,
    logsumexp: Tensor, grad: Tensor, through: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """A block's contribution to the gradients of the queries, and the gradients of its keys and
    values.

    ``grad [..., rows, width]`` is the gradient of the outputs, ``through [..., rows, 1]`` its dot
    product with them. The weights are recomputed instead of kept.
    """
    weights = _scores(q, k, hidden).sub_(logsumexp).exp_()
    into_v = weights.to(v.dtype).mT @ grad
    into_weights = (grad @ v.mT).to(weights.dtype)
    into_scores = into_weights.sub_(through).mul_(weights).mul_(_scale(q)).to(q.dtype)
    return into_scores @ k, into_scores.mT @ q, into_v


def _scale(q: Tensor) -> float:
    return 1.0 / math.sqrt(q.shape[-1])


def _scores(q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
    scores = (q @ k.mT).to(_wide(q.dtype)).mul_(_scale(q))
    return scores if hidden is None else scores.masked_fill_(hidden, -math.inf)


KEYS_AT_ONCE = 128
"""Keys of a block that are scored together: the number of scores per own query in memory."""

_BLOCKS, _GRADIENTS = 0, 1
"""Message tags."""


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup, causal: bool = True,
    lengths: tuple[int, ...] | None = None,
) -> Tensor:
    """``softmax(q k^T / sqrt(width)) v`` over the whole sequence, for the queries of this process.

    Called by every process of the group with its own part, in the order of the sequence; likewise
    all must run the backward pass. With P processes each sends ``2 (P-1)`` parts of keys or values
    forward, and ``2 (2P-1)`` backward (none if P is 1). Memory, saved or temporary, grows with the
    own part only. The causal form sends later parts too, but computes nothing of them. Raises
    ValueError if shapes do not fit, a part is empty, or this process is not in the group.

    Parameters
    ----------
    q
        Queries ``[batch, heads, time, width]`` of the own part. The first ``heads / kv_heads``
        heads use the first head of keys, and so on.
    k, v
        Keys and values ``[batch, kv_heads, time, width]`` of the own part.
    group
        The processes.
    causal
        Whether a token sees itself and earlier ones only.
    lengths
        Tokens of every process, which may differ; exchanged if not given.

    Returns
    -------
    Shape and type of ``q``.
    """
    batch, heads, time, width = q.shape
    if k.shape != v.shape or k.shape[0::2] != q.shape[0::2] or k.shape[3] != width:
        raise ValueError(
            f"queries, keys and values must have one batch, time and width, got "
            f"{list(q.shape)}, {list(k.shape)} and {list(v.shape)}")
    if heads % k.shape[1]:
        raise ValueError(
            f"the heads of the queries ({heads}) must be a multiple of those of the keys "
            f"({k.shape[1]})")
    rank, size = rank_and_size(group)
    lengths = part_lengths(k, group) if lengths is None else lengths
    if len(lengths) != size or lengths[rank] != time:
        raise ValueError(f"process {rank} of {size} holds {time} tokens, lengths are {lengths}")
    # The queries that share a head of keys are rows of one product.
    rows = q.reshape(batch, k.shape[1], heads // k.shape[1] * time, width)
    mixed: Tensor = _RingAttention.apply(rows, k, v, _Ring(group, lengths, causal))
    return mixed.reshape(q.shape)


@dataclass(frozen=True, slots=True)
class _Arriving:
    """A message in flight from the previous process, and the one to the next."""

    works: list[dist.Work]
    received: Tensor
    sent: Tensor

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        return self.received


@dataclass(frozen=True, slots=True)
class _Ring:
    """The processes, each of which sends to the next and the last to the first."""

    group: ProcessGroup
    lengths: tuple[int, ...]
    causal: bool

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    def pass_on(self, x: Tensor, owner: int, tag: int) -> _Arriving:
        """Send ``x [2, batch, heads, time, width]``, of the part of ``owner``; receive that of
        the previous part."""
        size = len(self.lengths)
        if size == 1:
            return _Arriving([], x, x)
        shape = list(x.shape)
        shape[-2] = self.lengths[owner - 1]
        received = x.new_empty(shape)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, x, group=self.group, tag=tag,
                       group_peer=(self.rank + 1) % size),
            dist.P2POp(dist.irecv, received, group=self.group, tag=tag,
                       group_peer=(self.rank - 1) % size)])
        return _Arriving(works, received, x)

    def blocks(self, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The part of every process once, the own one first: its owner, and keys and values
        ``[2, batch, heads, time, width]``. The next is in flight while one is worked on."""
        size = len(self.lengths)
        block = torch.stack((k, v))
        for owner in ((self.rank - step) % size for step in range(size)):
            last = owner == (self.rank + 1) % size
            arriving = None if last else self.pass_on(block, owner, _BLOCKS)
            yield owner, block
            if arriving is not None:
                block = arriving.wait()

    def tiles(self, owner: int, q: Tensor) -> Iterator[tuple[slice, Tensor | None]]:
        """Slices of the keys of a part seen by some own queries ``[..., rows, width]``, and which
        are hidden, bool ``[rows, keys]``, or None."""
        if self.causal and owner > self.rank:
            return
        rows = torch.arange(q.shape[-2], device=q.device).unsqueeze(-1)
        for start in range(0, self.lengths[owner], KEYS_AT_ONCE):
            tile = slice(start, min(start + KEYS_AT_ONCE, self.lengths[owner]))
            hidden = None
            if self.causal and owner == self.rank:
                keys = torch.arange(tile.start, tile.stop, device=q.device)
                hidden = keys > rows % self.lengths[owner]    # rows of several heads
            yield tile, hidden


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: _Ring) -> Tensor:
        partial = _nothing(q)
        for owner, block in ring.blocks(k, v):
            for tile, hidden in ring.tiles(owner, q):
                keys, values = block[..., tile, :]
                partial = _merge(partial, _attend(q, keys, values, hidden))
        mixed, logsumexp = _finish(partial)
        mixed = mixed.to(q.dtype)
        ctx.ring = ring
        ctx.save_for_backward(q, k, v, mixed, logsumexp)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, mixed, logsumexp = ctx.saved_tensors
        through = (grad * mixed).to(logsumexp.dtype).sum(-1, keepdim=True)
        into_q = torch.zeros_like(q, dtype=logsumexp.dtype)
        returning = None
        for owner, block in ctx.ring.blocks(k, v):
            into_block = torch.zeros_like(block, dtype=_wide(block.dtype))
            for tile, hidden in ctx.ring.tiles(owner, q):
                keys, values = block[..., tile, :]
                of_q, of_k, of_v = _attend_backward(
                    q, keys, values, hidden, logsumexp, grad, through)
                into_q += of_q
                into_block[0, ..., tile, :] = of_k
                into_block[1, ..., tile, :] = of_v
            if returning is not None:
                into_block += returning.wait()
            returning = ctx.ring.pass_on(into_block, owner, _GRADIENTS)
        assert returning is not None
        into_k, into_v = returning.wait()
        return into_q.to(q.dtype), into_k.to(k.dtype), into_v.to(v.dtype), None
