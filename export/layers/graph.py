"""The graphs of a layer and of a ternary matrix alone.

:class:`LayerGraph` follows ``Layer.unsaturated`` of each kind of layer, and gathers the bound of
every tensor on its way. Every tensor of the reference is a value of the graph under the same
name, as in :mod:`sterna.export.exact.traced`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.exact.bounds import (
    CARRIER_BITS,
    MOST_COLUMNS,
    check_carried,
    glu_bounds,
    largest_columns,
    mlgru_bounds,
    norm_bounds,
    projection_bounds,
)
from sterna.export.exact.traced import TracedBlocks, ternary_matmul, traced_functions
from sterna.export.graph.builder import DOMAIN, MERGED, TensorStore, make_proto, opset_imports
from sterna.export.graph.products import store_trits
from sterna.model.layers import (
    BitLinearLayer,
    GluLayer,
    Layer,
    MlgruLayer,
    ResidualLayer,
    SequentialLayer,
)
from sterna.model.layers.layer import input_bits
from sterna.model.layers.matrix import MANTISSA_BITS, MatrixLayer, Requantization
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import Projection

__all__ = ["build_layer", "build_matrix", "called_functions"]


def build_layer(layer: Layer) -> onnx.ModelProto:
    """Build the graph that applies ``layer`` to one vector of every sequence, without metadata.

    Inputs: ``x`` int32 ``[batch, columns]``, and for each recurrence ``state0``, ``state1`` and so
    on, int32 ``[batch, d]``, zeros at the start of a sequence. Outputs: ``y`` int32 ``[batch,
    rows]``, and ``state0_out`` and so on, which the next call takes. Raises ValueError if a matrix
    has more columns than the graph is exact for, an integer could leave the exact range of float64,
    or the layer is of a kind that there is no graph for.
    """
    return LayerGraph(layer).assemble()


class LayerGraph:
    """Puts the graph of one layer together; the unsaturated value is passed with its bound."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.profile = layer.profile
        self.graph = TensorStore()
        self.nodes = self.graph.nodes
        self.blocks = TracedBlocks(self.graph, layer.profile, ["batch"])
        self.bounds: dict[str, int] = {}
        self.z_limits: list[str] = []
        self.states_out: list[str] = []

    def assemble(self) -> onnx.ModelProto:
        layer = self.layer
        x = self.nodes.cast("x", TensorProto.DOUBLE, "x.value")
        y, bound = self._unsaturated(layer, x, "")
        self.bounds["y"] = bound
        check_carried(self.bounds, self.profile)
        self.nodes.saturate(y, layer.output, "y.value")
        self.nodes.cast("y.value", TensorProto.INT32, "y")
        states = [(f"state{i}", channels) for i, channels in enumerate(layer.states)]
        for (name, _), h in zip(states, self.states_out, strict=True):
            self.nodes.cast(h, TensorProto.INT32, f"{name}_out")

        def value(name: str, width: int, text: str) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(
                name, TensorProto.INT32, ["batch", width], text)

        accepted = (_format_text(layer.input) if layer.input else
                    f"{input_bits(self.profile)} signed bits in any fixed-point format")
        kept = _format_text(self.profile.h)
        graph = helper.make_graph(
            self.nodes.protos, "sterna_layer",
            [value("x", layer.columns, accepted),
             *(value(name, d, f"{kept}; zeros at the start") for name, d in states)],
            [value("y", layer.rows, _format_text(layer.output)),
             *(value(f"{name}_out", d, "state for the next call") for name, d in states)],
            initializer=self.graph.initializers, value_info=self.blocks.values)
        functions = traced_functions(self.profile)
        return make_proto(graph, opset_imports(), called_functions(self.nodes.protos, functions))

    # Layers ------------------------------------------------------------------------

    def _unsaturated(self, layer: Layer, x: str, at: str) -> tuple[str, int]:
        """Append a layer; return its output before saturation, and what bounds it."""
        match layer:
            case BitLinearLayer():
                return self._projected(layer, f"{at}norm", x, f"{at}linear", "linear")
            case MlgruLayer():
                return self._mlgru(layer, x, f"{at}mlgru")
            case GluLayer():
                return self._glu(layer, x, f"{at}glu")
            case ResidualLayer():
                y, bound = self._unsaturated(layer.layer, x, at)
                # The graph does not see how wide x was where it came from: a norm's input is
                # the widest there is.
                reach = 1 << (input_bits(self.profile) - 1)
                return self.nodes.op("Add", [x, y]), bound + reach
            case SequentialLayer():
                return self._sequence(layer, x, at)
        raise ValueError(f"there is no graph for a {type(layer).__name__}")

    def _sequence(self, layer: SequentialLayer, x: str, at: str) -> tuple[str, int]:
        *firsts, last = layer.layers
        for index, each in enumerate(firsts):
            y, bound = self._unsaturated(each, x, f"{at}{index}.")
            self.bounds[f"{at}{index}.y"] = bound
            x = self.nodes.saturate(
                y, each.output, self.blocks.value(f"{at}{index}.y", each.rows))
        return self._unsaturated(last, x, f"{at}{len(firsts)}.")

    def _mlgru(self, layer: MlgruLayer, x: str, at: str) -> tuple[str, int]:
        (d,) = layer.states
        self.bounds |= mlgru_bounds(self.profile, at)
        z = self._gated(layer, at, x, "fcg")
        f, g, c = self.blocks.gates(at, z, d)
        before = self.nodes.cast(f"state{len(self.states_out)}", TensorProto.DOUBLE)
        h = self.blocks.state(at, f, c, before, d)
        self.states_out.append(h)
        o = self.blocks.output(at, g, h, d)
        return self._projected(layer, f"{at}.out_norm", o, f"{at}.out", "out")

    def _glu(self, layer: GluLayer, x: str, at: str) -> tuple[str, int]:
        self.bounds |= glu_bounds(self.profile, at)
        z = self._gated(layer, at, x, "gate_up")
        p = self.blocks.glu_product(at, z, layer.projections["down"].weight.shape[1])
        return self._projected(layer, f"{at}.down_norm", p, f"{at}.down", "down")

    # Projections -------------------------------------------------------------------

    def _gated(self, layer: MlgruLayer | GluLayer, at: str, x: str, group: str) -> str:
        """Projections side by side, in the format z; ``group`` is their name in one."""
        if not self.z_limits:
            table = np.array(self.profile.sigmoid_table(), dtype=np.int32)
            self.blocks.store_tables(table)
            self.z_limits = self.blocks.store_limits("z", self.profile.z)
        norm, projections = f"{at}.norm", [layer.projections[part] for part in MERGED[group]]
        for part, projection in zip(MERGED[group], projections, strict=True):
            self._bound(norm, f"{at}.{part}", projection, self.profile.z)
        return self.blocks.requantized(
            norm, x, f"{at}.{group}", projections, self.z_limits)

    def _projected(
        self, layer: BitLinearLayer | MlgruLayer | GluLayer, norm: str, y: str, name: str,
        part: str,
    ) -> tuple[str, int]:
        """The last projection of a layer, not saturated, and what bounds it."""
        projection = layer.projections[part]
        bound = self._bound(norm, name, projection, layer.output)
        outputs = {f"{name}.a": 1, f"{name}.z": len(projection.weight)}
        z = self.blocks.block(
            "Rescale", self.blocks.product(norm, y, name, [projection]), outputs,
            f"{name}.rescale")[1]
        return z, bound

    def _bound(
        self, norm: str, name: str, projection: Projection, output: FixedPoint,
    ) -> int:
        columns, most = projection.weight.shape[1], largest_columns(self.profile)
        if columns > most:
            raise ValueError(
                f"{name}: the graph is exact for matrices of up to {most:,} columns with the "
                f"profile {self.profile.name}, got {columns:,}")
        # A bias has one bit more than the output.
        bounds = projection_bounds(self.profile, name, projection, 1 << output.bits)
        self.bounds |= norm_bounds(self.profile, norm, columns) | bounds
        return bounds[f"{name}.z"]


def called_functions(
    nodes: Iterable[onnx.NodeProto], functions: list[onnx.FunctionProto],
) -> list[onnx.FunctionProto]:
    """Those of ``functions`` (callees before callers) that the nodes need, in the same order."""
    called = {node.op_type for node in nodes if node.domain == DOMAIN}
    for function in reversed(functions):
        if function.name in called:
            called |= {node.op_type for node in function.node if node.domain == DOMAIN}
    return [function for function in functions if function.name in called]


def _format_text(fmt: FixedPoint) -> str:
    return f"{fmt.bits} signed bits, {fmt.frac} of them fraction bits"


def build_matrix(layer: MatrixLayer) -> onnx.ModelProto:
    """Build the graph of a ternary matrix, without metadata.

    Input: ``acts`` int8 ``[batch, columns]``. Output: ``sums`` int32 ``[batch, rows]``, or ``y``
    int32 ``[batch, rows]`` if the layer brings them to a format. Raises ValueError if the matrix
    has more columns than the 32-bit accumulator of ``MatMulInteger`` holds.
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
