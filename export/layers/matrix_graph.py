"""The graph of a ternary matrix alone: int8 activations in, sums or rounded results out."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto, helper

from sterna.export.exact.bounds import CARRIER_BITS, MOST_COLUMNS
from sterna.export.exact.projection_functions import ternary_matmul
from sterna.export.graph.node_builder import opset_imports
from sterna.export.graph.products import store_trits
from sterna.export.graph.tensor_store import TensorStore, make_proto
from sterna.model.layers.matrix import MANTISSA_BITS, MatrixLayer, Requantization
from sterna.model.profile import NumericProfile

__all__ = ["build_matrix"]


def build_matrix(layer: MatrixLayer) -> onnx.ModelProto:
    """Build the graph of a ternary matrix, without metadata.

    Input: ``acts`` int8 ``[batch, columns]``. Output: ``sums`` int32 ``[batch, rows]``, or ``y``
    int32 ``[batch, rows]`` if the layer brings them to a format.

    Raises
    ------
    ValueError
        If the matrix has more columns than the 32-bit accumulator of ``MatMulInteger`` holds.
    """
    if layer.columns > MOST_COLUMNS:
        raise ValueError(
            f"the graph is exact for matrices of up to {MOST_COLUMNS:,} columns, "
            f"got {layer.columns:,}")
    graph = TensorStore()
    nodes, numbers = graph.nodes, layer.requantization
    q = nodes.cast("acts", TensorProto.DOUBLE, "acts.value")
    weight = graph.add("weight", store_trits(layer.weight))
    nodes.call("TernaryMatMul", [q, weight], ["acc"])
    output = "sums" if numbers is None else "y"
    value = "acc" if numbers is None else _requantized(graph, numbers)
    nodes.cast(value, TensorProto.INT32, output)
    text = (f"{layer.output_bits} signed bits" if numbers is None else
            f"{numbers.output.bits} signed bits, {numbers.output.frac} of them fraction bits")
    return make_proto(helper.make_graph(
        nodes.protos, "sterna_matrix",
        [helper.make_tensor_value_info("acts", TensorProto.INT8, ["batch", layer.columns])],
        [helper.make_tensor_value_info(output, TensorProto.INT32, ["batch", layer.rows], text)],
        initializer=graph.initializers), opset_imports(), [ternary_matmul()])


def _requantized(graph: TensorStore, numbers: Requantization) -> str:
    """``sat(rs(acc * k, shift) + bias)`` of the sums, in float64."""
    # At most 128 a column, times the mantissa, plus the half that rounds: never near 2^52.
    assert 128 * MOST_COLUMNS << MANTISSA_BITS < 1 << CARRIER_BITS - 1
    assert 1 << NumericProfile.max_shift < 1 << CARRIER_BITS - 1
    nodes = graph.nodes
    # A whole number of MANTISSA_BITS times a power of two: one multiplication, exact.
    scaled = nodes.op("Mul", ["acc", nodes.constant(math.ldexp(numbers.k, -numbers.shift))])
    bias = nodes.cast(graph.store("bias", numbers.bias), TensorProto.DOUBLE)
    wide = nodes.op("Add", [nodes.round(scaled), bias])
    return nodes.saturate(wide, numbers.output)
