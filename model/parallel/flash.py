"""Attention over some of the keys at a time: partial results, and how they are merged.

For a row of scores ``s`` the partial result of a block of keys is the largest score ``m``, the
sum ``l = sum exp(s - m)`` and the mix ``o = sum exp(s - m) v``. Two of them merge into that of
both blocks (arXiv 2112.05682, 2205.14135)::

    m' = max(m1, m2)
    l' = l1 exp(m1 - m') + l2 exp(m2 - m')
    o' = o1 exp(m1 - m') + o2 exp(m2 - m')

and at the end the output is ``o / l``. Blocks may come in any order. In float16 and bfloat16 all
three are float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Partial", "attend", "attend_backward", "finish", "merge", "nothing", "wide"]


class Partial(NamedTuple):
    """Attention of ``rows`` queries over some of the keys, not yet divided."""

    most: Tensor
    """``m``, the largest score ``[..., rows, 1]``; the least number there is without a key."""
    total: Tensor
    """``l``, ``[..., rows, 1]``."""
    mixed: Tensor
    """``o``, ``[..., rows, width]``."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums of numbers of a type are kept in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def nothing(q: Tensor) -> Partial:
    """The partial result of queries ``[..., rows, width]`` over no key, which merges into any."""
    mixed = torch.zeros_like(q, dtype=wide(q.dtype))
    total = mixed[..., :1].clone()
    return Partial(torch.full_like(total, torch.finfo(total.dtype).min), total, mixed)


def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> Partial:
    """The partial result of queries ``[..., rows, width]`` over keys and values
    ``[..., keys, width]``, except where ``hidden [rows, keys]`` is true."""
    scores = _scores(q, k, hidden)
    # With a finite maximum a row in which all is hidden gives sums of 0, not of nan.
    most = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(most).exp_()
    return Partial(most, weights.sum(-1, keepdim=True), (weights.to(v.dtype) @ v).to(most.dtype))


def merge(a: Partial, b: Partial) -> Partial:
    """The partial result over the keys of both."""
    most = torch.maximum(a.most, b.most)
    of_a, of_b = (a.most - most).exp_(), (b.most - most).exp_()
    return Partial(most, a.total * of_a + b.total * of_b, a.mixed * of_a + b.mixed * of_b)


def finish(partial: Partial) -> tuple[Tensor, Tensor]:
    """The outputs ``[..., rows, width]``, and the logarithm of the sum of the exponentials of
    each row's scores ``[..., rows, 1]``, which the backward pass wants."""
    return partial.mixed / partial.total, partial.most + partial.total.log()


def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None,
    logsumexp: Tensor, grad: Tensor, through: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What a block of keys adds to the gradients of the queries, and its own and its values'.

    ``grad [..., rows, width]`` is the gradient of the outputs, ``through [..., rows, 1]`` its dot
    product with them. The weights are computed once more instead of kept.
    """
    weights = _scores(q, k, hidden).sub_(logsumexp).exp_()
    into_v = weights.to(v.dtype).mT @ grad
    into_weights = (grad @ v.mT).to(weights.dtype)
    into_scores = into_weights.sub_(through).mul_(weights).mul_(_scale(q)).to(q.dtype)
    return into_scores @ k, into_scores.mT @ q, into_v


def _scale(q: Tensor) -> float:
    return 1.0 / math.sqrt(q.shape[-1])


def _scores(q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
    scores = (q @ k.mT).to(wide(q.dtype)).mul_(_scale(q))
    return scores if hidden is None else scores.masked_fill_(hidden, -math.inf)
