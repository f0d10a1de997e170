"""The ways of multiplying by ternary weights: one function body for each exact form.

``TernaryMatMul(q, weight) -> acc``: q float64 ``[1, rows, columns]`` of whole numbers from
-127 to 127, acc float64 ``[1, rows, n]``. Every body gives the same whole numbers; they differ
in the kernels a runtime has for them, and in how the weight is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sterna.export.graph.builder import NodeBuilder
from sterna.model.quantized.file import pack_trits

__all__ = ["BLOCK", "CONTRIB", "FLOAT", "INTEGER", "PINNED", "Product", "block_columns",
           "nbits_product", "pack_codes", "store_trits"]

CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators."""
BLOCK = 128
"""Columns that share a scale in ``MatMulNBits``; its fastest kernels have this size."""


class Product:
    """One way of multiplying: the functions it needs, and how a weight is stored.

    ``make`` appends the nodes for ``columns`` and ``rows``, and returns what they compute in words.
    ``store`` makes the initialiser of a weight ``[rows, columns]``, without a name. ``by_shape``
    says whether the nodes depend on the shape of the matrix, which is then in the function's name;
    ``trits`` whether the initialiser is int2, which the caller has to cast to int8.
    """

    def __init__(
        self, make: Callable[[NodeBuilder, int, int], str],
        store: Callable[[np.ndarray], TensorProto], *, by_shape: bool = False, trits: bool = True,
    ) -> None:
        self._make = make
        self.store = store
        self.trits = trits
        self._by_shape = by_shape

    def name(self, columns: int, rows: int) -> str:
        """Name of the function that multiplies by a matrix of this shape."""
        return f"TernaryMatMul{columns}x{rows}" if self._by_shape else "TernaryMatMul"

    def functions(self, shapes: Iterable[tuple[int, int]]) -> list[onnx.FunctionProto]:
        """The functions for matrices of these shapes, each name once."""
        found: dict[str, onnx.FunctionProto] = {}
        for columns, rows in shapes:
            name = self.name(columns, rows)
            if name not in found:
                nodes = NodeBuilder()
                text = self._make(nodes, columns, rows)
                found[name] = nodes.function(
                    name, ["q", "weight"], ["acc"], text,
                    further=[helper.make_opsetid(CONTRIB, 1)])
        return list(found.values())


def store_trits(weight: np.ndarray) -> TensorProto:
    """int2 ``[columns, rows]``: ONNX packs 2-bit integers as the quantised file does."""
    turned = weight.T
    return TensorProto(data_type=TensorProto.INT2, dims=turned.shape,
                       raw_data=pack_trits(turned).tobytes())


def _integer(nodes: NodeBuilder, columns: int, rows: int) -> str:
    """``MatMulInteger`` on unsigned activations, ``q + 128`` with zero point 128.

    The kernels for signed ones are not vectorised on x86.
    """
    moved = nodes.op("Add", ["q", nodes.constant(128.0)])
    acts = nodes.cast(moved, TensorProto.UINT8)
    dot = nodes.op("MatMulInteger", [acts, "weight", nodes.constant(128, TensorProto.UINT8)])
    nodes.cast(dot, TensorProto.DOUBLE, "acc")
    return "Dot products of 8-bit activations with ternary weights, in int8."


def _float(nodes: NodeBuilder, columns: int, rows: int) -> str:
    """``MatMul`` in float32: exact while ``127 * columns < 2^24``."""
    acts = nodes.cast("q", TensorProto.FLOAT)
    weight = nodes.cast("weight", TensorProto.FLOAT)
    dot = nodes.op("MatMul", [acts, weight])
    nodes.cast(dot, TensorProto.DOUBLE, "acc")
    return "Dot products of whole numbers in float32, where every partial sum is exact."


