"""The graphs of a single layer and of a single ternary matrix.

Every tensor of the reference is a value of a layer's graph under the same name, as in
:mod:`sterna.export.graph.exact`.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from sterna.export.graph.builder import GraphBuilder, value_info
from sterna.export.graph.exact import RecordGraph, append_product
from sterna.export.graph.weights import append_weight
from sterna.model.layers import Layer
from sterna.model.layers.matrix import MANTISSA_BITS, MatrixLayer, Requantization
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized.bounds import CARRIER_BITS, MOST_COLUMNS, check_bounds

__all__ = ["build_layer", "build_matrix", "layer_bounds"]


def layer_bounds(layer: Layer) -> dict[str, int]:
    """Bound every tensor of the graph of ``layer`` with
    :func:`~sterna.model.quantized.bounds.check_bounds`, which may raise ValueError."""
    # The graph does not know the width of x: assume the widest, a norm's input.
    return check_bounds(
        layer.records(), layer.matrices(), {"x": 1 << (layer.bits - 1)}, layer.vectors())


def build_layer(layer: Layer) -> onnx.ModelProto:
    """Build the graph that applies ``layer`` to one vector of every sequence, without metadata.

    Inputs: ``x`` int32 ``[batch, columns]``, and for each recurrence ``state0``, ``state1`` and so
    on, int32 ``[batch, d]``, zeros at the start of a sequence. Outputs: ``y`` int32 ``[batch,
    rows]``, and ``state0_out`` and so on, for the next call. Raises ValueError if a matrix has more
    columns than the graph is exact for, or an integer could exceed the exact range of float64.
    """
    graph, records, bounds = GraphBuilder(), layer.records(x="x.value"), layer_bounds(layer)
    table = np.array(layer.profile.sigmoid_table(), dtype=np.int32)
    walk = RecordGraph(
        graph, layer.matrices(), table, bounds, ["batch"], layer.vectors())
    graph.cast("x", TensorProto.DOUBLE, "x.value")
    states = [(f"state{i}", channels) for i, channels in enumerate(layer.states)]
    after = walk.append(
        records, [graph.cast(name, TensorProto.DOUBLE) for name, _ in states])
    graph.cast(records[-1].result, TensorProto.INT32, "y")
    for (name, _), h in zip(states, after, strict=True):
        graph.cast(h, TensorProto.INT32, f"{name}_out")

    def value(name: str, width: int, text: str) -> onnx.ValueInfoProto:
        return value_info(name, TensorProto.INT32, ["batch", width], text)

    accepted = (
        _format_text(layer.input) if layer.input else
        f"{layer.bits} signed bits, fraction bits of each channel: "
        f"{', '.join(map(str, layer.fraction_bits))}" if layer.fraction_bits is not None else
        f"{layer.bits} signed bits in any fixed-point format")
    kept = _format_text(layer.profile.h)
    return graph.proto(
        "sterna_layer",
        [value("x", layer.columns, accepted),
         *(value(name, d, f"{kept}; zeros at the start") for name, d in states)],
        [value("y", layer.rows, _format_text(layer.output)),
         *(value(f"{name}_out", d, "state for the next call") for name, d in states)])


def _format_text(fmt: FixedPoint) -> str:
    return f"{fmt.bits} signed bits, {fmt.frac} of them fraction bits"


def build_matrix(layer: MatrixLayer) -> onnx.ModelProto:
    """Build the graph of a ternary matrix, without metadata.

    Input: ``acts`` int8 ``[batch, columns]``. Output: ``sums`` int32 ``[batch, rows]``, or ``y``
    int32 ``[batch, rows]`` if the layer requantises them. Raises ValueError if the matrix has more
    columns than the 32-bit accumulator of ``MatMulInteger`` allows.
    """
    if layer.columns > MOST_COLUMNS:
        raise ValueError(
            f"the graph is exact for matrices of up to {MOST_COLUMNS:,} columns, "
            f"got {layer.columns:,}")
    graph, numbers = GraphBuilder(), layer.requantization
    acts = graph.cast("acts", TensorProto.DOUBLE, "acts.value")
    acc = append_product(graph, acts, append_weight(graph, "weight", layer.weight))
    output = "sums" if numbers is None else "y"
    graph.cast(acc if numbers is None else _requantized(graph, acc, numbers),
               TensorProto.INT32, output)
    text = (f"{layer.output_bits} signed bits" if numbers is None else
            f"{numbers.output.bits} signed bits, {numbers.output.frac} of them fraction bits")
    return graph.proto(
        "sterna_matrix", [value_info("acts", TensorProto.INT8, ["batch", layer.columns])],
        [value_info(output, TensorProto.INT32, ["batch", layer.rows], text)])


def _requantized(graph: GraphBuilder, acc: str, numbers: Requantization) -> str:
    """``sat(rs(acc * k, shift) + bias)`` of the sums, in float64."""
    # At most 128 per column, times the mantissa, plus the rounding half: never near 2^52.
    assert 128 * MOST_COLUMNS << MANTISSA_BITS < 1 << CARRIER_BITS - 1
    assert 1 << NumericProfile.max_shift < 1 << CARRIER_BITS - 1
    # A whole number of MANTISSA_BITS times a power of two: one multiplication, exact.
    scaled = graph.op("Mul", [acc, graph.constant(math.ldexp(numbers.k, -numbers.shift))])
    bias = graph.cast(graph.store("bias", numbers.bias), TensorProto.DOUBLE)
    wide = graph.op("Add", [graph.round(scaled), bias])
    return graph.saturate(wide, numbers.output)
