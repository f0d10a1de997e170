"""Attention with ReLU in place of softmax: no exponential, and keys that do not match are off."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sterna.model.mixers.attention.dot_product import Attention
from sterna.model.network.registry import token_mixer

__all__ = ["ReluAttention"]


@token_mixer("relu_attention")
class ReluAttention(Attention):
    """``relu(s Q K^T) V / n``, n keys seen, for each head (arXiv 2309.08586, section 3).

    A causal query divides by the number of keys up to its own, others by the length. The weights
    of a query need not sum to one. Options, shapes and cost are those of :class:`Attention`.
    """

    def scores(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """As :meth:`Attention.scores`."""
        weights = F.relu(q @ k.transpose(-1, -2)) * self.width ** -0.5
        if mask is None and self.causal and q.shape[2] > 1:
            mask = weights.new_ones(weights.shape[-2:]).tril().bool()
        if mask is None:
            return weights @ v / k.shape[2]
        return (weights * mask) @ v / mask.sum(dim=-1, keepdim=True)
