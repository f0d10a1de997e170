"""The compiled kernels for the table of :mod:`sterna.model.network.kernels`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sterna.model.native_cpu.functions import NativeFunctions
from sterna.model.native_cpu.library import SWITCH, kernel_library, load_kernels, switched_off
from sterna.model.network.kernels import Kernels

__all__ = ["cpu_kernels", "kernels_of_library"]


def cpu_kernels(note: Callable[[str], None] = lambda line: None) -> Kernels | None:
    """The kernels for this processor, compiled if they are not yet; None where they cannot be had.

    Parameters
    ----------
    note
        Called with one line that says what will compute, and if it is not the kernels, why.
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

    Raises
    ------
    CompileError
        If the system cannot load it.
    """
    library = load_kernels(path)
    functions = NativeFunctions(library)
    return Kernels(
        f"compiled kernels ({library.sterna_training_features().decode()})", "cpu",
        functions.bit_linear, functions.mlgru_scan, functions.gated_scan, functions.gated_silu,
        functions.limited_sum)
