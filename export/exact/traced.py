"""The traced graphs: the integer reference, tensor for tensor, in ONNX operators.

The form to look inside: every tensor of the reference is a value of the graph, under the same
name. The forms for use (:mod:`sterna.export.forms.forms`) have fewer nodes. Each record
becomes a few calls of model-local functions, which a runtime inlines and a viewer shows as boxes.

All values are whole numbers in float64; ``rs`` is a multiplication by a power of two, an addition
of a half and a floor. :mod:`sterna.model.quantized.bounds` proves that nothing is lost. Weights are
stored as 2-bit integers and become int8 when a runtime loads the graph.

The step and the sequence graph come from the same code and differ in their leading axes,
``[batch]`` and ``[length, batch]``, and in the recurrence, which is one function call or a
``Scan`` of it. Length comes first inside the sequence graph, as ``Scan`` wants it, and last
but one in its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.graph.builder import GraphBuilder, NodeBuilder, TensorStore, opset_imports
from sterna.export.graph.metadata import Form, GraphKind, describe
from sterna.export.graph.products import store_trits
from sterna.model.profile import FixedPoint
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.records import (
    Add,
    Embedding,
    Energy,
    Multiply,
    Narrow,
    Norm,
    Project,
    Quantize,
    Record,
    Recur,
    Root,
    Scale,
    Sigmoid,
    result_of,
)

__all__ = ["RecordGraph", "build_graph", "build_sequence", "build_step", "ternary_matmul"]

def build_step(model: QuantizedModel) -> onnx.ModelProto:
    """Build the graph that advances every sequence of a batch by one token.

    Inputs: ``token`` int64 ``[batch]``, each below ``vocab``, and ``state`` int32
    ``[layers, batch, d]``, zeros at the start of a sequence. Outputs: ``logits`` int32
    ``[batch, vocab]`` and ``state_out`` int32 ``[layers, batch, d]``.
    """
    return _described(model, GraphKind.STEP)


def build_sequence(model: QuantizedModel) -> onnx.ModelProto:
    """Build the graph that runs a whole row of tokens for every sequence of a batch.

    Inputs: ``tokens`` int64 ``[batch, length]`` and ``state`` int32 ``[layers, batch, d]``.
    Outputs: ``logits`` int32 ``[batch, length, vocab]`` and ``state_out`` int32
    ``[layers, batch, d]`` after the last token.
    """
    return _described(model, GraphKind.SEQUENCE)


def build_graph(model: QuantizedModel, kind: GraphKind) -> onnx.ModelProto:
    """Build the step or the sequence graph of ``model``, without metadata yet."""
    embedding, *records = model.records
    assert isinstance(embedding, Embedding)
    graph = GraphBuilder(model, kind, TensorProto.INT32)
    nodes, steps = graph.nodes, kind is GraphKind.STEP
    walk = RecordGraph(graph, model.projections, model.sigmoid,
                       ["batch"] if steps else ["length", "batch"], model.vectors)
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
        opset_imports(), values=walk.values, functions=walk.functions)


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
        lead: Sequence[str], vectors: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self._store, self._projections, self._sigmoid = store, projections, sigmoid
        self._lead, self._vectors = lead, vectors
        self._tables: dict[bool, list[str]] = {}
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
                case Narrow(name, x, width):
                    self._call(self._function(_narrow, record.shift, record.output),
                               [x], {name: width}, name)
                case Scale(name, x, width):
                    gains = self._store.store(
                        f"{name}.vector", self._vectors[name].astype(np.float64))
                    self._call(self._function(_multiply, record.shift, record.output),
                               [x, gains], {name: width}, name)
                case Norm(name, x, width):
                    norm = self._function(_norm_quant, record.reciprocal_bits, record.root_frac,
                                          record.scale_frac)
                    widths = {"m": 1, "r": 1, "q": width, "s": 1, "n": 1, "v": 1}
                    self._call_parts(norm, [x], widths, name)
                case Energy(name, x):
                    self._call(self._function(_energy, record.mantissa, record.shift),
                               [x], {name: 1}, name)
                case Root(name, x):
                    extra = [] if record.extra is None else [record.extra]
                    root = self._function(_root, record.root_frac, record.epsilon, bool(extra))
                    self._call_parts(root, [x, *extra], {"s": 1, "n": 1}, name)
                case Quantize(name, x, root, width):
                    quantize = self._function(
                        _quantize, record.reciprocal_bits, record.scale_shift, record.scale_frac)
                    widths = {"m": 1, "r": 1, "q": width, "v": 1}
                    self._call_parts(quantize, [x, f"{root}.n"], widths, name)
                case Project():
                    self._project(record)
                case Recur():
                    after.append(self._recur(record, next(before)))
                case Sigmoid(name, x, width):
                    sigmoid = self._function(_sigmoid, record.z, record.step_bits)
                    self._call(sigmoid, [x, *self._table(record)], {name: width}, name)
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
        width, f, c = record.width, record.gate, record.candidate
        state = self._function(_state, record.frac, record.keeps)
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

    def _call_parts(
        self, function: str, inputs: list[str], widths: Mapping[str, int], name: str,
    ) -> None:
        self._call(function, inputs, {f"{name}.{part}": n for part, n in widths.items()}, name)

    def _table(self, record: Sigmoid) -> list[str]:
        """The names of a table and of its rises, which are stored the first time."""
        if record.complement not in self._tables:
            name = "complement" if record.complement else "sigmoid"
            table = self._sigmoid.astype(np.float64)[::-1 if record.complement else 1]
            stored = [self._store.store(f"{name}.table", table)]
            if record.step_bits:
                stored.append(self._store.store(f"{name}.rise", np.diff(table)))
            self._tables[record.complement] = stored
        return self._tables[record.complement]


# Functions of any leading shape -------------------------------------------------------


def _narrow(shift: int, output: FixedPoint) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    end = _saturated(nodes, nodes.rs("x", shift), output, "y")
    return nodes.function("Narrow", ["x"], ["y"], f"rs(x, {shift}){end}")


def _norm_quant(k: int, t: int, scale_frac: int) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    last = _absmax_quant(nodes, "y", k)
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


def _absmax_quant(nodes: NodeBuilder, y: str, k: int) -> str:
    """Append maximum m, its reciprocal r and activations q of ``y``; return the last axis."""
    last = nodes.integers([-1])
    nodes.op("ReduceMax", [nodes.op("Abs", [y]), last], "m")
    at_least_one = nodes.op("Max", ["m", nodes.constant(1.0)])
    nodes.op("Floor", [nodes.op("Div", [nodes.constant(float(127 << k)), at_least_one])], "r")
    nodes.round(nodes.op("Mul", [y, nodes.op("Mul", ["r", nodes.power(-k)])]), "q")
    return last


def _energy(mantissa: int, shift: int) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    total = nodes.op("ReduceSumSquare", ["x", nodes.integers([-1])])
    nodes.rs(nodes.op("Mul", [total, nodes.constant(float(mantissa))]), shift, "y")
    return nodes.function("Energy", ["x"], ["y"], f"rs(sum(x^2) * {mantissa}, {shift}).")


def _root(t: int, epsilon: int, has_extra: bool) -> onnx.FunctionProto:
    nodes, extra = NodeBuilder(), ["extra"] if has_extra else []
    total = nodes.op("ReduceSumSquare", ["x", nodes.integers([-1])])
    for name in extra:
        total = nodes.op("Add", [total, name])
    nodes.op("Add", [total, nodes.constant(float(epsilon))], "s")
    root = nodes.op("Floor", [nodes.op("Sqrt", [nodes.op("Mul", ["s", nodes.power(2 * t)])])])
    nodes.op("Max", [root, nodes.constant(1.0)], "n")
    return nodes.function(
        "Root", ["x", *extra], ["s", "n"],
        f"Sum of squares s = {' + '.join(['sum(x^2)', *extra, str(epsilon)])} and its root, "
        f"n = isqrt(s << {2 * t}), at least 1.")


def _quantize(k: int, shift: int, scale_frac: int) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    _absmax_quant(nodes, "x", k)
    ratio = nodes.op("Floor", [nodes.op("Div", [nodes.op("Mul", ["m", nodes.power(shift)]), "n"])])
    nodes.op("Min", [ratio, nodes.constant(float((1 << scale_frac) - 1))], "v")
    return nodes.function(
        "Quantize", ["x", "n"], ["m", "r", "q", "v"],
        f"Absmax quantisation: maximum m, reciprocal r = (127 << k) // m, activations "
        f"q = rs(x * r, k); output scale v = (m << {shift}) // n, below 2^{scale_frac}.")


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


def _sigmoid(z: FixedPoint, step: int) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    position = nodes.op("Add", ["z", nodes.constant(float(-z.min))])
    if step == 0:
        index = nodes.cast(position, TensorProto.INT64)
        nodes.op("Gather", ["table", index], "y")
    else:
        position = nodes.op("Mul", [position, nodes.power(-step)])
        segment = nodes.op("Floor", [position])
        inside = nodes.op("Sub", [position, segment])
        index = nodes.cast(segment, TensorProto.INT64)
        low = nodes.op("Gather", ["table", index])
        rise = nodes.op("Gather", ["rise", index])
        nodes.op("Add", [low, nodes.round(nodes.op("Mul", [rise, inside]))], "y")
    return nodes.function(
        "Sigmoid", ["z", "table", *(["rise"] if step else [])], ["y"],
        "Sigmoid by table: the top bits of z select a segment, the others, if any, "
        "interpolate inside it.")


def _state(frac: int, keeps: bool) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    # (1 - f) * (c - h) + h = f * (h - c) + c, and h and c are whole numbers.
    near, far = ("c", "h") if keeps else ("h", "c")
    product = nodes.op("Mul", ["f", nodes.op("Sub", [far, near])])
    nodes.op("Add", [near, nodes.rs(product, frac)], "h_next")
    return nodes.function(
        "State", ["f", "c", "h"], ["h_next"],
        f"The recurrence: {near} + rs(f * ({far} - {near}), {frac}).")


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
