"""The compiled kernels as functions of torch tensors, with gradients.

For the table of :mod:`sterna.model.torch.network.kernels`. Tensors are float32 on the CPU and not
empty; shapes that do not fit raise ValueError. The functions are documented with their torch forms
in :mod:`sterna.model.torch.network.bitlinear`, ``recurrence`` and ``gates``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sterna.model.torch.native_cpu.library import SWITCH, kernel_library, load_kernels, switched_off
from sterna.model.torch.network.kernels import Kernels
from sterna.model.torch.network.quantizers import ternary_scale

__all__ = ["cpu_kernels", "kernels_of_library"]


def cpu_kernels(note: Callable[[str], None] = lambda line: None) -> Kernels | None:
    """The kernels for this processor, compiled if necessary; None if unavailable.

    ``note`` is called with one line that names what will compute, and if not the kernels, why.
    """
    if switched_off():
        note(f"computing with torch's operators, as {SWITCH}=0 asks for")
        return None
    try:
        kernels = kernels_of_library(kernel_library().build())
    except (ValueError, OSError) as error:
        note(f"computing with torch's operators, which takes longer: {error}")
        return None
    note(f"computing with {kernels.name}")
    return kernels


def kernels_of_library(path: Path) -> Kernels:
    """The kernels of a built library.

    Raises CompileError if the system cannot load it.
    """
    library = load_kernels(path)

    def bit_linear(
        x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None, limit: float,
    ) -> Tensor:
        result: Tensor = _BitLinear.apply(
            library, x, limit, len(weights), *weights, *(biases or ()))
        return result

    return Kernels(
        f"compiled kernels ({library.sterna_training_features().decode()})", "cpu", bit_linear,
        *(partial(each.apply, library) for each in (_Scan, _GatedScan, _GatedSilu, _LimitedSum)))


def _same(what: str, found: Sequence[int], expected: Sequence[int]) -> None:
    """Refuse a wrong shape, as the library checks no bounds."""
    if tuple(found) != tuple(expected):
        raise ValueError(f"{what} must be {list(expected)}, got {list(found)}")


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[each.data_ptr() for each in tensors])


class _BitLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, library: Any, x: Tensor, limit: float, parts: int, *parameters: Tensor,
    ) -> Tensor:
        x = x.contiguous()
        weights = [each.detach().contiguous() for each in parameters[:parts]]
        biases = [each.detach().contiguous() for each in parameters[parts:]]
        scales = torch.stack([ternary_scale(weight) for weight in weights])
        rows = [weight.shape[0] for weight in weights]
        columns, count = x.shape[-1], sum(rows)
        for number, weight in enumerate(weights):
            _same("a matrix", weight.shape, (rows[number], columns))
            if biases:
                _same("its bias", biases[number].shape, (rows[number],))
        tokens = x.numel() // columns
        q = x.new_empty((tokens, -(-columns // 4) * 4), dtype=torch.int8)
        gain, inverse = x.new_empty(2, tokens).unbind()
        codes = x.new_empty((count, columns), dtype=torch.int8)
        out = x.new_empty((*x.shape[:-1], count))
        arrays = (_pointers(weights), _pointers(biases) if biases else None,
                  (ctypes.c_int64 * parts)(*rows))
        library.bit_linear_forward(
            tokens, columns, count, parts, torch.get_num_threads(),
            *map(_address, arrays), scales, limit, 0, x, q, gain, inverse, codes, out)
        # Without a limit the outputs are not needed again.
        ctx.save_for_backward(q, gain, inverse, codes, scales, out if limit < _ALL else None)
        ctx.library, ctx.limit, ctx.rows, ctx.shape = library, limit, rows, x.shape
        ctx.has_biases = bool(biases)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, gain, inverse, codes, scales, out = ctx.saved_tensors
        grad = grad.contiguous()
        rows, columns = codes.shape
        to_x, to_weights = grad.new_empty(ctx.shape), grad.new_empty((rows, columns))
        to_biases = grad.new_empty(rows) if ctx.has_biases else None
        sizes = (ctypes.c_int64 * len(ctx.rows))(*ctx.rows)
        # As torch's product with this setting, if the processor supports it.
        halves = torch.get_float32_matmul_precision() == "medium"
        ctx.library.bit_linear_backward(
            q.shape[0], columns, rows, len(ctx.rows), torch.get_num_threads(), None, None,
            _address(sizes), scales, ctx.limit, halves, None,
            q, gain, inverse, codes, out, grad, to_x, to_weights, to_biases)
        return (None, to_x, None, None, *to_weights.split(ctx.rows),
                *(() if to_biases is None else to_biases.split(ctx.rows)))


_ALL = float("inf")


def _address(array: Any) -> int | None:
    return None if array is None else ctypes.addressof(array)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, library: Any, forget: Tensor, candidate: Tensor, initial: Tensor,
    ) -> Tensor:
        _same("forget gates", forget.shape, candidate.shape)
        _same("the initial state", initial.shape, candidate.shape[1:])
        given = [each.contiguous() for each in (forget, candidate, initial)]
        states = torch.empty_like(given[1])
        library.scan_forward(
            len(forget), initial.numel(), torch.get_num_threads(), *given, states)
        ctx.save_for_backward(*given, states)
        ctx.library = library
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        grad = grad.contiguous()
        found = [torch.empty_like(each) for each in saved[:3]]
        ctx.library.scan_backward(
            len(grad), found[2].numel(), torch.get_num_threads(), *saved, grad, *found)
        return (None, *found)


class _GatedScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, library: Any, z: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        z, initial = z.contiguous(), initial.contiguous()
        steps, batch, channels = len(z), *initial.shape
        _same("pre-activations", z.shape, (steps, batch, 3 * channels))
        states, out = (z.new_empty(steps, batch, channels) for _ in range(2))
        library.gated_scan_forward(
            steps, batch, channels, torch.get_num_threads(), z, initial, states, out)
        ctx.save_for_backward(z, initial, states)
        ctx.library = library
        return out, states[-1].clone()      # not all of the states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        z, initial, states = ctx.saved_tensors
        grad = torch.zeros_like(states) if grad is None else grad.contiguous()
        grad_last = None if grad_last is None else grad_last.contiguous()
        to_z, to_initial = torch.empty_like(z), torch.empty_like(initial)
        ctx.library.gated_scan_backward(
            len(z), *initial.shape, torch.get_num_threads(),
            z, initial, states, None, grad, grad_last, to_z, to_initial)
        return None, to_z, to_initial


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, library: Any, z: Tensor, limit: float) -> Tensor:
        z = z.contiguous()
        channels = z.shape[-1] // 2
        _same("pre-activations", z.shape, (*z.shape[:-1], 2 * channels))
        out = z.new_empty((*z.shape[:-1], channels))
        library.gated_silu_forward(
            out.numel() // channels, channels, torch.get_num_threads(), limit, z, out)
        ctx.save_for_backward(z)
        ctx.library, ctx.limit = library, limit
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (z,) = ctx.saved_tensors
        grad, to_z = grad.contiguous(), torch.empty_like(z)
        channels = grad.shape[-1]
        ctx.library.gated_silu_backward(
            grad.numel() // channels, channels, torch.get_num_threads(), ctx.limit,
            z, None, grad, to_z)
        return None, to_z, None


class _LimitedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, library: Any, first: Tensor, second: Tensor, limit: float) -> Tensor:
        _same("what is added", second.shape, first.shape)
        first, second = first.contiguous(), second.contiguous()
        out = torch.empty_like(first)
        library.limited_sum_forward(
            out.numel(), torch.get_num_threads(), limit, first, second, out)
        ctx.save_for_backward(out)
        ctx.library, ctx.limit = library, limit
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (out,) = ctx.saved_tensors
        grad, to_both = grad.contiguous(), torch.empty_like(out)
        ctx.library.limited_sum_backward(
            out.numel(), torch.get_num_threads(), ctx.limit, None, None, out, grad, to_both)
        return None, to_both, to_both, None
