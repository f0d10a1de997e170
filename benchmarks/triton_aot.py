"""Every Triton kernel, compiled ahead of time for a GPU that need not be there.

For ``triton_table.py`` and ``tests/test_triton_compile.py``.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sterna.model.torch.triton_kernels import absmax, product, recurrence, ternary
from sterna.model.torch.triton_kernels.kernel import INTERPRETED, Form, Kernel

KERNELS = (*recurrence.KERNELS, *absmax.KERNELS, *ternary.KERNELS, *product.KERNELS)
"""All that can run."""
ARCHITECTURES = (80, 90)
"""Compute capabilities times ten: A100 (Ampere) and H100 (Hopper)."""

_ALIGNED = [["tt.divisibility", 16]]


class Sizes(Enum):
    """What a launch finds of the whole numbers, and has a form compiled for."""

    MULTIPLES_OF_16 = "multiples of 16"
    """Those and the addresses, as in real models: loads of 16 bytes."""
    ANY = "any"
    """Nothing is known."""
    ONE = "one"
    """All are 1, which Triton makes constants of."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A form of a kernel as machine code, with what a thread or a program takes."""

    registers: int      # of a thread, 32 bits each
    spilled_bytes: int  # of a thread's values, kept in memory for want of registers
    shared_bytes: int   # of a program
    cubin_bytes: int
    ptx: str


def compile_form(
    kernel: Kernel, form: Form, architecture: int, sizes: Sizes = Sizes.MULTIPLES_OF_16,
) -> Compiled:
    """Compile one form of a kernel for one of :data:`ARCHITECTURES`.

    ``sizes`` is what is known of the whole numbers that are no constants.
    """
    if INTERPRETED:
        raise ValueError("expected Triton's compiler, but TRITON_INTERPRET is set")
    names = kernel.function.arg_names
    constants = dict(form.constants)
    types = dict(zip([name for name in names if name not in constants], kernel.types, strict=True))
    if sizes is Sizes.ONE:
        constants |= {name: 1 for name, kind in types.items() if kind == "i32"}
    hints = {(names.index(name),): _ALIGNED for name, kind in types.items()
             if sizes is Sizes.MULTIPLES_OF_16 and kind != "fp32"}
    source = ASTSource(kernel.function, types | dict.fromkeys(constants, "constexpr"),
                       constants, hints)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", architecture, 32), options=form.options)
    cubin, ptx = compiled.asm["cubin"], compiled.asm["ptx"]
    registers, spilled = _resources(cubin)
    return Compiled(registers, spilled, compiled.metadata.shared, len(cubin), ptx)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory of a thread, by the disassembler in Triton's package."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "--dump-resource-usage", file.name], check=True,
                              capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", said)
    if found is None:
        raise RuntimeError(f"cuobjdump did not tell the registers, but {said!r}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local
