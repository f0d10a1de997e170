"""One matrix-vector product in onnxruntime, in llama.cpp and in Sterna's library.

Every contestant takes a float32 vector, quantises it if it computes in integers, and multiplies it
with the same ternary matrix. onnxruntime is called with bound inputs and outputs, so that little of
Python is timed. llama.cpp's product is a graph of one ``ggml_mul_mat`` computed on one thread, as
for a projection, through its shared libraries. Sterna's library multiplies int8 activations to
int32 sums: ``edge_native.cpp`` quantises the vector before and scales the sums after it; both are
compiled with g++.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint8, c_void_p
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sterna.export.graph.fast import BLOCK, pack_codes
from sterna.export.native.ops import OpsError, TernaryMatrix, kernel_name

__all__ = ["PRODUCT_BASES", "Ggml", "GgmlProducts", "Native", "Product", "find_ggml", "products"]

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
    spec = find_spec("llama_cpp")  # not imported: that needs more than its libraries
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
    """The functions of ggml needed for a product, from libggml-base and libggml-cpu."""

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
        self.version = self.base.ggml_version().decode()


class GgmlProducts:
    """``weight @ x`` for several matrices in turn, as a graph on ``threads``; ``kind`` is a key of
    ``GGML_TYPES``, columns are a multiple of 256."""

    def __init__(
        self, ggml: Ggml, kind: str, weights: Sequence[np.ndarray], threads: int = 1,
    ) -> None:
        self.ggml, number = ggml, GGML_TYPES[kind]
        shapes = [weight.shape for weight in weights]
        for _, columns in shapes:
            if columns % 256:
                raise ValueError(f"columns must divide by 256 for ggml, got {columns}")
        sizes = [rows * ggml.base.ggml_row_size(number, columns) for rows, columns in shapes]
        self.weight_bytes = sum(sizes)
        vectors = sum(4 * (rows + columns) for rows, columns in shapes)
        context = ggml.base.ggml_init(
            _InitParams(self.weight_bytes + vectors + (4 << 20), None, False))
        self._graph = ggml.base.ggml_new_graph(context)
        self.x, self.y = [], []
        for weight in weights:
            rows, columns = weight.shape
            tensor = ggml.base.ggml_new_tensor_2d(context, number, columns, rows)
            values = np.ascontiguousarray(weight, dtype=np.float32)
            place = ggml.base.ggml_get_data(tensor)
            if kind == "F32":
                ctypes.memmove(place, values.ctypes.data, values.nbytes)
            else:
                ggml.base.ggml_quantize_chunk(
                    number, values.ctypes.data, place, 0, rows, columns, None)
            vector = ggml.base.ggml_new_tensor_2d(context, GGML_TYPES["F32"], columns, 1)
            result = ggml.base.ggml_mul_mat(context, tensor, vector)
            ggml.base.ggml_build_forward_expand(self._graph, result)
            self.x.append(_floats(ggml.base.ggml_get_data(vector), columns))
            self.y.append(_floats(ggml.base.ggml_get_data(result), rows))
        pool = ggml.base.ggml_threadpool_params_default(threads)
        pool.poll = 0       # threads sleep between graphs, so as not to disturb others
        self._plan = ggml.cpu.ggml_graph_plan(
            self._graph, threads, ggml.cpu.ggml_threadpool_new(ctypes.byref(pool)))
        self._work = (c_uint8 * max(1, self._plan.work_size))()
        self._plan.work_data = ctypes.addressof(self._work)
        self._pointer = ctypes.byref(self._plan)

    def __call__(self) -> None:
        """Compute each ``y``, float32 ``[rows]``, from its ``x``, float32 ``[columns]``."""
        status = self.ggml.cpu.ggml_graph_compute(self._graph, self._pointer)
        if status:
            raise RuntimeError(f"ggml_graph_compute failed with status {status}")


class GgmlProduct:
    """``weight @ x`` on one thread; ``kind`` is a key of ``GGML_TYPES``, columns are a multiple of
    256."""

    def __init__(self, ggml: Ggml, kind: str, weight: np.ndarray) -> None:
        self._product = GgmlProducts(ggml, kind, [weight])
        self.weight_bytes = self._product.weight_bytes
        (self.x,), (self.y,) = self._product.x, self._product.y

    def __call__(self) -> None:
        """Compute ``y``, float32 ``[rows]``, from ``x``, float32 ``[columns]``."""
        self._product()


def _floats(address: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


KERNELS = ("avx512vnni", "avx2", "neon-dot", "neon", "portable")
SOURCE = Path(__file__).with_name("edge_native.cpp")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")


class Native:
    """The library built by ``sterna build-ops``, and the wrapper of its product."""

    def __init__(self, library: Path) -> None:
        self.library = library
        self.kernels = []
        for name in KERNELS:
            with suppress(OpsError):        # this processor lacks it
                self.kernels.append(kernel_name(library, name))
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
    """``weight @ x`` by a kernel of the library; trits of any number type."""

    native: Native
    kernel: str
    weight: np.ndarray

    def __post_init__(self) -> None:
        rows, columns = self.weight.shape
        self._matrix = TernaryMatrix(
            self.native.library, self.weight.astype(np.int8), self.kernel)
        self.weight_bytes = self._matrix.packed_bytes
        self.x, self.y = np.zeros(columns, np.float32), np.zeros(rows, np.float32)
        self._buffers = self._matrix.buffers(1)
        acts, acc = (each.ctypes.data for each in self._buffers)
        self._arguments = (
            self.native.matmul, self._matrix._matrix, self.x.ctypes.data, acts, acc,
            self.y.ctypes.data, columns, rows)

    def __call__(self) -> None:
        """Compute ``y``, float32 ``[rows]``, from ``x``, float32 ``[columns]``."""
        self.native.product(*self._arguments)


FLOAT32 = "MatMul float32"
PRODUCT_BASES = (FLOAT32, "llama.cpp TQ2_0")
LARGEST_ERROR = 0.03
GGML_KINDS = ("TQ2_0", "TQ1_0", "Q8_0")


class Product(Protocol):
    """A product ready to be computed."""

    weight_bytes: int
    x: np.ndarray
    y: np.ndarray

    def __call__(self) -> None:
        """Compute ``y [rows]`` from ``x [columns]``."""


class OnnxProduct:
    """A product as an ONNX graph from ``x`` float32 ``[1, columns]`` to ``y [1, rows]``."""

    def __init__(
        self, nodes: list[tuple[str, list[str], list[str], dict[str, int]]],
        tensors: dict[str, np.ndarray], columns: int, rows: int,
    ) -> None:
        self.weight_bytes = sum(each.nbytes for each in tensors.values())
        graph = helper.make_graph(
            [helper.make_node(
                kind, ins, outs, domain="com.microsoft" if kind == "MatMulNBits" else "", **attrs)
             for kind, ins, outs, attrs in nodes], "product",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, columns])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, rows])],
            [numpy_helper.from_array(value, name) for name, value in tensors.items()])
        model = helper.make_model(
            graph, ir_version=10, opset_imports=[
                helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.x, self.y = np.zeros(columns, np.float32), np.zeros(rows, np.float32)
        self._binding = self._session.io_binding()
        self._binding.bind_input(
            "x", "cpu", 0, np.float32, (1, columns), self.x.ctypes.data)
        self._binding.bind_output("y", "cpu", 0, np.float32, (1, rows), self.y.ctypes.data)

    def __call__(self) -> None:
        """Compute ``y [rows]`` from ``x [columns]``."""
        self._session.run_with_iobinding(self._binding)


def float32(weight: np.ndarray) -> OnnxProduct:
    """A dense float32 product."""
    rows, columns = weight.shape
    return OnnxProduct([("MatMul", ["x", "w"], ["y"], {})],
                       {"w": np.ascontiguousarray(weight.T, np.float32)}, columns, rows)


def int8(weight: np.ndarray) -> OnnxProduct:
    """DynamicQuantizeLinear and MatMulInteger, which onnxruntime fuses."""
    rows, columns = weight.shape
    return OnnxProduct([
        ("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], {}),
        ("MatMulInteger", ["q", "w", "zero"], ["sum"], {}),
        ("Cast", ["sum"], ["real"], {"to": TensorProto.FLOAT}),
        ("Mul", ["real", "scale"], ["y"], {})],
        {"w": np.ascontiguousarray(weight.T, np.int8)}, columns, rows)


def two_bit(weight: np.ndarray) -> OnnxProduct:
    """MatMulNBits of 2 bits in blocks of 128 at accuracy level 4: 8-bit activations."""
    rows, columns = weight.shape
    packed = pack_codes(weight.astype(np.int8))
    return OnnxProduct([("MatMulNBits", ["x", "w", "scales"], ["y"], {
        "K": columns, "N": rows, "bits": 2, "block_size": BLOCK, "accuracy_level": 4})],
        {"w": packed, "scales": np.ones(packed.shape[:2], np.float32)}, columns, rows)


def products(
    columns: int, rows: int, *, ggml: Ggml | None, native: Native | None,
) -> tuple[dict[str, Product], dict[str, str]]:
    """Make every product of one ternary matrix ``[rows, columns]`` with the available libraries.

    Products further from NumPy's than 8-bit activations explain are rejected, as wrong results are
    not worth timing. Returns the products by name, and the reasons for those that could not be
    made.
    """
    rng = np.random.default_rng(2)
    weight = rng.integers(-1, 2, size=(rows, columns)).astype(np.float32)
    x = rng.standard_normal(columns).astype(np.float32)
    made: dict[str, Product] = {}
    makers: dict[str, Callable[[np.ndarray], Product]] = {
        FLOAT32: float32, "MatMulInteger u8": int8,
        "MatMulNBits 2-bit": two_bit}
    if ggml is not None:
        makers |= {f"llama.cpp {kind}": partial(GgmlProduct, ggml, kind) for kind in GGML_KINDS}
    if native is not None:
        makers |= {f"Sterna {kernel}": partial(NativeProduct, native, kernel)
                   for kernel in native.kernels}
    failed = {}
    for name, make in makers.items():
        try:
            product = make(weight)
            product.x[:] = x
            product()
        except Exception as reason:  # the base of all onnxruntime errors
            failed[name] = " ".join(str(reason).split())[:200]
            continue
        expected = weight @ x
        error = float(np.sqrt(np.mean((product.y - expected) ** 2) / np.mean(expected ** 2)))
        if error < LARGEST_ERROR:
            made[name] = product
        else:
            failed[name] = f"its relative error is {error:.3g}, expected below {LARGEST_ERROR}"
    return made, failed
