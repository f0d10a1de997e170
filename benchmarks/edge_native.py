"""The bare matrix-vector product of Sterna's library of operators.

The library multiplies int8 activations and gives int32 sums. ``edge_native.cpp`` beside this
file quantises a float32 vector before it and scales the sums after it, as every other
contestant does; it is compiled with g++, which made the library too.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sterna.export.native.ops import OpsError, TernaryMatrix, kernel_name

__all__ = ["Native", "NativeProduct"]

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")


class Native:
    """The library, and what surrounds its product.

    Parameters
    ----------
    library
        Shared library that ``sterna build-ops`` made.

    Raises
    ------
    OpsError
        If it cannot be loaded, or g++ cannot compile what surrounds it.
    """

    def __init__(self, library: Path) -> None:
        self.library = library
        self.kernel = kernel_name(library)
        self.matmul = ctypes.cast(
            ctypes.CDLL(str(library.resolve())).sterna_matmul, c_void_p)
        with tempfile.TemporaryDirectory(prefix="sterna-edge-") as folder:
            target = Path(folder) / "product.so"
            try:
                subprocess.run(["g++", *FLAGS, str(SOURCE), "-o", str(target)],
                               capture_output=True, text=True, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise OpsError(f"{SOURCE.name}: g++ cannot compile it ({error})") from error
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
        self._matrix = TernaryMatrix(self.native.library, self.weight.astype(np.int8))
        self.weight_bytes = self._matrix.packed.nbytes
        self.x, self.y = np.zeros(columns, np.float32), np.zeros(rows, np.float32)
        self._buffers = self._matrix.buffers(1)
        acts, acc = (each.ctypes.data for each in self._buffers)
        self._arguments = (
            self.native.matmul, self._matrix._matrix, self.x.ctypes.data, acts, acc,
            self.y.ctypes.data, columns, rows)

    def __call__(self) -> None:
        """Compute ``y``, float32 ``[rows]``, from ``x``, float32 ``[columns]``."""
        self.native.product(*self._arguments)
