"""Build an ONNX graph: its nodes and tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sterna.model.profile import FixedPoint
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.records import Recur

__all__ = ["CONTRIB", "MINIMUM_ONNXRUNTIME", "OPSET", "GraphBuilder", "model_proto", "recur",
           "value_info"]

OPSET = 21
MINIMUM_ONNXRUNTIME = "1.20"
"""The oldest onnxruntime version in the tests."""
CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators."""

value_info = helper.make_tensor_value_info


class GraphBuilder:
    """Appends nodes in the order of computation; most methods return the name of their result.

    ``nodes`` holds them, ``initializers`` the stored tensors, ``values`` types and shapes of inner
    tensors. A builder with an ``outer`` collects the nodes of a body inside that graph, which
    stores its constants.
    """

    def __init__(self, outer: GraphBuilder | None = None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = outer.initializers if outer else []
        self.values: list[onnx.ValueInfoProto] = []
        self._constants: dict[tuple[Any, ...], str] = outer._constants if outer else {}
        self._unnamed: Iterator[int] = outer._unnamed if outer else itertools.count(1)

    def op(
        self, op_type: str, inputs: Sequence[str], output: str = "", *further: str,
        **attributes: Any,
    ) -> str:
        """Append an operator, a standard one unless ``domain`` is given; return its output.

        An empty ``output`` gets a name; ``further`` names the outputs after the first.
        """
        output = output or self._fresh(op_type)
        self.nodes.append(helper.make_node(
            op_type, list(inputs), [output, *further], **attributes))
        return output

    def store(self, name: str, values: np.ndarray) -> str:
        """Add an initialiser; return its name."""
        self.initializers.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def constant(self, value: Any, kind: type[np.generic] = np.float64) -> str:
        """A number or an array of numbers, stored once per value and type."""
        array = np.asarray(value, dtype=kind)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.store(self._fresh("constant"), array)
        return self._constants[key]

    def integers(self, *values: int) -> str:
        """A constant int64 vector: a shape, axes or pads."""
        return self.constant(values, np.int64)

    def power(self, exponent: int) -> str:
        """The constant ``2**exponent``, exact in float64."""
        return self.constant(math.ldexp(1.0, exponent))

    def round(self, value: str, output: str = "") -> str:
        """``floor(value + 1/2)``."""
        return self.op("Floor", [self.op("Add", [value, self.constant(0.5)])], output)

    def rs(self, value: str, shift: int, output: str = "") -> str:
        """Shift right by ``shift`` bits, rounding half up."""
        if shift == 0:
            return self.op("Identity", [value], output)
        return self.round(self.op("Mul", [value, self.power(-shift)]), output)

    def cast(self, value: str, kind: int, output: str = "") -> str:
        """``value`` as another element type, a value of ``TensorProto.DataType``."""
        return self.op("Cast", [value], output, to=kind)

    def saturate(self, value: str, fmt: FixedPoint, output: str = "") -> str:
        """Clip a whole number in float64 to the range of ``fmt``."""
        return self.op("Clip", [
            value, self.constant(float(fmt.min)), self.constant(float(fmt.max))], output)

    def concat(self, values: Sequence[str], axis: int, output: str = "") -> str:
        """``values`` concatenated; a single one unchanged, unless ``output`` names it."""
        if len(values) == 1 and not output:
            return values[0]
        return self.op("Concat", values, output, axis=axis)

    def proto(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
    ) -> onnx.ModelProto:
        """The file of the graph, without metadata."""
        imports = [helper.make_opsetid("", OPSET)]
        if any(node.domain == CONTRIB for node in self.nodes):
            imports.append(helper.make_opsetid(CONTRIB, 1))
        graph = helper.make_graph(self.nodes, name, inputs, outputs,
                                  initializer=self.initializers, value_info=self.values)
        return helper.make_model(
            graph, opset_imports=imports, producer_name="sterna",
            ir_version=helper.find_min_ir_version_for(imports[:1]))

    def _fresh(self, op_type: str) -> str:
        return f"{op_type.lower()}_{next(self._unnamed)}"


def recur(
    graph: GraphBuilder, record: Recur, gate: str, before: str, number: int, one_token: bool,
) -> str:
    """Append the states of all tokens under the name of ``record``; return the last one.

    ``gate`` is the gate as a fraction, ``before`` the first state. States are ``number``s, a value
    of ``TensorProto.DataType``: whole ones in float64, real ones in float32.
    """
    def step(to: GraphBuilder, gate: str, c: str, h: str, output: str) -> str:
        # (1 - f) * (c - h) + h = f * (h - c) + c, and h and c are whole numbers, or real.
        near, far = (c, h) if record.keeps else (h, c)
        moved = to.op("Mul", [gate, to.op("Sub", [far, near])])
        if number == TensorProto.DOUBLE:
            moved = to.round(moved)
        return to.op("Add", [near, moved], output)

    if one_token:
        return step(graph, gate, record.candidate, before, record.name)
    cell, last = GraphBuilder(graph), f"{record.name}_last"
    step(cell, "f", "c", "h", "h_next")
    cell.op("Identity", ["h_next"], "h_row")

    def channels(*names: str) -> list[onnx.ValueInfoProto]:
        return [value_info(name, number, ["batch", record.width]) for name in names]

    body = helper.make_graph(cell.nodes, "recurrence", channels("h", "f", "c"),
                             channels("h_next", "h_row"))
    graph.op("Scan", [before, gate, record.candidate], last, record.name, num_scan_inputs=2,
             body=body)
    return last


def model_proto(
    graph: GraphBuilder, model: QuantizedModel, number: int, one_token: bool,
) -> onnx.ModelProto:
    """The file of a graph that runs tokens, or frames, of ``model`` from a state ``[layers, batch,
    d]``, without metadata; state and results are ``number``s, a value of ``TensorProto.DataType``.
    """
    entry, h = model.entry, model.states[0]
    kept = [len(model.states), "batch", h.width]
    length, wanted = (1, 1) if one_token else ("length", "wanted")
    exact = number == TensorProto.INT32
    frames = bool(entry.shape)
    accepted = f"from {entry.low} to {entry.high}"
    if frames:
        accepted += (f", fraction bits of each channel: "
                     f"{', '.join(map(str, model.fraction_bits))}")
    step, whole = ("frame", "sequence") if frames else ("token", "text")
    inputs = [
        value_info(entry.name, TensorProto.INT32 if frames else TensorProto.INT64,
                   ["batch", length, *entry.shape], accepted),
        value_info("state", number, kept, f"zeros at the start of a {whole}"
                   + (f"; {h.output.bits} signed bits" if exact else "")),
        value_info(f"{entry.result}_from", TensorProto.INT64, [1],
                   f"the first {step} of the call whose {entry.result} are wanted; -1 is the "
                   f"last")]
    return graph.proto(
        "sterna_model", inputs[:2] if one_token else inputs,
        [value_info(entry.result, number, ["batch", wanted, model.records[-1].width],
                    f"{model.logit.frac} fraction bits" if exact else ""),
         value_info("state_out", number, kept, "state for the next call")])
