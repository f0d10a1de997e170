"""The MLGRU recurrence ``h[t] = f[t] * h[t-1] + (1 - f[t]) * c[t]`` on a GPU, in two forms.

Sequences are time-major, ``[time, batch, channels]``, float32. What both must equal is
``naive_mlgru`` of ``model/torch/network/recurrence.py``.

- :func:`scan_one_pass`: a program for a block of channels goes through time step by step; the
  same roundings as the loop in Python. For few steps.
- :func:`scan_chunked`: a program takes ``CHUNK`` steps at once, scans them by a tree of
  ``(gain, added)`` pairs, and carries the last state into the next chunk. Its loads are in
  flight together, so it waits less for memory.

Both are exact for ``f = 0`` and ``f = 1``, and read gates and candidates once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from sterna.model.torch.triton_kernels.kernel import Form, Kernel

__all__ = ["KERNELS", "mlgru_scan", "scan_chunked", "scan_one_pass"]

_FEWEST_CHUNKED = 64
"""Below this many steps a tree of pairs is mostly padding."""


@triton.jit
def _one_pass_forward(
    forget, candidate, initial, states, steps, slab, BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < slab
    hidden = tl.load(initial + at, mask=inside, other=0.0)
    at = at.to(tl.int64)   # all steps together may be beyond 32 bits
    for _ in range(steps):
        f = tl.load(forget + at, mask=inside, other=0.0)
        c = tl.load(candidate + at, mask=inside, other=0.0)
        hidden = f * hidden + (1.0 - f) * c
        tl.store(states + at, hidden, mask=inside)
        at += slab


@triton.jit
def _one_pass_backward(
    forget, candidate, initial, states, grad, to_forget, to_candidate, to_initial, steps, slab,
    BLOCK: tl.constexpr,
):
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < slab
    carry = tl.zeros([BLOCK], tl.float32)
    at = channel.to(tl.int64) + tl.cast(steps - 1, tl.int64) * slab
    for back in range(steps):
        f = tl.load(forget + at, mask=inside, other=0.0)
        c = tl.load(candidate + at, mask=inside, other=0.0)
        into = tl.load(grad + at, mask=inside, other=0.0) + carry
        if back == steps - 1:
            before = tl.load(initial + channel, mask=inside, other=0.0)
        else:
            before = tl.load(states + at - slab, mask=inside, other=0.0)
        carry = f * into
        tl.store(to_forget + at, (before - c) * into, mask=inside)
        tl.store(to_candidate + at, into - carry, mask=inside)
        at -= slab
    tl.store(to_initial + channel, carry, mask=inside)


@triton.jit
def _then(gain, added, later_gain, later_added):
    """Two maps ``s -> gain * s + added`` as one."""
    return gain * later_gain, later_gain * added + later_added


@triton.jit
def _chunked_forward(
    forget, candidate, initial, states, steps, slab, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, CHUNK)
    entering = tl.load(initial + channel, mask=channel < slab, other=0.0)
    for start in range(0, steps, CHUNK):
        step = start + row
        inside = (step < steps)[:, None] & (channel < slab)[None, :]
        at = step.to(tl.int64)[:, None] * slab + channel[None, :]
        # Steps beyond the last one leave the state as it is.
        f = tl.load(forget + at, mask=inside, other=1.0)
        c = tl.load(candidate + at, mask=inside, other=0.0)
        gain, local = tl.associative_scan((f, (1.0 - f) * c), 0, _then)
        hidden = gain * entering[None, :] + local
        tl.store(states + at, hidden, mask=inside)
        entering = tl.sum(tl.where((row == CHUNK - 1)[:, None], hidden, 0.0), 0)


@triton.jit
def _chunked_backward(
    forget, candidate, initial, states, grad, to_forget, to_candidate, to_initial, steps, slab,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, CHUNK)
    first = (row == 0)[:, None]
    known = channel < slab
    # From the later chunk: the gradient of its first state, times that step's gate.
    carry = tl.zeros([BLOCK], tl.float32)
    chunks = tl.cdiv(steps, CHUNK)
    for back in range(chunks):
        step = (chunks - 1 - back) * CHUNK + row
        inside = (step < steps)[:, None] & known[None, :]
        at = step.to(tl.int64)[:, None] * slab + channel[None, :]
        f = tl.load(forget + at, mask=inside, other=1.0)
        c = tl.load(candidate + at, mask=inside, other=0.0)
        added = tl.load(grad + at, mask=inside, other=0.0)
        # Backwards in time the gain into a step is the gate of the step after it. The last step
        # of a chunk has its carry multiplied already.
        follows = inside & (step + 1 < steps)[:, None] & (row < CHUNK - 1)[:, None]
        gain = tl.load(forget + at + slab, mask=follows, other=1.0)
        gain, local = tl.associative_scan((gain, added), 0, _then, reverse=True)
        into = gain * carry[None, :] + local
        before = tl.load(states + at - slab, mask=inside & (step > 0)[:, None], other=0.0)
        before += tl.load(initial + tl.broadcast_to(channel[None, :], [CHUNK, BLOCK]),
                          mask=inside & (step == 0)[:, None], other=0.0)
        passed = f * into
        tl.store(to_forget + at, (before - c) * into, mask=inside)
        tl.store(to_candidate + at, into - passed, mask=inside)
        carry = tl.sum(tl.where(first, passed, 0.0), 0)
    tl.store(to_initial + channel, carry, mask=known)


_FORWARD = ("*fp32",) * 4 + ("i32",) * 2
_BACKWARD = ("*fp32",) * 8 + ("i32",) * 2
_ONE_PASS = Form({"BLOCK": 32}, warps=1)
_CHUNKED = Form({"CHUNK": 64, "BLOCK": 32}, warps=4)

_ONE_PASS_FORWARD = Kernel(_one_pass_forward, _FORWARD, (_ONE_PASS,))
_ONE_PASS_BACKWARD = Kernel(_one_pass_backward, _BACKWARD, (_ONE_PASS,))
_CHUNKED_FORWARD = Kernel(_chunked_forward, _FORWARD, (_CHUNKED,))
_CHUNKED_BACKWARD = Kernel(_chunked_backward, _BACKWARD, (_CHUNKED,))

KERNELS = (_ONE_PASS_FORWARD, _ONE_PASS_BACKWARD, _CHUNKED_FORWARD, _CHUNKED_BACKWARD)
"""Every kernel of this file."""


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, forget: Tensor, candidate: Tensor, initial: Tensor, chunked: bool,
    ) -> Tensor:
        forget, candidate = forget.contiguous(), candidate.contiguous()
        initial, states = initial.contiguous(), torch.empty_like(candidate)
        ctx.kernel = _CHUNKED_BACKWARD if chunked else _ONE_PASS_BACKWARD
        _launch(_CHUNKED_FORWARD if chunked else _ONE_PASS_FORWARD,
                forget, candidate, initial, states)
        ctx.save_for_backward(forget, candidate, initial, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        forget, candidate, initial, _ = saved
        results = (
            torch.empty_like(forget), torch.empty_like(candidate), torch.empty_like(initial))
        _launch(ctx.kernel, *saved, grad.contiguous(), *results)
        return *results, None


def _launch(kernel: Kernel, *tensors: Tensor) -> None:
    forget, initial = tensors[0], tensors[2]
    form, = kernel.forms
    programs = triton.cdiv(initial.numel(), form.constants["BLOCK"])
    kernel.launch((programs,), *tensors, forget.shape[0], initial.numel(), form=form)


def scan_one_pass(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """All states ``[time, batch, channels]``, step by step.

    ``forget`` and ``candidate`` are float32 ``[time, batch, channels]``, on a GPU unless
    interpreted; ``initial`` is the state before the first step, ``[batch, channels]``.
    """
    states: Tensor = _Scan.apply(forget, candidate, initial, False)
    return states


def scan_chunked(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """As :func:`scan_one_pass`, by chunks of time."""
    states: Tensor = _Scan.apply(forget, candidate, initial, True)
    return states


def mlgru_scan(forget: Tensor, candidate: Tensor, initial: Tensor) -> Tensor:
    """As :func:`scan_one_pass`, by the form for this many steps."""
    return (scan_one_pass if len(forget) < _FEWEST_CHUNKED else scan_chunked)(
        forget, candidate, initial)
