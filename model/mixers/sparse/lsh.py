"""Attention among vectors of one hash: what the Reformer is made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["attend_in_chunks", "attend_to_newest", "hash_buckets"]

SELF = -5e4
"""Score of a token with itself: it is its own nearest, so it counts only if there is no other."""


def hash_buckets(x: Tensor, rotations: Tensor) -> Tensor:
    """The bucket of each vector: ``argmax [x R; -x R]`` (arXiv 2001.04451, section 2).

    ``x [batch, heads, n, width]`` and ``rotations [rounds, width, buckets / 2]`` to whole numbers
    ``[batch, rounds, heads, n]``. The smaller the angle between two vectors, the likelier it is
    that they share a bucket; their lengths do not matter.
    """
    turned = x.unsqueeze(1) @ rotations.unsqueeze(1)
    return torch.cat([turned, -turned], dim=-1).argmax(dim=-1)


def attend_in_chunks(q: Tensor, v: Tensor, hashes: Tensor, chunk: int) -> Tensor:
    """Sort by hash, cut into chunks, attend to the own chunk and the one before, merge rounds.

    Parameters
    ----------
    q, v
        Queries and values ``[batch, heads, n, width]``; the keys are ``q / |q|``.
    hashes
        Of :func:`hash_buckets`, ``[batch, rounds, heads, n]``.
    chunk
        Tokens of a chunk. The first chunk takes the last for the one before.

    Returns
    -------
    ``[batch, heads, n, width]``.
    """
    n = q.shape[2]
    order = hashes.argsort(dim=-1, stable=True)
    queries, values = (_chunks(_taken(each.unsqueeze(1), order), chunk) for each in (q, v))
    at = _chunks(order.unsqueeze(-1), chunk, fill=-1)  # [batch, rounds, heads, chunks, chunk, 1]
    keys, values, key_at = (_with_previous(each) for each in (
        F.normalize(queries, dim=-1), values, at))
    scores = queries @ keys.transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(key_at.transpose(-1, -2) == at, SELF)
    scores = scores.masked_fill(key_at.transpose(-1, -2) < 0, -torch.inf)
    size = scores.logsumexp(dim=-1, keepdim=True)
    mixed = (scores - size).exp() @ values
    back = order.argsort(dim=-1)
    mixed, size = (_taken(each.flatten(-3, -2)[..., :n, :], back) for each in (mixed, size))
    return (mixed * size.softmax(dim=1)).sum(dim=1)


def attend_to_newest(
    q: Tensor, k: Tensor, v: Tensor, hashes: Tensor, newest: int,
) -> Tensor:
    """Attend to the ``newest`` keys of the own bucket up to the own token, rounds merged.

    Parameters
    ----------
    q
        Queries ``[batch, heads, queries, width]``, those of the last of the keys.
    k, v
        Keys of length 1 and values ``[batch, heads, n, width]``.
    hashes
        ``[batch, rounds, heads, n]``.
    newest
        Keys seen in each round, the own one included.

    Returns
    -------
    ``[batch, heads, queries, width]``. The merge of rounds by their sums of exponentials is one
    softmax in which a key counts as often as rounds have it.
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
    return (scores.masked_fill(key_at == at, SELF) + times.log()).softmax(dim=-1) @ v


def _taken(x: Tensor, order: Tensor) -> Tensor:
    """The vectors ``x [..., n, width]`` in an order ``[..., n]``."""
    index = order.unsqueeze(-1).expand(*order.shape, x.shape[-1])
    return x.expand(index.shape).gather(-2, index)


def _chunks(x: Tensor, chunk: int, fill: int = 0) -> Tensor:
    """``[..., n, width]`` to ``[..., chunks, chunk, width]``."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % chunk), value=fill).unflatten(-2, (-1, chunk))


def _with_previous(x: Tensor) -> Tensor:
    """Every chunk of ``[..., chunks, chunk, width]`` after the one before, if there is another."""
    return torch.cat([x.roll(1, dims=-3), x], dim=-2) if x.shape[-3] > 1 else x
