"""Full attention whose sequences several processes can share."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from sterna.model.mixers.attention.dot_product import Attention
from sterna.model.network.heads import merge_heads
from sterna.model.network.mixer import State
from sterna.model.network.registry import token_mixer
from sterna.model.parallel.context import part_lengths
from sterna.model.parallel.ring import ring_attention

__all__ = ["RingAttention"]


@token_mixer("ring")
class RingAttention(Attention):
    """``softmax(s Q K^T) V`` of sequences that P processes share (arXiv 2310.01889).

    In one process this is :class:`Attention`, with the same weights, options, shapes and cost.
    Within :func:`sterna.model.parallel.context.context_parallel` each process maps its part
    ``[time/P, batch, d]``. Keys and values go once round the ring of processes, and of each block's
    scores s_j a query adds to what it has: ``m' = max(m, max_j s_j)``,
    ``l' = l e^(m - m') + sum_j e^(s_j - m')``, ``o' = o e^(m - m') + sum_j e^(s_j - m') v_j``; at
    the end ``y = o / l``. A process computes 2 n^2 d / P products for n tokens (if causal the first
    one 2 n^2 d / P^2, the last one all), keeps what belongs to n/P tokens, and sends
    2 (P - 1) n d / P numbers forward.
    """

    shares_sequences = True

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """As :meth:`Attention.forward`; of a shared sequence ``x`` is the own part, and so is the
        next state, keys and values of the own tokens.

        Raises
        ------
        ValueError
            If a shared sequence does not start from the initial state.
        """
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
