"""Matrix-vector products of ggml, the kernels of llama.cpp, through its shared libraries.

A product is a graph of one ``ggml_mul_mat`` computed on one thread, which is what llama.cpp
runs for a projection: the float32 vector is quantised inside of it, at every call.
"""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint8, c_void_p
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["GGML_TYPES", "Ggml", "GgmlProduct", "find_ggml"]

# enum ggml_type of ggml.h; the numbers are part of the GGUF file format.
GGML_TYPES = {"F32": 0, "Q8_0": 8, "TQ1_0": 34, "TQ2_0": 35}


class _InitParams(ctypes.Structure):
    """``struct ggml_init_params`` of ggml.h."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class _Plan(ctypes.Structure):
    """``struct ggml_cplan`` of ggml-cpu.h."""

    _fields_ = (
        ("work_size", c_size_t), ("work_data", c_void_p), ("n_threads", c_int),
        ("threadpool", c_void_p), ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p), ("use_ref", c_bool))


class _PoolParams(ctypes.Structure):
    """``struct ggml_threadpool_params`` of ggml.h."""

    _fields_ = (
        ("cpumask", c_bool * 512), ("n_threads", c_int), ("prio", c_int),
        ("poll", ctypes.c_uint32), ("strict_cpu", c_bool), ("paused", c_bool))


def find_ggml() -> Path | None:
    """The folder of the libraries that ``llama-cpp-python`` installs, or None."""
    spec = find_spec("llama_cpp")  # Found, not imported: it needs more than its libraries.
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "lib"
    return folder if folder.is_dir() else None


def _library(folder: Path, name: str) -> ctypes.CDLL:
    found = sorted(path for path in folder.glob(f"lib{name}.*")
                   if {".so", ".dylib"} & set(path.suffixes))
    if not found:
        raise ValueError(f"{folder}: expected the shared library lib{name} of ggml there")
    return ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)


class Ggml:
    """The functions of ggml that a product needs, with their types.

    Parameters
    ----------
    folder
        Where libggml-base and libggml-cpu are.

    Raises
    ------
    ValueError
        If a library is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.base, self.cpu = _library(folder, "ggml-base"), _library(folder, "ggml-cpu")
        signatures: dict[ctypes.CDLL, dict[str, tuple[Any, ...]]] = {
            self.base: {
                "ggml_init": (c_void_p, _InitParams), "ggml_free": (None, c_void_p),
                "ggml_version": (c_char_p,), "ggml_row_size": (c_size_t, c_int, c_int64),
                "ggml_new_tensor_2d": (c_void_p, c_void_p, c_int, c_int64, c_int64),
                "ggml_mul_mat": (c_void_p, c_void_p, c_void_p, c_void_p),
                "ggml_get_data": (c_void_p, c_void_p), "ggml_new_graph": (c_void_p, c_void_p),
                "ggml_build_forward_expand": (None, c_void_p, c_void_p),
                "ggml_threadpool_params_default": (_PoolParams, c_int),
                "ggml_quantize_chunk": (
                    c_size_t, c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p)},
            self.cpu: {
                "ggml_cpu_init": (None,), "ggml_threadpool_new": (c_void_p, c_void_p),
                "ggml_graph_plan": (_Plan, c_void_p, c_int, c_void_p),
                "ggml_graph_compute": (c_int, c_void_p, c_void_p)}}
        for library, functions in signatures.items():
            for name, (result, *arguments) in functions.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        self.cpu.ggml_cpu_init()
        pool = self.base.ggml_threadpool_params_default(1)
        self.pool = self.cpu.ggml_threadpool_new(ctypes.byref(pool))
        self.version = self.base.ggml_version().decode()


@dataclass
class GgmlProduct:
    """``weight @ x`` on one thread.

    Parameters
    ----------
    ggml
        The libraries.
    kind
        A key of ``GGML_TYPES``.
    weight
        float32 ``[rows, columns]``; columns divide by 256.
    """

    ggml: Ggml
    kind: str
    weight: np.ndarray

    def __post_init__(self) -> None:
        ggml, number = self.ggml, GGML_TYPES[self.kind]
        rows, columns = self.weight.shape
        if columns % 256:
            raise ValueError(f"columns must divide by 256 for ggml, got {columns}")
        weight = np.ascontiguousarray(self.weight, dtype=np.float32)
        self.weight_bytes = rows * ggml.base.ggml_row_size(number, columns)
        size = self.weight_bytes + (columns + rows) * 4 + (4 << 20)
        context = ggml.base.ggml_init(_InitParams(size, None, False))
        tensor = ggml.base.ggml_new_tensor_2d(context, number, columns, rows)
        place = ggml.base.ggml_get_data(tensor)
        if self.kind == "F32":
            ctypes.memmove(place, weight.ctypes.data, weight.nbytes)
        else:
            ggml.base.ggml_quantize_chunk(
                number, weight.ctypes.data, place, 0, rows, columns, None)
        vector = ggml.base.ggml_new_tensor_2d(context, GGML_TYPES["F32"], columns, 1)
        result = ggml.base.ggml_mul_mat(context, tensor, vector)
        self._graph = ggml.base.ggml_new_graph(context)
        ggml.base.ggml_build_forward_expand(self._graph, result)
        self._plan = ggml.cpu.ggml_graph_plan(self._graph, 1, ggml.pool)
        self._work = (c_uint8 * max(1, self._plan.work_size))()
        self._plan.work_data = ctypes.addressof(self._work)
        self._pointer = ctypes.byref(self._plan)
        self.x = _floats(ggml.base.ggml_get_data(vector), columns)
        self.y = _floats(ggml.base.ggml_get_data(result), rows)

    def __call__(self) -> None:
        """Compute ``y``, float32 ``[rows]``, from ``x``, float32 ``[columns]``."""
        status = self.ggml.cpu.ggml_graph_compute(self._graph, self._pointer)
        if status:
            raise RuntimeError(f"ggml_graph_compute failed with status {status}")


def _floats(address: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
