"""Writing an ONNX graph: its nodes, its tensors, and what the graphs of all forms share.

In lookup and float graphs vectors are ``[1, rows, width]``: the rows are the batch of a step
graph, or ``length * batch`` of a sequence graph, time first. A state is ``[1, batch, d]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sterna.export.graph.metadata import GraphKind
from sterna.model.profile import FixedPoint
from sterna.model.quantized import Projection, QuantizedModel

__all__ = ["DOMAIN", "MINIMUM_ONNXRUNTIME", "OPSET", "GraphBuilder", "NodeBuilder",
           "TensorStore", "make_proto", "merged", "opset_imports", "scan_over_time"]

OPSET = 25
"""The first opset with 2-bit integers."""
MINIMUM_ONNXRUNTIME = "1.24"
"""The first onnxruntime that loads it."""
DOMAIN = "sterna"


def opset_imports() -> list[onnx.OperatorSetIdProto]:
    """The operator sets that every Sterna graph and function uses."""
    return [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]


class NodeBuilder:
    """Appends nodes in the order of computation; most methods return the name of their result.

    The nodes are those of a graph, of a model-local function or of the body of a ``Scan``;
    ``protos`` holds them.
    """

    def __init__(self) -> None:
        self.protos: list[onnx.NodeProto] = []
        self._constants: dict[tuple[int, str], str] = {}
        self._unnamed = 0

    def op(
        self, op_type: str, inputs: Sequence[str], output: str = "", *,
        attributes: Mapping[str, Any] | None = None, name: str = "", domain: str = "",
        further: Sequence[str] = (),
    ) -> str:
        """Append an operator, a standard one unless ``domain`` is given; return its output.

        Empty names are filled in. ``further`` names outputs after the first.
        """
        output = output or self._fresh(op_type)
        self.protos.append(helper.make_node(
            op_type, list(inputs), [output, *further], name=name or output, domain=domain,
            **(attributes or {})))
        return output

    def split(self, value: str, outputs: Sequence[str], axis: int = -1) -> None:
        """Cut an axis of ``value`` into equal parts."""
        self.protos.append(helper.make_node(
            "Split", [value], list(outputs), name=f"split_{value}", axis=axis,
            num_outputs=len(outputs)))

    def call(
        self, function: str, inputs: Sequence[str], outputs: Sequence[str], *, name: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a call of the model-local function ``function``."""
        self.protos.append(helper.make_node(
            function, list(inputs), list(outputs), name=name or f"{function}_{outputs[0]}",
            domain=DOMAIN, **(attributes or {})))

    def constant(
        self, value: float | int | Sequence[float], kind: int = TensorProto.DOUBLE,
    ) -> str:
        """A constant, emitted once for each value and type."""
        key = (kind, repr(value))
        if key not in self._constants:
            name = self._fresh("constant")
            tensor = helper.make_tensor(name, kind, np.shape(value), np.ravel(value).tolist())
            self.protos.append(helper.make_node(
                "Constant", [], [name], name=name, value=tensor))
            self._constants[key] = name
        return self._constants[key]

    def integers(self, values: Sequence[int]) -> str:
        """A constant int64 vector: a shape, axes or pads."""
        return self.constant(list(values), TensorProto.INT64)

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
        return self.op("Cast", [value], output, attributes={"to": kind})

    def saturate(self, value: str, fmt: FixedPoint, output: str = "") -> str:
        """Clip a whole number in float64 to the range of ``fmt``."""
        return self.op("Clip", [
            value, self.constant(float(fmt.min)), self.constant(float(fmt.max))], output)

    def function(
        self, name: str, inputs: Sequence[str], outputs: Sequence[str], text: str,
        attributes: Sequence[str] = (), further: Sequence[onnx.OperatorSetIdProto] = (),
    ) -> onnx.FunctionProto:
        """The model-local function made of the nodes so far; ``text`` says what it computes.

        ``attributes`` are the names of those it takes, ``further`` operator sets beside ours.
        """
        return helper.make_function(
            DOMAIN, name, list(inputs), list(outputs), self.protos,
            [*opset_imports(), *further], attributes=list(attributes), doc_string=text)

    def _fresh(self, op_type: str) -> str:
        self._unnamed += 1
        return f"{op_type.lower()}_{self._unnamed}"


