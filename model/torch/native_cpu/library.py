"""The library of kernels for training on a CPU: built on first use, called through ctypes.

It is plain C++ with a C interface rather than a torch extension: it takes pointers, needs no torch
or Python headers, builds in seconds, and one file serves all their versions.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache, partial
from pathlib import Path
from typing import Any

from sterna.model.cpp_library import CompileError, CppLibrary

__all__ = ["KERNEL_SOURCES", "SWITCH", "kernel_library", "load_kernels", "switched_off"]

KERNEL_SOURCES = Path(__file__).parent / "cpp"
"""The C++ sources."""
SWITCH = "STERNA_NATIVE"
"""Environment variable that disables the kernels with the value 0."""

# For this processor, with vectors of its width. Multiply-adds may be fused, as in torch's addition
# of a bias.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-gnu-unique",
          "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")


_Numbers = ctypes.c_int64
_Memory = ctypes.c_void_p
_CALLS: dict[str, tuple[tuple[type, str], ...]] = {
    "bit_linear": (
        (_Numbers, "tokens columns rows parts threads"),
        (_Memory, "weights biases rows_of scales"), (ctypes.c_float, "limit"),
        (ctypes.c_int32, "halves"),
        (_Memory, "x q gain inverse codes out grad to_x to_weights to_biases")),
    "scan": (
        (_Numbers, "steps lanes threads"),
        (_Memory, "forget candidate initial states grad to_forget to_candidate to_initial")),
    "gated_scan": (
        (_Numbers, "steps batch channels threads"),
        (_Memory, "z initial states out grad grad_last to_z to_initial")),
    "gated_silu": (
        (_Numbers, "tokens channels threads"), (ctypes.c_float, "limit"),
        (_Memory, "z out grad to_z")),
    "limited_sum": (
        (_Numbers, "count threads"), (ctypes.c_float, "limit"),
        (_Memory, "first second out grad to_both")),
}
"""Arguments of both passes of an operation: a type and the names of its arguments, in the order of
the structure in cpp/ that describes them."""


def switched_off() -> bool:
    """Whether ``STERNA_NATIVE=0`` is set."""
    return os.environ.get(SWITCH) == "0"


def kernel_library(processor: str = "native", *options: str) -> CppLibrary:
    """The library to build, for this processor or one that it can emulate, given by its g++ name
    and ``options`` that remove features."""
    return CppLibrary(
        "sterna-training", KERNEL_SOURCES, (*_FLAGS, f"-march={processor}", *options),
        "the kernels of training", this_processor=True)


@cache
def load_kernels(path: Path) -> ctypes.CDLL:
    """The loaded library: ``scan_forward`` and the others take tensors for pointers.

    Raises CompileError if the system cannot load it.
    """
    try:
        library = ctypes.CDLL(str(path))
        library.sterna_training_features.restype = ctypes.c_char_p
        for operation, groups in _CALLS.items():
            fields = [(name, kind) for kind, names in groups for name in names.split()]
            structure = type(operation, (ctypes.Structure,), {"_fields_": fields})
            for direction in ("forward", "backward"):
                function = library[f"sterna_{operation}_{direction}"]
                function.argtypes = [ctypes.POINTER(structure)]
                function.restype = None
                setattr(library, f"{operation}_{direction}", partial(_call, function, structure))
    except (OSError, AttributeError) as error:
        raise CompileError(f"{path}: cannot be loaded ({error})") from error
    return library


def _call(function: Any, structure: type[ctypes.Structure], *arguments: Any) -> None:
    function(structure(*(
        each.data_ptr() if hasattr(each, "data_ptr") else each for each in arguments)))
