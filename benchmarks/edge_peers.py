"""One matrix-vector product in onnxruntime, in llama.cpp and in Sterna's library.

Every contestant takes a float32 vector, quantises it if it computes in integers, and
multiplies it with the same ternary matrix. onnxruntime is called with its inputs and outputs
bound, so that little of Python is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
import onnxruntime
from edge_ggml import Ggml, GgmlProduct
from edge_native import Native, NativeProduct
from onnx import TensorProto, helper, numpy_helper

__all__ = ["PRODUCT_BASES", "Product", "products"]

FLOAT32 = "MatMul float32"
PRODUCT_BASES = (FLOAT32, "llama.cpp TQ2_0")
BLOCK = 128
LARGEST_ERROR = 0.03
GGML_KINDS = ("TQ2_0", "TQ1_0", "Q8_0")


class Product(Protocol):
    """A product that is ready to be computed."""

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
    """DynamicQuantizeLinear and MatMulInteger, which onnxruntime makes one operator of."""
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
    blocks = -(-columns // BLOCK)
    codes = np.full((rows, blocks * BLOCK), 2, np.uint8)  # 2 is the zero point
    codes[:, :columns] += weight.astype(np.int8).view(np.uint8)
    packed = (codes.reshape(rows, blocks, -1, 4) << np.array([0, 2, 4, 6], np.uint8)).sum(
        axis=-1, dtype=np.uint8)
    return OnnxProduct([("MatMulNBits", ["x", "w", "scales"], ["y"], {
        "K": columns, "N": rows, "bits": 2, "block_size": BLOCK, "accuracy_level": 4})],
        {"w": packed, "scales": np.ones((rows, blocks), np.float32)}, columns, rows)


def products(
    columns: int, rows: int, *, ggml: Ggml | None, native: Native | None,
) -> tuple[dict[str, Product], dict[str, str]]:
    """Make every product of one ternary matrix ``[rows, columns]``.

    A product that is further from NumPy's than 8-bit activations explain is not made: what
    computes nonsense is not timed.

    Parameters
    ----------
    columns, rows
        Length of the vector, and of the result.
    ggml
        llama.cpp's libraries, if there are any.
    native
        Sterna's library of operators, if there is one.

    Returns
    -------
    The products by name; and of those that could not be made, the reasons.
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
        makers[f"Sterna {native.kernel}"] = partial(NativeProduct, native)
    failed = {}
    for name, make in makers.items():
        try:
            product = make(weight)
            product.x[:] = x
            product()
        except Exception as reason:  # onnxruntime's classes all come from Exception
            failed[name] = " ".join(str(reason).split())[:200]
            continue
        error = relative_error(product.y, weight @ x)
        if error < LARGEST_ERROR:
            made[name] = product
        else:
            failed[name] = f"its relative error is {error:.3g}, expected below {LARGEST_ERROR}"
    return made, failed


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square of the differences over that of ``expected``."""
    return float(np.sqrt(np.mean((result - expected) ** 2) / np.mean(expected ** 2)))