class TensorStore:
    """Collects the top level of a graph: ``nodes`` takes nodes, ``initializers`` stored tensors."""

    def __init__(self) -> None:
        self.nodes = NodeBuilder()
        self.initializers: list[onnx.TensorProto] = []

    def store(self, name: str, values: np.ndarray) -> str:
        """Add an initialiser; return its name."""
        self.initializers.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def add(self, name: str, tensor: TensorProto) -> str:
        """Add an initialiser that has no name yet; return its name."""
        tensor.name = name
        self.initializers.append(tensor)
        return name

    def store_projection(
        self, name: str, projections: Sequence[Projection],
        make: Callable[[np.ndarray], TensorProto],
    ) -> list[str]:
        """Add the projection ``name``, merged from ``projections``, whose rows it has in order.

        ``make`` makes the initialiser of a weight ``[rows, columns]``, without a name. Returns
        the names of weight, k, scale and bias: k and scale are ``[1]`` and bias ``[rows]``; of
        a merged one, whose members have scales of their own, ``[members, 1]`` and ``[members,
        rows of each]``.
        """
        weight = make(np.concatenate([each.weight for each in projections]))
        k = np.array([[float(each.k)] for each in projections])
        scale = np.array([[math.ldexp(1.0, -each.shift)] for each in projections])
        bias = np.stack([each.bias for each in projections]).astype(np.int32)
        if len(projections) == 1:
            k, scale, bias = k[0], scale[0], bias[0]
        return [self.add(f"{name}.weight", weight), self.store(f"{name}.k", k),
                self.store(f"{name}.scale", scale), self.store(f"{name}.bias", bias)]


def make_proto(
    graph: onnx.GraphProto, opsets: Sequence[onnx.OperatorSetIdProto],
    functions: Sequence[onnx.FunctionProto],
) -> onnx.ModelProto:
    """The file of a graph, without metadata."""
    return helper.make_model(
        graph, functions=functions, opset_imports=opsets, producer_name="sterna",
        ir_version=helper.find_min_ir_version_for(opset_imports()[:1]))


