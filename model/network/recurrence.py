"""The MLGRU recurrence ``h[t] = f[t] * h[t-1] + (1 - f[t]) * c[t]``, in three forms.

Sequences are time-major, ``[time, batch, channels]``: one step is one contiguous slab.

- :func:`naive_mlgru`: the loop, differentiated by autograd. What the others must equal.
- :func:`scan_sequential`: one ``lerp`` per step, and a backward pass written by hand.
- :func:`scan_chunked`: two levels, so that Python takes about ``2 * sqrt(time)`` steps on
  larger slabs. Faster when ``time`` is long and ``batch * channels`` small.

All are exact for ``f = 0`` (the candidate replaces the state) and ``f = 1`` (the state
stays), which forms with logarithms or quotients of gates are not.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sterna.model.network.autocast import keeps_precision
from sterna.model.network.kernels import by_triton, kernels_for
from sterna.model.network.replaceable import Replaceable

__all__ = [
    "gate_gradients", "linear_scan", "mlgru_scan", "naive_mlgru", "scan_chunked", "scan_sequential"]

_SHORTEST_CHUNKED = 64
"""Below this many steps the chunked form has nothing to save: ``benchmarks/recurrence.py --grid``
prints what this and the next number are from."""

_LARGEST_CHUNKED_SLAB = 1024
"""With more channels * batch than this a CPU is busy with arithmetic, not with calls, and
the chunked form's second pass costs more than it saves."""


def naive_mlgru(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """The recurrence as written, one step at a time.

    ``forget`` and ``candidate`` are ``[time, batch, channels]``, ``initial`` is the state
    before the first step ``[batch, channels]``; returns the states ``[time, batch, channels]``.
    """
    hidden = initial
    states = []
    for f, c in zip(forget.unbind(0), candidate.unbind(0), strict=True):
        hidden = f * hidden + (1 - f) * c
        states.append(hidden)
    return torch.stack(states)


def _previous(states: Tensor, initial: Tensor) -> Tensor:
    """The state before each step."""
    return torch.cat([initial.unsqueeze(0), states[:-1]])


def gate_gradients(
    forget: Tensor, candidate: Tensor, states: Tensor, initial: Tensor, into_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of forget, candidate and initial, given those of every state."""
    to_forget = _previous(states, initial).sub_(candidate).mul_(into_state)
    to_candidate = torch.addcmul(into_state, forget, into_state, value=-1.0)
    return to_forget, to_candidate, forget[0] * into_state[0]


class _Sequential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
        states = torch.empty_like(candidate)
        hidden = initial
        for f, c, out in zip(
            forget.unbind(0), candidate.unbind(0), states.unbind(0), strict=True,
        ):
            hidden = torch.lerp(c, hidden, f, out=out)
        ctx.save_for_backward(forget, candidate, states, initial)
        return states

    @staticmethod
    @keeps_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        forget, candidate, states, initial = ctx.saved_tensors
        into_state = grad.clone(memory_format=torch.contiguous_format)
        slabs, gates = into_state.unbind(0), forget.unbind(0)
        for t in range(len(slabs) - 2, -1, -1):
            slabs[t].addcmul_(gates[t + 1], slabs[t + 1])
        return gate_gradients(forget, candidate, states, initial, into_state)


@keeps_precision
def scan_sequential(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """As :func:`naive_mlgru`, with a hand-written backward pass."""
    result: Tensor = _Sequential.apply(forget, candidate, initial)
    return result


def linear_scan(gain: Tensor, added: Tensor, initial: Tensor) -> Tensor:
    """Return all ``s[t] = gain[t] * s[t-1] + added[t]`` by a two-level scan.

    The sequence is cut into chunks that run side by side from a zero state, keeping the
    product of their gains; then the chunks' end states are chained; then every chunk
    gets what its predecessor leaves over.
    """
    steps = added.shape[0]
    width = max(1, math.isqrt(steps))
    chunks = -(-steps // width)
    spare = chunks * width - steps
    if spare:
        gain = torch.cat([gain, gain.new_ones((spare, *gain.shape[1:]))])
        added = torch.cat([added, added.new_zeros((spare, *added.shape[1:]))])
    gain = gain.reshape(chunks, width, *gain.shape[1:])
    local = added.reshape(chunks, width, *added.shape[1:]).clone()
    product = gain.clone()
    for i in range(1, width):
        local[:, i].addcmul_(gain[:, i], local[:, i - 1])
        product[:, i].mul_(product[:, i - 1])

    entering = torch.empty_like(local[:, 0])
    entering[0] = initial
    for k in range(1, chunks):
        torch.addcmul(local[k - 1, -1], product[k - 1, -1], entering[k - 1], out=entering[k])
    local.addcmul_(product, entering.unsqueeze(1))
    return local.reshape(chunks * width, *added.shape[1:])[:steps]


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
        added = torch.addcmul(candidate, forget, candidate, value=-1.0)
        states = linear_scan(forget, added, initial)
        ctx.save_for_backward(forget, candidate, states, initial)
        return states

    @staticmethod
    @keeps_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        forget, candidate, states, initial = ctx.saved_tensors
        # Backwards in time the gain into step t is the gate of step t + 1.
        gain = torch.cat([forget[:1], forget[1:].flip(0)])
        into_state = linear_scan(gain, grad.flip(0), torch.zeros_like(initial)).flip(0)
        return gate_gradients(forget, candidate, states, initial, into_state)


@keeps_precision
def scan_chunked(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """As :func:`naive_mlgru`, in about ``2 * sqrt(time)`` Python steps."""
    result: Tensor = _Chunked.apply(forget, candidate, initial)
    return result


@Replaceable
@keeps_precision
def mlgru_scan(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """The recurrence, by whichever form is fastest for the shapes.

    Parameters and result as for :func:`naive_mlgru`. Triton kernels compute it if
    :func:`~sterna.model.network.kernels.by_triton` says so; else the choice depends on the shapes
    only, and ``benchmarks/recurrence.py`` measures it. An exporter puts a form of its own here, as
    a graph would hold every turn of a loop in Python.
    """
    kernels = kernels_for(forget, candidate, initial)
    if kernels is not None:
        return kernels.mlgru_scan(forget, candidate, initial)
    if by_triton(forget, candidate, initial):
        from sterna.model.triton_kernels import recurrence as for_gpu

        return for_gpu.mlgru_scan(forget, candidate, initial)
    steps, slab = forget.shape[0], forget[0].numel()
    few_large_steps = slab > _LARGEST_CHUNKED_SLAB and not forget.is_cuda
    form = scan_sequential if steps < _SHORTEST_CHUNKED or few_large_steps else scan_chunked
    return form(forget, candidate, initial)
