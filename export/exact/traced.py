"""The traced graphs: the integer reference, tensor for tensor, in ONNX operators.

The form to look inside: every tensor of the reference is a value of the graph, under the same
name. The forms for use (:mod:`sterna.export.forms.forms`) have fewer nodes. Each record
becomes a few calls of model-local functions, which a runtime inlines and a viewer shows as boxes.

All values are whole numbers in float64; ``rs`` is a multiplication by a power of two, an addition
of a half and a floor. :mod:`sterna.export.exact.bounds` proves that nothing is lost. Weights are
stored as 2-bit integers and become int8 when a runtime loads the graph.

The step and the sequence graph come from the same code and differ in their leading axes,
``[batch]`` and ``[length, batch]``, and in the recurrence, which is one function call or a
``Scan`` of it. Length comes first inside the sequence graph, as ``Scan`` wants it, and last
but one in its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.exact.bounds import check_bounds
from sterna.export.graph.builder import GraphBuilder, NodeBuilder, TensorStore, opset_imports
from sterna.export.graph.metadata import Form, GraphKind, describe
from sterna.export.graph.products import store_trits
from sterna.model.profile import FixedPoint
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.records import (
    Activate,
    Add,
    Embedding,
    Multiply,
    Norm,
    Project,
    Record,
    Recur,
    result_of,
)

__all__ = ["RecordGraph", "build_graph", "build_sequence", "build_step", "ternary_matmul"]

def build_step(model: QuantizedModel) -> onnx.ModelProto:
    """Build the graph that advances every sequence of a batch by one token.

    Inputs: ``token`` int64 ``[batch]``, each below ``vocab``, and ``state`` int32
    ``[layers, batch, d]``, zeros at the start of a sequence. Outputs: ``logits`` int32
    ``[batch, vocab]`` and ``state_out`` int32 ``[layers, batch, d]``. Raises ValueError if an
    integer of the model could leave the exact range of float64.
    """
    return _described(model, GraphKind.STEP)


def build_sequence(model: QuantizedModel) -> onnx.ModelProto:
    """Build the graph that runs a whole row of tokens for every sequence of a batch.

    Inputs: ``tokens`` int64 ``[batch, length]`` and ``state`` int32 ``[layers, batch, d]``.
    Outputs: ``logits`` int32 ``[batch, length, vocab]`` and ``state_out`` int32
    ``[layers, batch, d]`` after the last token. Raises ValueError as :func:`build_step` does.
    """
    return _described(model, GraphKind.SEQUENCE)


def build_graph(model: QuantizedModel, kind: GraphKind) -> onnx.ModelProto:
    """Build the step or the sequence graph of ``model``, without metadata yet."""
    embedding, *records = model.records
    assert isinstance(embedding, Embedding)
    check_bounds(model.records, model.projections)
    graph = GraphBuilder(model, kind, TensorProto.INT32)
    nodes, steps = graph.nodes, kind is GraphKind.STEP
    walk = RecordGraph(
        graph, model.projections, model.sigmoid, ["batch"] if steps else ["length", "batch"])
    tokens = "token" if steps else nodes.op("Transpose", ["tokens"], name="embedding/tokens")
    row = nodes.op("Gather", [graph.store_embedding(), tokens], name="embedding/row")
    nodes.cast(row, TensorProto.DOUBLE, walk.value(embedding.name, embedding.width))
    before = nodes.cast("state", TensorProto.DOUBLE, "state.value")
    states = [f"{record.name}_in" for record in records if isinstance(record, Recur)]
    nodes.split(before, [f"{name}.kept" for name in states], axis=0)
    first = nodes.integers([0])
    for name in states:
        nodes.op("Squeeze", [f"{name}.kept", first], name)
    after = walk.append(records, states)
    logits = result_of(records[-1])
    if not steps:
        logits = nodes.op("Transpose", [logits], attributes={"perm": [1, 0, 2]})
    nodes.cast(logits, TensorProto.INT32, "logits")
    stacked = [nodes.op("Unsqueeze", [h, first]) for h in after]
    nodes.cast(nodes.op("Concat", stacked, attributes={"axis": 0}), TensorProto.INT32,
               "state_out")
    return graph.model_proto(
        opset_imports(), values=walk.values, functions=walk.functions,
        state_text=f"h of every layer, {model.profile.h.frac} fraction bits; zeros at the start")


def _described(model: QuantizedModel, kind: GraphKind) -> onnx.ModelProto:
    proto = build_graph(model, kind)
    describe(proto, model, kind, Form.TRACED)
    return proto


# Records ------------------------------------------------------------------------------


class RecordGraph:
    """Appends records to a graph whose vectors begin with axes ``lead``.

    ``values`` are types and shapes of the tensors of the reference; ``functions`` those that
    the graph calls, callees before their callers.
    """

    def __init__(
        self, store: TensorStore, projections: Mapping[str, Projection], sigmoid: np.ndarray,
        lead: Sequence[str],
    ) -> None:
        self._store, self._projections, self._sigmoid = store, projections, sigmoid
        self._lead = lead
        self._tables: list[str] = []
        self._made: dict[tuple[object, ...], onnx.FunctionProto] = {}
        self.values: list[onnx.ValueInfoProto] = []

    @property
    def functions(self) -> list[onnx.FunctionProto]:
        """Those made so far."""
        return list(self._made.values())

    def value(self, name: str, width: int) -> str:
        """Note type and shape of a tensor of the reference; return its name."""
        self.values.append(helper.make_tensor_value_info(
            name, TensorProto.DOUBLE, [*self._lead, width]))
        return name

    def append(self, records: Iterable[Record], states: Sequence[str]) -> list[str]:
        """Append records; ``states`` are the values ``[batch, width]`` of the recurrences.

        Returns the new states.
        """
        before, after = iter(states), []
        for record in records:
            match record:
                case Norm(name, x, width):
                    widths = {"m": 1, "r": 1, "q": width, "s": 1, "n": 1, "v": 1}
                    self._call(
                        self._function(_norm_quant, record.reciprocal_bits, record.root_frac,
                                       record.scale_frac),
                        [x], {f"{name}.{part}": each for part, each in widths.items()}, name)
                case Project():
                    self._project(record)
                case Recur():
                    after.append(self._recur(record, next(before)))
                case Activate(name, x):
                    self._call(self._activation(record), [x, *self._tables],
                               {name: record.width}, name)
                case Multiply(name, x, y):
                    self._call(self._function(_multiply, record.shift, record.output),
                               [x, y], {name: record.width}, name)
                case Add(name, x, y):
                    self._call(
                        self._function(_add, record.output if record.saturates else None),
                        [x, y], {name: record.width}, name)
                case Embedding():
                    raise ValueError("an embedding can only be the first record")
        return after

    def _project(self, record: Project) -> None:
        name, norm = record.name, record.norm
        weight, *scales = self._store.store_projection(
            name, [self._projections[name]], store_trits)
        self._call(self._function(ternary_matmul), [f"{norm}.q", weight],
                   {f"{name}.acc": record.rows}, f"{name}.matmul")
        rescale = self._function(
            _rescale, record.combine_shift, record.output if record.saturates else None)
        self._call(rescale, [f"{name}.acc", f"{norm}.v", *scales],
                   {f"{name}.a": 1, f"{name}.z": record.rows}, f"{name}.rescale")

    def _recur(self, record: Recur, before: str) -> str:
        """Append the states of all tokens; return the last one."""
        width, f, c = record.width, record.forget, record.candidate
        state = self._function(_state, record.frac)
        if len(self._lead) == 1:
            self._call(state, [f, c, before], {record.name: width}, record.name)
            return record.name

        def channels(*names: str) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["batch", width])
                    for name in names]

        cell = NodeBuilder()
        cell.call(state, ["f", "c", "h"], ["h_next"], name="state")
        cell.op("Identity", ["h_next"], "h_row", name="row")
        scan = helper.make_graph(
            cell.protos, "recurrence", channels("h", "f", "c"), channels("h_next", "h_row"))
        last = f"{record.name}_last"
        self._store.nodes.protos.append(helper.make_node(
            "Scan", [before, f, c], [last, self.value(record.name, width)],
            name=record.name.replace(".", "/"), body=scan, num_scan_inputs=2))
        return last

    def _call(
        self, function: str, inputs: list[str], outputs: Mapping[str, int], node: str,
    ) -> None:
        """Append a call; ``outputs`` are names and widths."""
        names = [self.value(name, width) for name, width in outputs.items()]
        self._store.nodes.call(function, inputs, names, name=node.replace(".", "/"))

    def _function(self, make: Callable[..., onnx.FunctionProto], *formats: object) -> str:
        """The name of a function for these formats, which is made the first time.

        Further formats of the same function have a number behind their name.
        """
        key = (make, *formats)
        if key not in self._made:
            alike = sum(each[0] is make for each in self._made)
            self._made[key] = make(*formats)
            self._made[key].name += f"{alike + 1}" if alike else ""
        return str(self._made[key].name)

    def _activation(self, record: Activate) -> str:
        """The function of an activation, whose table is stored the first time."""
        if not self._tables:
            table = self._sigmoid.astype(np.float64)
            self._tables = [self._store.store("sigmoid.table", table)]
            if record.sigmoid_step_bits:
                self._tables.append(self._store.store("sigmoid.rise", np.diff(table)))
        tables = tuple(self._tables)
        sigmoid = self._function(_sigmoid, record.z, record.sigmoid_step_bits, tables)
        return sigmoid if record.kind == "sigmoid" else self._function(
            _silu, sigmoid, tables, record.shift, record.output)


# Functions of any leading shape -------------------------------------------------------


def _norm_quant(k: int, t: int, scale_frac: int) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    last = nodes.integers([-1])
    nodes.op("ReduceMax", [nodes.op("Abs", ["y"]), last], "m")
    at_least_one = nodes.op("Max", ["m", nodes.constant(1.0)])
    nodes.op("Floor", [nodes.op("Div", [nodes.constant(float(127 << k)), at_least_one])], "r")
    nodes.round(nodes.op("Mul", ["y", nodes.op("Mul", ["r", nodes.power(-k)])]), "q")
    nodes.op("ReduceSumSquare", ["q", last], "s")
    root = nodes.op("Floor", [nodes.op("Sqrt", [nodes.op("Mul", ["s", nodes.power(2 * t)])])])
    nodes.op("Max", [root, nodes.constant(float(127 << t))], "n")
    scale = nodes.constant(float(127 << (scale_frac + t)))
    nodes.op("Floor", [nodes.op("Div", [scale, "n"])], "v")
    return nodes.function(
        "NormQuant", ["y"], ["m", "r", "q", "s", "n", "v"],
        "RMS normalisation and absmax quantisation in one: maximum m, reciprocal "
        "r = (127 << k) // m, activations q = rs(y * r, k), sum of squares s, its root n, "
        "output scale v = (127 << (P + t)) // n.")


def ternary_matmul() -> onnx.FunctionProto:
    """``TernaryMatMul(q, weight) -> acc`` of 8-bit whole numbers q, of any leading shape."""
    nodes = NodeBuilder()
    # Unsigned activations: the kernels for signed ones are not vectorised on x86.
    moved = nodes.op("Add", ["q", nodes.constant(128.0)])
    acts = nodes.cast(moved, TensorProto.UINT8)
    weight = nodes.cast("weight", TensorProto.INT8)
    dot = nodes.op("MatMulInteger", [acts, weight, nodes.constant(128, TensorProto.UINT8)])
    # By way of int64: onnxruntime would fuse a direct cast with the scaling that follows
    # into MatMulIntegerToFloat, which has no float64 and then fails to load.
    wide = nodes.cast(dot, TensorProto.INT64)
    nodes.cast(wide, TensorProto.DOUBLE, "acc")
    return nodes.function(
        "TernaryMatMul", ["q", "weight"], ["acc"],
        "Dot products of 8-bit activations q [..., n] with ternary weights [n, rows].")


def _rescale(combine_shift: int, output: FixedPoint | None) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    nodes.rs(nodes.op("Mul", ["v", "k"]), combine_shift, "a")
    z = nodes.round(nodes.op("Mul", [nodes.op("Mul", ["acc", "a"]), "scale"]))
    wide = nodes.op("Add", [z, nodes.cast("bias", TensorProto.DOUBLE)])
    end = _saturated(nodes, wide, output, "z")
    return nodes.function(
        "Rescale", ["acc", "v", "k", "scale", "bias"], ["a", "z"],
        f"A = rs(v * k, {combine_shift}); with scale = 2^-shift, z = rs(acc * A, shift) + bias"
        f"{end}")


def _add(output: FixedPoint | None) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    end = _saturated(nodes, nodes.op("Add", ["x", "y"]), output, "sum")
    return nodes.function("Add", ["x", "y"], ["sum"], f"x + y{end}")


def _sigmoid(z: FixedPoint, step: int, tables: Sequence[str]) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    position = nodes.op("Add", ["z", nodes.constant(float(-z.min))])
    if step == 0:
        index = nodes.cast(position, TensorProto.INT64)
        nodes.op("Gather", ["sigmoid.table", index], "y")
    else:
        position = nodes.op("Mul", [position, nodes.power(-step)])
        segment = nodes.op("Floor", [position])
        inside = nodes.op("Sub", [position, segment])
        index = nodes.cast(segment, TensorProto.INT64)
        low = nodes.op("Gather", ["sigmoid.table", index])
        rise = nodes.op("Gather", ["sigmoid.rise", index])
        nodes.op("Add", [low, nodes.round(nodes.op("Mul", [rise, inside]))], "y")
    return nodes.function(
        "Sigmoid", ["z", *tables], ["y"],
        "Sigmoid by table: the top bits of z select a segment, the others, if any, "
        "interpolate inside it.")


def _silu(
    sigmoid: str, tables: Sequence[str], shift: int, output: FixedPoint | None,
) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    nodes.call(sigmoid, ["z", *tables], ["gate"])
    end = _saturated(nodes, nodes.rs(nodes.op("Mul", ["z", "gate"]), shift), output, "y")
    return nodes.function(
        "Silu", ["z", *tables], ["y"], f"rs(z * sigmoid(z), {shift}){end}")


def _state(frac: int) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    # f * h + (2^Ff - f) * c = 2^Ff * c + f * (h - c), and c is a whole number.
    product = nodes.op("Mul", ["f", nodes.op("Sub", ["h", "c"])])
    nodes.op("Add", ["c", nodes.rs(product, frac)], "h_next")
    return nodes.function(
        "State", ["f", "c", "h"], ["h_next"],
        f"The recurrence: h = rs(f * h + (2^Ff - f) * c, Ff), Ff = {frac}.")


def _multiply(shift: int, output: FixedPoint) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    value = nodes.rs(nodes.op("Mul", ["x", "y"]), shift)
    end = _saturated(nodes, value, output, "product")
    return nodes.function("Multiply", ["x", "y"], ["product"], f"rs(x * y, {shift}){end}")


def _saturated(nodes: NodeBuilder, value: str, output: FixedPoint | None, name: str) -> str:
    """Give ``value`` the name, clipped to ``output`` if there is one; return what to say of it."""
    if output is None:
        nodes.op("Identity", [value], name)
        return "."
    nodes.saturate(value, output, name)
    return f", saturated to {output.bits} bits."