def _pinned(nodes: NodeBuilder, columns: int, rows: int) -> str:
    """``MatMulNBits`` with 2-bit weights, made exact by a pinned slot in each block.

    The kernel quantises activations again, each block of 128 by ``max|a| / 127``. Here the
    last activation of each block is replaced by 127 and its weights by zero, so that scale is
    exactly 1 and the products are exact. A small float product adds what was replaced. It is
    a property of the kernels, not of the operator: a file is tested when it is loaded.
    """
    width = block_columns(columns, whole=True)
    acts = nodes.cast("q", TensorProto.FLOAT)
    wide = acts
    if width != columns:
        wide = nodes.op("Pad", [acts, nodes.integers([0, 0, 0, 0, 0, width - columns])])
    pins = nodes.op("Tile", [
        nodes.constant([-128.0] * (BLOCK - 1) + [127.0], TensorProto.FLOAT),
        nodes.integers([width // BLOCK])])
    pinned = nodes.op("Max", [wide, pins])

    keep = nodes.constant([255] * (BLOCK // 4 - 1) + [0x3F], TensorProto.UINT8)
    zero = nodes.constant([0] * (BLOCK // 4 - 1) + [0x80], TensorProto.UINT8)
    codes = nodes.op("BitwiseOr", [nodes.op("BitwiseAnd", ["weight", keep]), zero])
    dot = nbits_product(nodes, pinned, codes, columns, rows, width, nodes.op("Expand", [
        nodes.constant(1.0, TensorProto.FLOAT), nodes.integers([rows * (width // BLOCK)])]))
    if columns >= BLOCK:
        displaced = _displaced(nodes, columns)
        last = nodes.op("Slice", [acts, *(
            nodes.integers([value]) for value in (BLOCK - 1, columns, -1, BLOCK))])
        dot = nodes.op("Add", [dot, nodes.op("MatMul", [last, displaced])])
    nodes.cast(dot, TensorProto.DOUBLE, "acc")
    return "Dot products by 2-bit MatMulNBits, each block's scale pinned to 1."


def _displaced(nodes: NodeBuilder, columns: int) -> str:
    """The weights of the last column of each whole block, float32 ``[blocks, rows]``."""
    full = columns // BLOCK
    codes = nodes.op("Slice", ["weight", *(
        nodes.integers(value) for value in ([0, BLOCK // 4 - 1], [full, BLOCK // 4], [1, 2]))])
    top = nodes.op("BitShift", [codes, nodes.constant(6, TensorProto.UINT8)],
                  attributes={"direction": "RIGHT"})
    values = nodes.op("Cast", [nodes.op("Squeeze", [top, nodes.integers([2])])],
                     attributes={"to": TensorProto.FLOAT})
    return nodes.op("Transpose", [nodes.op("Sub", [
        values, nodes.constant(2.0, TensorProto.FLOAT)])])


def block_columns(columns: int, *, whole: bool = False) -> int:
    """Columns that a 2-bit product runs over: all, or more if there are many.

    onnxruntime's kernels take four blocks at a time. Beyond 1,024 columns a rest costs up to
    half of the whole; below, it costs less than padding does. ``whole`` asks for whole blocks.
    """
    blocks = -(-columns // BLOCK)
    if blocks > 8:
        blocks = -(-blocks // 4) * 4
    elif not whole:
        return columns
    return blocks * BLOCK


def nbits_product(
    nodes: NodeBuilder, acts: str, codes: str, columns: int, rows: int, width: int, scales: str,
    bias: str = "", block: int = BLOCK,
) -> str:
    """Append ``MatMulNBits`` on activations float32 ``[.., width]``.

    ``codes`` uint8 ``[rows, blocks, block / 4]`` as :func:`pack_codes` stores them; ``scales``
    float32 ``[rows * blocks]`` and ``bias`` float32 ``[rows]``.
    """
    missing = -(-width // block) - -(-columns // block)
    if missing:
        codes = nodes.op("Pad", [
            codes, nodes.integers([0, 0, 0, 0, missing, 0]),
            nodes.constant(0xAA, TensorProto.UINT8)])
    inputs = [acts, codes, scales, *(["", "", bias] if bias else [])]
    return nodes.op("MatMulNBits", inputs, domain=CONTRIB, attributes={
        "K": width, "N": rows, "bits": 2, "block_size": block, "accuracy_level": 4})


def pack_codes(weight: np.ndarray, block: int = BLOCK) -> TensorProto:
    """Store a weight ``[rows, columns]`` as ``MatMulNBits`` reads it.

    uint8 ``[rows, blocks, block / 4]``: four codes ``trit + 2`` a byte, the first in the lowest
    bits; columns up to a whole block are zeros. 2 is the zero point the operator assumes.
    """
    rows, columns = weight.shape
    blocks = -(-columns // block)
    codes = np.full((rows, blocks * block), 2, dtype=np.uint8)
    codes[:, :columns] = weight + 2
    quads = codes.reshape(rows, blocks, block // 4, 4)
    return numpy_helper.from_array(
        np.bitwise_or.reduce(quads << np.array([0, 2, 4, 6], dtype=np.uint8), axis=-1))


INTEGER = Product(_integer, store_trits)
FLOAT = Product(_float, store_trits)
PINNED = Product(_pinned, pack_codes, by_shape=True, trits=False)
