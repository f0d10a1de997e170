"""The bare matrix-vector product of Sterna's library of operators, through ctypes.

The library multiplies int8 activations and gives int32 sums. ``edge_native.cpp`` beside this
file quantises a float32 vector before it and scales the sums after it, as every other
contestant does; it is compiled with g++ when it is first needed.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from ctypes import c_char_p, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Native", "NativeProduct"]

SOURCE = Path(__file__).with_suffix(".cpp")
PADDING = 16


class Native:
    """The functions of the library, with their types.

    Parameters
    ----------
    library
        Shared library that ``sterna build-ops`` made.

    Raises
    ------
    OSError
        If it cannot be loaded, or g++ is missing.
    """

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        for name, result, arguments in (
            ("sterna_kernel", c_char_p, [c_char_p]), ("sterna_error", c_char_p, []),
            ("sterna_pack", c_void_p, [c_void_p, c_int64, c_int64, c_char_p]),
            ("sterna_packed_bytes", c_int64, [c_void_p]),
        ):
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
        self.matmul = ctypes.cast(self.library.sterna_matmul, c_void_p)
        kernel = self.library.sterna_kernel(b"")
        if kernel is None:
            raise OSError(self.library.sterna_error().decode())
        self.kernel = kernel.decode()
        with tempfile.TemporaryDirectory(prefix="sterna-edge-") as folder:
            target = Path(folder) / "product.so"
            done = subprocess.run(
                ["g++", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
                 "-shared", "-fPIC", str(SOURCE), "-o", str(target)],
                capture_output=True, text=True, check=False)
            if done.returncode:
                raise OSError(f"{SOURCE}: g++ failed: {done.stderr.strip()[-200:]}")
            self.product = ctypes.CDLL(str(target)).product
        self.product.restype = None
        self.product.argtypes = [c_void_p] * 6 + [c_int64] * 2


@dataclass
class NativeProduct:
    """``weight @ x`` by the library's kernel for this processor.

    Parameters
    ----------
    native
        The library.
    weight
        Trits ``[rows, columns]``, of any number type.
    """

    native: Native
    weight: np.ndarray

    def __post_init__(self) -> None:
        rows, columns = self.weight.shape
        trits = np.ascontiguousarray(self.weight, dtype=np.int8)
        library = self.native.library
        matrix = library.sterna_pack(trits.ctypes.data, rows, columns, b"")
        if matrix is None:
            raise RuntimeError(library.sterna_error().decode())
        self.weight_bytes = int(library.sterna_packed_bytes(matrix))
        self.x, self.y = np.zeros(columns, np.float32), np.zeros(rows, np.float32)
        self._acts = _aligned(-(-columns // PADDING) * PADDING, np.int8)
        self._acc = _aligned(-(-rows // PADDING) * PADDING, np.int32)
        self._arguments = (
            self.native.matmul, matrix, *(each.ctypes.data for each in (
                self.x, self._acts, self._acc, self.y)), columns, rows)

    def __call__(self) -> None:
        """Compute ``y``, float32 ``[rows]``, from ``x``, float32 ``[columns]``."""
        self.native.product(*self._arguments)


def _aligned(count: int, dtype: type) -> np.ndarray:
    """Zeros that begin on a 64-byte boundary."""
    size = count * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start:start + size].view(dtype)
