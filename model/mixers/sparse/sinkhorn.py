"""Sparse Sinkhorn attention: blocks are sorted, and each sees itself and what was sorted to it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.checks import check_whole, real_number
from sterna.model.mixers.attention.dot_product import Attention
from sterna.model.network.heads import rotate
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import token_mixer

__all__ = ["Sinkhorn", "sinkhorn_normalise"]


@token_mixer("sinkhorn")
class Sinkhorn(Attention):
    """Attention of block i to its own keys and to ``sum_j P_ij K_j`` (arXiv 2002.11296, section 3).

    ``P [blocks, blocks]`` is near a permutation: ``exp(mean(Q_i) mean(K_j) / (tau sqrt(width)))``
    with rows and then columns scaled to sums of 1, ``iterations`` times. The means are over the
    tokens of a block, before RoPE; so the net that sorts has no weights of its own and no fixed
    number of blocks. A last block that is not full is filled up with zeros, which its own queries
    do not see.

    It is not causal. Columns are normalised over all rows, so every later block changes the
    weights of an earlier one; and over earlier blocks alone, P would be strictly triangular and
    no such matrix has rows and columns that sum to 1. Per token, b tokens a block, n in all:
    4 d^2 MACs, (4 b + 2 n / b + n / b^2) d products.

    Parameters
    ----------
    block
        Tokens of a block, at least 1.
    iterations
        Of the normalisation; at least 1.
    tau
        Temperature: P tends to a permutation as it falls to zero.
    heads
        Number of heads, each with its own order; 0 is one for every 32 channels.
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
        """Scores and weighted sum over two blocks, both kinds of sorted blocks, the means'
        scores, and RoPE; the last block counted as full."""
        block = min(self.block, max(1, length))
        count = -(-length // block)
        sequence = count * block * 4 * block + 2 * count * count * block + count * count
        return (-(-sequence // max(1, length)) + 4) * self.heads * self.width


def sinkhorn_normalise(logits: Tensor, iterations: int) -> Tensor:
    """``exp(logits [..., n, n])`` scaled so that rows sum to 1, then columns, again and again.

    In logarithms (the paper's section 3.1.2). Columns then sum to 1 but for rounding; how
    nearly rows do is a matter of the iterations.
    """
    for _ in range(iterations):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits.exp()


def _cut(x: Tensor, block: int) -> Tensor:
    """``[..., time, width]`` to ``[..., blocks, block, width]``, filled up with zeros."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % block)).unflatten(-2, (-1, block))
