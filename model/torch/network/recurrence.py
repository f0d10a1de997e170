"""Recurrences over time, each as the plain loop and in forms with fewer steps.

Sequences are time-major, ``[time, batch, channels]``: one step is one contiguous slab.

The MLGRU's, ``h[t] = f[t] * h[t-1] + (1 - f[t]) * c[t]``:

- :func:`naive_mlgru`: the loop, differentiated by autograd; the reference for the others.
- :func:`scan_sequential`: one ``lerp`` per step, and a hand-written backward pass.
- :func:`scan_chunked`: two levels, so that Python takes about ``2 * sqrt(time)`` steps on
  larger slabs. Faster when ``time`` is long and ``batch * channels`` small.

With a constant complex L, ``x[t] = L x[t-1] + u[t]``, as pairs of real and imaginary parts; no
complex type is used, so that graphs of other runtimes can compute it. L is ``[channels]``, the
state before the first step ``[batch, channels]``:

- :func:`complex_scan`: ``log2(time)`` steps over the whole sequence. After the one of width w every
  token holds the sum over the last 2 w tokens: ``x[t] += L^w x[t-w]``.

With a matrix state, ``S[t] = Diag(f[t]) S[t-1] + k[t] v[t]^T``, from which
``o[t] = q[t]^T S[t]`` is read. ``query``, ``forget`` and ``key`` are ``[time, batch, heads, k]``,
``value`` is ``[time, batch, heads, v]``, the state before the first step ``[batch, heads, k, v]``.
Both forms return the outputs ``[time, batch, heads, v]`` and the last state:

- :func:`naive_matrix_scan`: the loop, and the form of a single step.
- :func:`matrix_scan`: chunks side by side, so that Python takes about ``8 + time / 8`` steps
  and most of the work is in matrix products.

All are exact for gates of 0 (the candidate replaces the state) and of 1 (the state stays), which
forms with logarithms or quotients of gates are not.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.profile import FixedPoint
from sterna.model.torch.network.autocast import keeps_precision
from sterna.model.torch.network.kernels import Replaceable, by_triton, kernels_for

__all__ = [
    "Pair", "complex_scan", "gate_gradients", "linear_scan", "matrix_scan", "mlgru_scan",
    "naive_matrix_scan", "naive_mlgru", "scan_chunked",
    "scan_sequential",
]

_SHORTEST_CHUNKED = 64
"""Below this many steps the chunked form saves nothing: this and the next number were chosen with
``benchmarks/recurrence.py --grid``."""

_LARGEST_CHUNKED_SLAB = 1024
"""With more channels * batch than this, arithmetic dominates call overhead on a CPU, and the
chunked form's second pass costs more than it saves."""


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
    """Gradients of forget, candidate and initial, given those of all states."""
    to_forget = _previous(states, initial).sub_(candidate).mul_(into_state)
    to_candidate = torch.addcmul(into_state, forget, into_state, value=-1.0)
    return to_forget, to_candidate, forget[0] * into_state[0]


class _Sequential(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, forget: Tensor, candidate: Tensor, initial: Tensor, form: FixedPoint | None,
    ) -> Tensor:
        states = torch.empty_like(candidate)
        gates, slabs, hidden = forget.unbind(0), states.unbind(0), initial
        if form is None:
            for f, c, out in zip(gates, candidate.unbind(0), slabs, strict=True):
                hidden = torch.lerp(c, hidden, f, out=out)
        else:
            scale = 2.0**form.frac
            added = torch.addcmul(candidate, forget, candidate, value=-1.0).mul_(scale).add_(0.5)
            hidden = hidden * scale
            for f, a, out in zip(gates, added.unbind(0), slabs, strict=True):
                hidden = torch.addcmul(a, f, hidden, out=out).floor_()
            states.div_(scale)
        ctx.save_for_backward(forget, candidate, states, initial)
        return states

    @staticmethod
    @keeps_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        forget, candidate, states, initial = ctx.saved_tensors
        into_state = grad.clone(memory_format=torch.contiguous_format)
        slabs, gates = into_state.unbind(0), forget.unbind(0)
        for t in range(len(slabs) - 2, -1, -1):
            slabs[t].addcmul_(gates[t + 1], slabs[t + 1])
        return *gate_gradients(forget, candidate, states, initial, into_state), None


@keeps_precision
def scan_sequential(
    forget: Tensor, candidate: Tensor, initial: Tensor, form: FixedPoint | None = None,
) -> Tensor:
    """As :func:`naive_mlgru`, with a hand-written backward pass; with a ``form`` every state is
    rounded to it, halves up, and gradients pass straight through.

    Rounding only the final state would differ: changes below half a step of the format, by slow
    gates, are lost at every step, and that adds up over time. If gates and candidates are multiples
    of their units, sums are exact in float32 for formats of 12 bits.
    """
    result: Tensor = _Sequential.apply(forget, candidate, initial, form)
    return result


