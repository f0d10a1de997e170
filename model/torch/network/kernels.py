"""Replaceable functions: a table of compiled kernels by kind of device, and temporary replacements
by an exporter or a check.

The table is empty until :func:`use_kernels` fills it, as training does. Triton kernels, for GPUs,
are not in it: :func:`by_triton` says when they are used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, update_wrapper
from importlib.util import find_spec
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = ["Kernels", "Replaceable", "by_triton", "kernels_for", "use_kernels"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Replaceable(Generic[_Parameters, _Result]):
    """Decorator: a function that another one can replace inside a ``with``.

    Replacement is per process, not per thread.

    >>> @Replaceable
    ... def double(x: int) -> int:
    ...     return x + x
    >>> with double.by(lambda x: 2 * x + 1):
    ...     double(4)
    9
    >>> double(4)
    8
    """

    def __init__(self, function: Callable[_Parameters, _Result]) -> None:
        self._current = function
        update_wrapper(self, function)

    def __call__(self, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        return self._current(*args, **kwargs)

    @contextmanager
    def by(self, other: Callable[_Parameters, _Result]) -> Iterator[None]:
        """Context in which ``other`` is called, with the same parameters."""
        before, self._current = self._current, other
        try:
            yield
        finally:
            self._current = before


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels for float32 tensors of a kind of device, such as ``cpu``, with gradients; ``name`` is
    a readable description.

    Each has the signature of the function of its name in
    :mod:`~sterna.model.torch.network.bitlinear`, :mod:`~sterna.model.torch.network.recurrence` or,
    without numerics, :mod:`~sterna.model.torch.network.gates`; tensors are not empty, and need not
    be contiguous. ``limited_sum`` adds two tensors of one shape. It and ``gated_silu`` clamp the
    result to plus and minus a number; clamped values pass no gradient.
    """

    name: str
    device: str
    bit_linear: Callable[[Tensor, Sequence[Tensor], Sequence[Tensor] | None, float], Tensor]
    mlgru_scan: Callable[[Tensor, Tensor, Tensor], Tensor]
    gated_scan: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    gated_silu: Callable[[Tensor, float], Tensor]
    limited_sum: Callable[[Tensor, Tensor, float], Tensor]


_IN_USE: dict[str, Kernels] = {}


def kernels_for(*tensors: Tensor) -> Kernels | None:
    """The kernels in use for these tensors, if they are plain, float32, not empty and on one
    device, and torch does not trace or compile; else None, for torch's operators."""
    kernels = _IN_USE.get(tensors[0].device.type)
    if kernels is None or torch.compiler.is_compiling():
        return None
    device = tensors[0].device
    for each in tensors:
        if (each.dtype != torch.float32 or each.device != device or not each.numel()
                or type(each) not in (Tensor, torch.nn.Parameter)):
            return None
    return kernels


@contextmanager
def use_kernels(kernels: Kernels | None) -> Iterator[None]:
    """Context in which ``kernels`` compute for their device; None: torch's operators on every
    device. It applies per process, not per thread."""
    before = dict(_IN_USE)
    if kernels is None:
        _IN_USE.clear()
    else:
        _IN_USE[kernels.device] = kernels
    try:
        yield
    finally:
        _IN_USE.clear()
        _IN_USE.update(before)


@cache
def _triton_wanted() -> bool:
    return os.environ.get("STERNA_TRITON") != "0" and find_spec("triton") is not None


@Replaceable
def by_triton(*tensors: Tensor) -> bool:
    """Whether the kernels of ``model/torch/triton_kernels`` are used for these tensors.

    They are if all are plain tensors, float32 and on a CUDA device, Triton is installed (the extra
    ``triton``), ``STERNA_TRITON`` is not 0, and torch does not compile. Other tensor classes, such
    as an exporter's or distributed ones, support torch's operators only.
    ``with by_triton.by(lambda *tensors: False)`` leaves all to torch.
    """
    return not torch.compiler.is_compiling() and _triton_wanted() and all(
        type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_cuda
        and tensor.dtype == torch.float32 for tensor in tensors)
