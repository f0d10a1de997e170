"""A kernel with the types of its arguments and every form it is compiled in.

Kernels are launched by :meth:`Kernel.launch` alone, in a form of their list. So the list is all
that can run, and ``benchmarks/triton_aot.py`` compiles all of it without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch import Tensor

__all__ = ["INTERPRETED", "Form", "Kernel"]

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether Triton's interpreter runs the kernels on the CPU (``TRITON_INTERPRET=1`` at import)."""

_POINTERS = {torch.float32: "*fp32", torch.int8: "*i8"}
_SCALARS = {int: "i32", float: "fp32"}


@dataclass(frozen=True, slots=True)
class Form:
    """What the compiler is told beside the types: the kernel's ``constexpr`` arguments, warps of a
    program (32 threads each), and turns of a loop whose loads are in flight at a time.
    """

    constants: Mapping[str, Any]
    warps: int = 4
    stages: int = 2

    @property
    def options(self) -> dict[str, Any]:
        """The compiler's options.

        No product is fused with a sum: a fused one rounds once, and codes and states would then
        differ from those of the other forms in the last bit.
        """
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": False}

    def __str__(self) -> str:
        parts = [f"{name.lower()} {str(value).lower()}" for name, value in self.constants.items()]
        return ", ".join([*parts, f"warps {self.warps}"])


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that can be launched in any of its forms.

    ``function`` is what ``triton.jit`` made of it; ``types`` are Triton's names of the arguments'
    types in order, without the constants: ``*fp32``, ``i32``.
    """

    function: Any
    types: tuple[str, ...] = field(repr=False)
    forms: tuple[Form, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """The function's name."""
        return str(self.function.__name__)

    def launch(self, grid: tuple[int, ...], *arguments: Tensor | float, form: Form) -> None:
        """Run one program for each place of ``grid``, on the device of the first argument."""
        if INTERPRETED:   # a GPU would compile a form that is not in the list
            self._check(arguments, form)
        first = arguments[0]
        assert isinstance(first, Tensor)
        with torch.cuda.device_of(first):
            self.function[grid](*arguments, **form.constants, **form.options)

    def _check(self, arguments: tuple[Tensor | float, ...], form: Form) -> None:
        types = tuple(_POINTERS[value.dtype] if isinstance(value, Tensor) else _SCALARS[type(value)]
                      for value in arguments)
        if types != self.types or form not in self.forms:
            raise AssertionError(f"{self.name} is not compiled for {types} with {form}")