class GraphBuilder(TensorStore):
    """Puts the top level of one graph together, from tokens and states to logits and states.

    ``number`` is the element type of logits and states: a value of ``TensorProto.DataType``.
    """

    def __init__(self, model: QuantizedModel, kind: GraphKind, number: int) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self._number = number

    def store_embedding(self) -> str:
        """Add the embedding as the integers it is, ``[vocab, d]``; return its name."""
        wide = self.model.row.bits > 16
        return self.store(
            "embedding", self.model.embedding.astype(np.int32 if wide else np.int16))

    def rows_of(self, table: str, output: str = "") -> str:
        """The rows of ``table [vocab, d]`` for the tokens, ``[1, rows, d]``."""
        if self.kind is GraphKind.STEP:
            tokens = self.nodes.op("Unsqueeze", ["token", self.nodes.integers([0])])
        else:
            turned = self.nodes.op("Transpose", ["tokens"])
            tokens = self.nodes.op("Reshape", [turned, self.nodes.integers([1, -1])])
        return self.nodes.op("Gather", [table, tokens], output)

    def states(self, state: str) -> list[str]:
        """Cut a state ``[layers, batch, d]`` into those of the layers, ``<at>.h_in``."""
        names = [f"layer{layer}.mlgru.h_in" for layer in range(len(self.model.states))]
        self.nodes.split(state, names, axis=0)
        return names

    def logits(self, z: str, output: str = "") -> str:
        """Bring ``[1, rows, vocab]`` to ``[batch, vocab]`` or ``[batch, length, vocab]``."""
        nodes = self.nodes
        if self.kind is GraphKind.STEP:
            return nodes.op("Squeeze", [z, nodes.integers([0])], output)
        batch = nodes.op("Shape", ["tokens"], attributes={"start": 0, "end": 1})
        shape = nodes.op(
            "Concat", [nodes.integers([-1]), batch, nodes.integers([self.model.vocab])],
            attributes={"axis": 0})
        by_time = nodes.op("Reshape", [z, shape])
        return nodes.op("Transpose", [by_time], output, attributes={"perm": [1, 0, 2]})

    def model_proto(
        self, opsets: Sequence[onnx.OperatorSetIdProto], *,
        functions: Sequence[onnx.FunctionProto] = (),
        values: Sequence[onnx.ValueInfoProto] = (),
    ) -> onnx.ModelProto:
        """The model of all that has been appended, without metadata.

        ``values`` are types and shapes of inner tensors.
        """
        return make_proto(self._graph(values), opsets, functions)

    def _graph(self, values: Sequence[onnx.ValueInfoProto]) -> onnx.GraphProto:
        model, step = self.model, self.kind is GraphKind.STEP
        first = model.states[0]
        state = [len(model.states), "batch", first.width]
        rows = ["batch"] if step else ["batch", "length"]
        value, whole = helper.make_tensor_value_info, self._number == TensorProto.INT32
        state_text = "h of every layer; zeros at the start" + (
            f"; {first.output.bits} signed bits" if whole else "")
        return helper.make_graph(
            self.nodes.protos, f"sterna_{self.kind.value}",
            [value("token" if step else "tokens", TensorProto.INT64, rows,
                   f"from 0 to {model.vocab - 1}"),
             value("state", self._number, state, state_text)],
            [value("logits", self._number, [*rows, model.vocab],
                   f"{model.logit.frac} fraction bits" if whole else ""),
             value("state_out", self._number, state, "state for the next call")],
            initializer=self.initializers, value_info=values)


def merged(at: str, parts: Sequence[str]) -> tuple[str, list[str]]:
    """The name of projections of ``at`` that share their input, side by side, and theirs.

    >>> merged("layer0.glu", ["gate", "up"])
    ('layer0.glu.gate_up', ['layer0.glu.gate', 'layer0.glu.up'])
    >>> merged("", ["head"])
    ('head', ['head'])
    """
    begin = f"{at}." if at else ""
    return begin + "_".join(parts), [begin + part for part in parts]


def scan_over_time(
    nodes: NodeBuilder, f: str, c: str, h: str, h_next: str, d: int, number: int,
    step: Callable[[NodeBuilder], object],
) -> str:
    """Run the recurrence over the rows of f and c; return h of every row.

    ``step`` appends the nodes that make ``h_after`` from ``f_t``, ``c_t`` and ``h_t``, all
    ``[batch, d]``. ``h`` is the state before, ``h_next`` becomes the one after the last row.
    """
    before = nodes.op("Squeeze", [h, nodes.integers([0])])
    shape = nodes.op("Concat", [nodes.integers([-1]), nodes.op("Shape", [before])],
                    attributes={"axis": 0})
    by_time = [nodes.op("Reshape", [name, shape]) for name in (f, c)]
    cell = NodeBuilder()
    step(cell)
    cell.op("Identity", ["h_after"], "h_row")

    def channels(*names: str) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, number, ["batch", d]) for name in names]

    last, rows = f"{h_next}.last", f"{h_next}.by_time"
    nodes.protos.append(helper.make_node(
        "Scan", [before, *by_time], [last, rows], name=f"{h_next}.scan", num_scan_inputs=2,
        body=helper.make_graph(cell.protos, "recurrence", channels("h_t", "f_t", "c_t"),
                               channels("h_after", "h_row"))))
    nodes.op("Unsqueeze", [last, nodes.integers([0])], h_next)
    return nodes.op("Reshape", [rows, nodes.integers([1, -1, d])])
