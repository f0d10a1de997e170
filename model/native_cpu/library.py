"""The library of kernels for training on a CPU: built on first use, called through ctypes.

It is plain C++ with a C interface rather than an extension of torch: it takes pointers, needs no
header of torch or Python, builds in seconds, and the same file serves every version of both.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from sterna.model.cpp_library import CompileError, CppLibrary

__all__ = ["KERNEL_SOURCES", "SWITCH", "BitLinearCall", "GatedScanCall", "GatedSiluCall",
           "LimitedSumCall", "ScanCall", "kernel_library", "load_kernels", "switched_off"]

KERNEL_SOURCES = Path(__file__).parent / "cpp"
"""The C++ sources."""
SWITCH = "STERNA_NATIVE"
"""Environment variable that switches the kernels off, with the value 0."""

# For the processor at hand, in whose vectors the sources are written. A product and the sum after
# it may be rounded as one, as torch does where it adds a bias.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-gnu-unique",
          "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")


def switched_off() -> bool:
    """Whether ``STERNA_NATIVE=0`` is set."""
    return os.environ.get(SWITCH) == "0"


def kernel_library(processor: str = "native", *options: str) -> CppLibrary:
    """What is built: for the processor at hand, or for another that it can stand in for, by the
    name that g++ has for it and ``options`` that take from it."""
    return CppLibrary(
        "sterna-training", KERNEL_SOURCES, (*_FLAGS, f"-march={processor}", *options),
        "the kernels of training", this_processor=True)


@cache
def load_kernels(path: Path) -> ctypes.CDLL:
    """The library, loaded.

    Raises CompileError if the system cannot load it.
    """
    try:
        library = ctypes.CDLL(str(path))
        library.sterna_training_features.restype = ctypes.c_char_p
        for call in (BitLinearCall, ScanCall, GatedScanCall, GatedSiluCall, LimitedSumCall):
            for way in ("forward", "backward"):
                function = library[f"sterna_{call.operation}_{way}"]
                setattr(library, f"{call.operation}_{way}", function)
                function.argtypes = [ctypes.POINTER(call)]
                function.restype = None
    except (OSError, AttributeError) as error:
        raise CompileError(f"{path}: cannot be loaded ({error})") from error
    return library


def _fields(*groups: tuple[type, str]) -> list[tuple[str, type]]:
    """Fields of a structure: a type, and the names of those that have it, in their order."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class BitLinearCall(ctypes.Structure):
    """Arguments of both passes of a BitLinear; cpp/bit_linear.hpp says what they are."""

    operation = "bit_linear"
    _fields_ = _fields(
        (ctypes.c_int64, "tokens columns rows parts threads"),
        (ctypes.c_void_p, "weights biases rows_of scales"), (ctypes.c_float, "limit"),
        (ctypes.c_int32, "halves"),
        (ctypes.c_void_p, "x q gain inverse codes out grad to_x to_weights to_biases"))


class ScanCall(ctypes.Structure):
    """Arguments of both passes of the recurrence; this and the following are in cpp/gates.cpp."""

    operation = "scan"
    _fields_ = _fields(
        (ctypes.c_int64, "steps lanes threads"),
        (ctypes.c_void_p, "forget candidate initial states grad to_forget to_candidate "
                          "to_initial"))


class GatedScanCall(ctypes.Structure):
    """Arguments of both passes of MLGRU with its gates."""

    operation = "gated_scan"
    _fields_ = _fields(
        (ctypes.c_int64, "steps batch channels threads"),
        (ctypes.c_void_p, "z initial states out grad grad_last to_z to_initial"))


class GatedSiluCall(ctypes.Structure):
    """Arguments of both passes of SwiGLU's product."""

    operation = "gated_silu"
    _fields_ = _fields(
        (ctypes.c_int64, "tokens channels threads"), (ctypes.c_float, "limit"),
        (ctypes.c_void_p, "z out grad to_z"))


class LimitedSumCall(ctypes.Structure):
    """Arguments of both passes of a limited sum."""

    operation = "limited_sum"
    _fields_ = _fields(
        (ctypes.c_int64, "count threads"), (ctypes.c_float, "limit"),
        (ctypes.c_void_p, "first second out grad to_both"))
