"""The MLGRU recurrence over a sequence split over processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from sterna.model.torch.network.autocast import keeps_precision
from sterna.model.torch.network.recurrence import gate_gradients, linear_scan, mlgru_scan
from sterna.model.torch.parallel.context import rank_and_size

__all__ = ["mlgru_scan_parallel"]


@keeps_precision
def mlgru_scan_parallel(
    forget: Tensor, candidate: Tensor, initial: Tensor, group: ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """The own part of ``h[t] = f[t] h[t-1] + (1 - f[t]) c[t]`` over the whole sequence.

    Every process scans its part from zero (the first from ``initial``), and all exchange the
    product of their gates and their last state: ``2 * batch * channels`` numbers, whatever the
    length, and as many backward. From these each computes the state that enters its part, and adds
    it, decayed by the gates. Exact for gates of 0 and 1, as
    :func:`sterna.model.torch.network.recurrence.naive_mlgru`. Raises ValueError if the own part is
    empty, or this process is not in the group.

    Parameters
    ----------
    forget, candidate
        Of the own part, ``[time, batch, channels]``; lengths may differ between processes.
    initial
        The state before the whole sequence ``[batch, channels]``. Only that of the first process
        is used and gets a gradient.
    group
        The processes, in the order of their parts. All must run the backward pass for gradients.

    Returns
    -------
    The states of the own part ``[time, batch, channels]``, and the state after the whole
    sequence ``[batch, channels]``, the same on every process.
    """
    rank_and_size(group)
    if not len(forget):
        raise ValueError("every process must hold one token at least, this one holds none")
    states, last = _Parallel.apply(forget, candidate, initial, group)
    return states, last


class _Parallel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, forget: Tensor, candidate: Tensor, initial: Tensor, group: ProcessGroup,
    ) -> tuple[Tensor, Tensor]:
        rank, size = rank_and_size(group)
        states = mlgru_scan(forget, candidate, initial if rank == 0 else torch.zeros_like(initial))
        left = forget.cumprod(0)    # share of the entering state that is left
        products, ends = _gather(left[-1], states[-1], group)
        entering = [initial, ends[0]]
        for k in range(1, size):
            entering.append(products[k] * entering[k] + ends[k])
        if rank > 0:
            states.addcmul_(left, entering[rank])
        ctx.group = group
        ctx.save_for_backward(forget, candidate, states, entering[rank], products)
        return states, entering[size].clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, into_states: Tensor, into_last: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        forget, candidate, states, entering, products = ctx.saved_tensors
        rank, size = rank_and_size(ctx.group)
        # Backwards in time the gain into step t is the gate of step t + 1.
        gain = torch.cat([torch.ones_like(forget[:1]), forget[1:].flip(0)])
        into = linear_scan(gain, into_states.flip(0), torch.zeros_like(entering))
        leaving, into_lasts = _gather(forget[0] * into[-1], into_last, ctx.group)
        arriving = into_lasts.sum(0)
        for k in range(size - 1, rank, -1):
            arriving = products[k] * arriving + leaving[k]
        into = into.addcmul_(gain.cumprod(0), arriving).flip(0)
        of_forget, of_candidate, of_initial = gate_gradients(
            forget, candidate, states, entering, into)
        if rank > 0:
            of_initial = torch.zeros_like(of_initial)
        return of_forget, of_candidate, of_initial, None


def _gather(first: Tensor, second: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Two tensors of every process, each ``[processes, ...]``."""
    own = torch.stack((first, second))
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, own, group=group)
    firsts, seconds = torch.stack(gathered).unbind(1)
    return firsts, seconds