def linear_scan(gain: Tensor, added: Tensor, initial: Tensor) -> Tensor:
    """Return all ``s[t] = gain[t] * s[t-1] + added[t]`` by a two-level scan.

    The sequence is cut into chunks that run in parallel from a zero state, keeping the product of
    their gains; then the chunks' end states are chained; then the contribution of the preceding
    state is added to every chunk.
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
    """:func:`naive_mlgru` by the fastest form: Triton kernels if
    :func:`~sterna.model.torch.network.kernels.by_triton` is true; else the choice depends on the
    shapes only, and is measured by ``benchmarks/recurrence.py``."""
    kernels = kernels_for(forget, candidate, initial)
    if kernels is not None:
        return kernels.mlgru_scan(forget, candidate, initial)
    if by_triton(forget, candidate, initial):
        from sterna.model.torch.triton_kernels import recurrence as for_gpu

        return for_gpu.mlgru_scan(forget, candidate, initial)
    steps, slab = forget.shape[0], forget[0].numel()
    few_large_steps = slab > _LARGEST_CHUNKED_SLAB and not forget.is_cuda
    form = scan_sequential if steps < _SHORTEST_CHUNKED or few_large_steps else scan_chunked
    return form(forget, candidate, initial)


Pair: TypeAlias = tuple[Tensor, Tensor]
"""Real and imaginary part."""


def _times(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


@Replaceable
@keeps_precision
def complex_scan(multiplier: Pair, added: Pair, initial: Pair) -> Pair:
    """``x[t] = L x[t-1] + u[t]`` in ``log2(time)`` steps."""
    carried = _times(multiplier, initial)
    re, im = (torch.cat([each[:1] + first, each[1:]])
              for each, first in zip(added, carried, strict=True))
    width = 1
    while width < re.shape[0]:
        moved = _times(multiplier, (re[:-width], im[:-width]))
        re, im = (torch.cat([each[:width], each[width:] + more])
                  for each, more in zip((re, im), moved, strict=True))
        multiplier = _times(multiplier, multiplier)
        width *= 2
    return re, im


_CHUNK = 8
"""Tokens in a chunk: a larger one means more work inside but fewer states to chain."""


def naive_matrix_scan(
    query: Tensor, forget: Tensor, key: Tensor, value: Tensor, initial: Tensor,
) -> tuple[Tensor, Tensor]:
    """The recurrence as written, one step at a time."""
    state = initial
    outputs = []
    for q, f, k, v in zip(*(each.unbind(0) for each in (query, forget, key, value)), strict=True):
        state = f.unsqueeze(-1) * state + k.unsqueeze(-1) * v.unsqueeze(-2)
        outputs.append((q.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs), state


@Replaceable
@keeps_precision
def matrix_scan(
    query: Tensor, forget: Tensor, key: Tensor, value: Tensor, initial: Tensor,
) -> tuple[Tensor, Tensor]:
    """As :func:`naive_matrix_scan`, in chunks.

    Inside a chunk ``o[t] = sum_s (q[t] . reach[t, s] * k[s]) v[s]``, where ``reach[t, s]`` is the
    product of the gates after s up to t. The keys times their reach are kept while t advances, in
    all chunks at once; those at a chunk's end give its contribution to the state. Then the states
    between chunks are chained, and every token reads the initial state of its chunk.
    """
    steps = query.shape[0]
    if steps <= 2:
        return naive_matrix_scan(query, forget, key, value, initial)
    spare = -steps % _CHUNK
    q, f, k, v = (_chunks(each, spare, fill) for each, fill in (
        (query, 0.0), (forget, 1.0), (key, 0.0), (value, 0.0)))   # [chunks, batch, heads, 8, .]
    reaching = k[..., :0, :]
    scores = []
    for t in range(_CHUNK):
        reaching = torch.cat([reaching * f[..., t:t + 1, :], k[..., t:t + 1, :]], dim=-2)
        row = (reaching * q[..., t:t + 1, :]).sum(-1)
        scores.append(F.pad(row, (0, _CHUNK - 1 - t)))
    since_start = f.cumprod(dim=-2)
    added = reaching.transpose(-1, -2) @ v
    state, entering = initial, []
    for through, new in zip(since_start[..., -1:, :].transpose(-1, -2), added, strict=True):
        entering.append(state)
        state = through * state + new
    outputs = torch.stack(scores, dim=-2) @ v + (q * since_start) @ torch.stack(entering)
    flat = outputs.permute(0, 3, 1, 2, 4).flatten(0, 1)
    return flat[:steps], state


def _chunks(x: Tensor, spare: int, fill: float) -> Tensor:
    """``[time, batch, heads, n]`` to ``[chunks, batch, heads, 8, n]``, ``fill`` at the end."""
    padded = F.pad(x, (0, 0, 0, 0, 0, 0, 0, spare), value=fill)
    return padded.unflatten(0, (-1, _CHUNK)).permute(0, 2, 3, 1, 4)
