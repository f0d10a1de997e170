"""The traced graphs: the integer reference, tensor for tensor, in ONNX operators.

The form to look inside: every tensor of the reference is a value of the graph, under the same
name. The forms for use (:mod:`sterna.export.forms.forms`) have fewer nodes. Each step of the
reference is a model-local function, which a runtime inlines and a viewer shows as one box.

All values are whole numbers in float64; ``rs`` is a multiplication by a power of two, an addition
of a half and a floor. :mod:`sterna.export.exact.bounds` proves that nothing is lost. Weights are
stored as 2-bit integers and become int8 when a runtime loads the graph.

The step and the sequence graph come from the same code and differ in their leading axes,
``[batch]`` and ``[length, batch]``, and in the recurrence, which is one function call or a
``Scan`` of it. Length comes first inside the sequence graph, as ``Scan`` wants it, and last
but one in its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.exact.bounds import check_bounds
from sterna.export.graph.builder import (
    MERGED,
    GraphBuilder,
    NodeBuilder,
    TensorStore,
    opset_imports,
)
from sterna.export.graph.metadata import Form, GraphKind, describe
from sterna.export.graph.products import store_trits
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import Projection, QuantizedModel

__all__ = ["TracedBlocks", "build_graph", "build_sequence", "build_step", "ternary_matmul",
           "traced_functions"]


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
    check_bounds(model)
    return _Assembler(model, kind).assemble()


def _described(model: QuantizedModel, kind: GraphKind) -> onnx.ModelProto:
    proto = build_graph(model, kind)
    describe(proto, model, kind, Form.TRACED)
    return proto


class _Assembler:
    """Puts the top level of one graph together; value names are those of the reference."""

    def __init__(self, model: QuantizedModel, kind: GraphKind) -> None:
        self.model = model
        self.config = model.config
        self.profile = model.profile
        self.kind = kind
        self.graph = GraphBuilder(model, kind, TensorProto.INT32)
        self.nodes = self.graph.nodes
        self.blocks = TracedBlocks(
            self.graph, model.profile,
            ["batch"] if kind is GraphKind.STEP else ["length", "batch"])
        self.z_limits: list[str] = []

    def assemble(self) -> onnx.ModelProto:
        self.blocks.store_tables(self.model.sigmoid)
        self.z_limits = self.blocks.store_limits("z", self.profile.z)
        x = self._embed()
        self.nodes.op("Cast", ["state"], "state.value", name="state/in",
                     attributes={"to": TensorProto.DOUBLE})
        states = []
        for layer in range(self.config.layers):
            x, h = self._mlgru(layer, x)
            states.append(h)
            x = self._glu(layer, x)
        self._head(x)
        self.nodes.op("Concat", states, "state_out.value", name="state/stack",
                     attributes={"axis": 0})
        self.nodes.op("Cast", ["state_out.value"], "state_out", name="state/out",
                     attributes={"to": TensorProto.INT32})
        return self.graph.model_proto(
            opset_imports(), values=self.blocks.values,
            functions=traced_functions(self.profile),
            state_text=f"h of every layer, {self.profile.h.frac} fraction bits; zeros at the start")

    def _projections(self, name: str) -> list[Projection]:
        """Those of one matrix of the graph: several where they read the same vector."""
        at, _, group = name.rpartition(".")
        members = [f"{at}.{part}" for part in MERGED[group]] if group in MERGED else [name]
        return [self.model.projections[member] for member in members]

    def _embed(self) -> str:
        table = self.graph.store_embedding()
        tokens = "token"
        if self.kind is GraphKind.SEQUENCE:
            tokens = self.nodes.op("Transpose", ["tokens"], "tokens.by_time",
                                  name="embedding/tokens")
        row = self.nodes.op("Gather", [table, tokens], "embedding.row",
                           name="embedding/row")
        return self.nodes.op("Cast", [row], self.blocks.value("embedding.x", self.config.d),
                            name="embedding/cast", attributes={"to": TensorProto.DOUBLE})

    def _requantized(self, norm: str, y: str, name: str, limits: list[str]) -> str:
        return self.blocks.requantized(norm, y, name, self._projections(name), limits)

    def _added(self, at: str, norm: str, y: str, part: str, x: str) -> str:
        d, name = self.config.d, f"{at}.{part}"
        inputs = [x, *self.blocks.product(f"{at}.{norm}", y, name, self._projections(name))]
        outputs = {f"{name}.a": 1, f"{name}.z": d, f"{at}.x": d}
        return self.blocks.block("ResidualAdd", inputs, outputs, f"{at}.residual")[2]

    def _mlgru(self, layer: int, x: str) -> tuple[str, str]:
        at, d = f"layer{layer}.mlgru", self.config.d
        z = self._requantized(f"{at}.norm", x, f"{at}.fcg", self.z_limits)
        f, g, c = self.blocks.gates(at, z, d)
        index = self.graph.store(f"{at}.index", np.array(layer, dtype=np.int64))
        before = self.nodes.op("Gather", ["state.value", index], f"{at}.h_in",
                              name=f"layer{layer}/mlgru/h_in")
        h, last = self._recurrence(at, f, c, before)
        axis = self.graph.store(f"{at}.axis", np.array([0], dtype=np.int64))
        self.nodes.op("Unsqueeze", [last, axis], f"{at}.h_out",
                     name=f"layer{layer}/mlgru/h_out")
        o = self.blocks.output(at, g, h, d)
        return self._added(at, "out_norm", o, "out", x), f"{at}.h_out"

    def _recurrence(self, at: str, f: str, c: str, before: str) -> tuple[str, str]:
        """Return h of every token, and of the last one alone."""
        d = self.config.d
        if self.kind is GraphKind.STEP:
            h = self.blocks.state(at, f, c, before, d)
            return h, h

        def channel_values(*names: str) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["batch", d])
                    for name in names]

        cell = NodeBuilder()
        cell.call("MlgruState", ["f", "c", "h"], ["h_next"], name="state")
        cell.op("Identity", ["h_next"], "h_row", name="row")
        scan = helper.make_graph(
            cell.protos, "recurrence", channel_values("h", "f", "c"),
            channel_values("h_next", "h_row"))
        self.nodes.protos.append(helper.make_node(
            "Scan", [before, f, c], [f"{at}.h_last", self.blocks.value(f"{at}.h", d)],
            name=f"{at}.state".replace(".", "/"), body=scan, num_scan_inputs=2))
        return f"{at}.h", f"{at}.h_last"

    def _glu(self, layer: int, x: str) -> str:
        at = f"layer{layer}.glu"
        z = self._requantized(f"{at}.norm", x, f"{at}.gate_up", self.z_limits)
        p = self.blocks.glu_product(at, z, self.config.dff)
        return self._added(at, "down_norm", p, "down", x)

    def _head(self, x: str) -> None:
        limits = self.blocks.store_limits("logit", self.profile.logit)
        z = self._requantized("head.norm", x, "head", limits)
        if self.kind is GraphKind.SEQUENCE:
            z = self.nodes.op("Transpose", [z], "head.by_sequence", name="head/by_sequence",
                             attributes={"perm": [1, 0, 2]})
        self.nodes.op("Cast", [z], "logits", name="head/logits",
                     attributes={"to": TensorProto.INT32})


# Blocks -------------------------------------------------------------------------------


class TracedBlocks:
    """Appends the steps of the integer reference to a graph whose vectors begin with axes ``lead``.

    ``values`` are types and shapes of the tensors that have names of their own.
    """

    def __init__(self, store: TensorStore, profile: NumericProfile, lead: Sequence[str]) -> None:
        self._store = store
        self._lead = lead
        self._tables = _sigmoid_inputs(profile)
        self.values: list[onnx.ValueInfoProto] = []

    def store_tables(self, sigmoid: np.ndarray) -> None:
        """Store the tables that the two mixers read."""
        table = sigmoid.astype(np.float64)
        for name, values in zip(("sigmoid.table", "sigmoid.rise"), (table, np.diff(table)),
                                strict=True):
            if name in self._tables:
                self._store.store(name, values)

    def store_limits(self, name: str, fmt: FixedPoint) -> list[str]:
        """Store the ends of a format, which :meth:`requantized` takes."""
        return [self._store.store(f"{name}.min", np.array(float(fmt.min))),
                self._store.store(f"{name}.max", np.array(float(fmt.max)))]

    def value(self, name: str, width: int) -> str:
        """Record type and shape of a tensor that has a name of its own."""
        self.values.append(helper.make_tensor_value_info(
            name, TensorProto.DOUBLE, [*self._lead, width]))
        return name

    def block(
        self, function: str, inputs: list[str], outputs: dict[str, int], node: str,
    ) -> list[str]:
        """Append a call; ``outputs`` are names and widths."""
        names = [self.value(name, width) for name, width in outputs.items()]
        self._store.nodes.call(function, inputs, names, name=node.replace(".", "/"))
        return names

    def product(
        self, norm: str, y: str, name: str, projections: Sequence[Projection],
    ) -> list[str]:
        """Normalise y and multiply; return acc, v, k, scale, bias."""
        columns = projections[0].weight.shape[1]
        rows = sum(each.weight.shape[0] for each in projections)
        widths = {"m": 1, "r": 1, "q": columns, "s": 1, "n": 1, "v": 1}
        self.block("NormQuant", [y], {f"{norm}.{part}": w for part, w in widths.items()}, norm)
        weight, *scales = self._store.store_projection(name, projections, store_trits)
        (acc,) = self.block("TernaryMatMul", [f"{norm}.q", weight], {f"{name}.acc": rows},
                            f"{name}.matmul")
        return [acc, f"{norm}.v", *scales]

    def requantized(
        self, norm: str, y: str, name: str, projections: Sequence[Projection],
        limits: list[str],
    ) -> str:
        """Normalise, multiply, and bring all projections to one format."""
        rows = sum(each.weight.shape[0] for each in projections)
        inputs = [*self.product(norm, y, name, projections), *limits]
        outputs = {f"{name}.a": rows, f"{name}.z": rows}
        return self.block("Requantise", inputs, outputs, f"{name}.requantise")[1]

    def gates(self, at: str, z: str, d: int) -> list[str]:
        """Forget gate, output gate and candidate of the merged pre-activations z."""
        return self.block(
            "MlgruGates", [z, *self._tables],
            {f"{at}.f.sigmoid": d, f"{at}.g.sigmoid": d, f"{at}.c.silu": d}, f"{at}.gates")

    def state(self, at: str, f: str, c: str, before: str, d: int) -> str:
        """The state after one token."""
        return self.block("MlgruState", [f, c, before], {f"{at}.h": d}, f"{at}.state")[0]

    def output(self, at: str, g: str, h: str, d: int) -> str:
        """What the output projection of an MLGRU reads."""
        return self.block("MlgruOutput", [g, h], {f"{at}.o": d}, f"{at}.output")[0]

    def glu_product(self, at: str, z: str, dff: int) -> str:
        """The product of the merged pre-activations of a GLU."""
        return self.block("GluProduct", [z, *self._tables],
                          {f"{at}.gate.silu": dff, f"{at}.p": dff}, f"{at}.product")[1]


# Functions ----------------------------------------------------------------------------


def traced_functions(profile: NumericProfile) -> list[onnx.FunctionProto]:
    """All functions, of any leading shape, callees before their callers."""
    return [_norm_quant(profile), ternary_matmul(), _rescale(profile), _per_row(),
            _requantize(), _residual_add(profile), _sigmoid(profile), _mlgru_gates(profile),
            _mlgru_state(profile), _mlgru_output(profile), _glu_product(profile)]


def _sigmoid_inputs(profile: NumericProfile) -> list[str]:
    """Names of the tables that ``Sigmoid`` reads: the rise only where it interpolates."""
    return ["sigmoid.table", "sigmoid.rise"][:1 + (profile.sigmoid_step_bits > 0)]


def _norm_quant(profile: NumericProfile) -> onnx.FunctionProto:
    k, t = profile.reciprocal_bits, profile.root_frac
    nodes = NodeBuilder()
    last = nodes.integers([-1])
    nodes.op("ReduceMax", [nodes.op("Abs", ["y"]), last], "m")
    at_least_one = nodes.op("Max", ["m", nodes.constant(1.0)])
    nodes.op("Floor", [nodes.op("Div", [nodes.constant(float(127 << k)), at_least_one])], "r")
    nodes.round(nodes.op("Mul", ["y", nodes.op("Mul", ["r", nodes.power(-k)])]), "q")
    nodes.op("ReduceSumSquare", ["q", last], "s")
    root = nodes.op("Floor", [nodes.op("Sqrt", [nodes.op("Mul", ["s", nodes.power(2 * t)])])])
    nodes.op("Max", [root, nodes.constant(float(127 << t))], "n")
    scale = nodes.constant(float(127 << (profile.scale_frac + t)))
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


def _rescale(profile: NumericProfile) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    k = nodes.op("Mul", ["k", nodes.power(-profile.combine_shift)])
    product = nodes.op("Mul", ["v", k])
    if profile.combine_shift:
        nodes.round(product, "a")
    else:
        nodes.op("Identity", [product], "a")
    z = nodes.round(nodes.op("Mul", [nodes.op("Mul", ["acc", "a"]), "scale"]))
    bias = nodes.cast("bias", TensorProto.DOUBLE)
    nodes.op("Add", [z, bias], "z")
    return nodes.function(
        "Rescale", ["acc", "v", "k", "scale", "bias"], ["a", "z"],
        "A = rs(v * k, P + MK - MA), z = rs(acc * A, shift) + bias, with scale = 2^-shift.")


def _per_row() -> onnx.FunctionProto:
    nodes = NodeBuilder()
    spread = nodes.op("Expand", ["values", nodes.op("Shape", ["bias"])])
    nodes.op("Reshape", [spread, nodes.integers([-1])], "rows")
    return nodes.function(
        "PerRow", ["values", "bias"], ["rows"],
        "Repeat one value for each merged matrix [parts, 1] over its rows: [parts * width].")


def _requantize() -> onnx.FunctionProto:
    nodes = NodeBuilder()
    nodes.call("PerRow", ["k", "bias"], ["k_rows"])
    nodes.call("PerRow", ["scale", "bias"], ["scale_rows"])
    nodes.call("PerRow", ["bias", "bias"], ["bias_rows"])
    nodes.call("Rescale", ["acc", "v", "k_rows", "scale_rows", "bias_rows"], ["a", "wide"])
    nodes.op("Clip", ["wide", "low", "high"], "z")
    return nodes.function(
        "Requantise", ["acc", "v", "k", "scale", "bias", "low", "high"], ["a", "z"],
        "Bring the dot products of merged matrices to their output format: Rescale with k "
        "and scale [parts, 1] and bias [parts, width], then saturate to low and high.")


def _residual_add(profile: NumericProfile) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    nodes.call("Rescale", ["acc", "v", "k", "scale", "bias"], ["a", "z"])
    nodes.saturate(nodes.op("Add", ["x", "z"]), profile.x, "y")
    return nodes.function(
        "ResidualAdd", ["x", "acc", "v", "k", "scale", "bias"], ["a", "z", "y"],
        "y = sat(x + Rescale(acc)): a projection added to the residual stream.")


def _sigmoid(profile: NumericProfile) -> onnx.FunctionProto:
    step = profile.sigmoid_step_bits
    nodes = NodeBuilder()
    position = nodes.op("Add", ["z", nodes.constant(float(-profile.z.min))])
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
        "Sigmoid", ["z", *_sigmoid_inputs(profile)], ["y"],
        "Sigmoid by table: the top bits of z select a segment, the others, if any, "
        "interpolate inside it.")


def _mlgru_gates(profile: NumericProfile) -> onnx.FunctionProto:
    tables = _sigmoid_inputs(profile)
    nodes = NodeBuilder()
    nodes.call("Sigmoid", ["z", *tables], ["gates"])
    nodes.split("gates", ["f", "c_gate", "g"])
    nodes.split("z", ["f_z", "c_z", "g_z"])
    silu = nodes.rs(nodes.op("Mul", ["c_z", "c_gate"]), profile.candidate_shift)
    nodes.saturate(silu, profile.h, "c")
    return nodes.function(
        "MlgruGates", ["z", *tables], ["f", "g", "c"],
        "Forget gate f, output gate g and candidate c of the merged pre-activations f|c|g.")


def _mlgru_state(profile: NumericProfile) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    # f * h + (2^Ff - f) * c = 2^Ff * c + f * (h - c), and c is a whole number.
    product = nodes.op("Mul", ["f", nodes.op("Sub", ["h", "c"])])
    nodes.op("Add", ["c", nodes.rs(product, profile.sigmoid_frac)], "h_next")
    return nodes.function(
        "MlgruState", ["f", "c", "h"], ["h_next"],
        "The recurrence: h = rs(f * h + (2^Ff - f) * c, Ff).")


def _mlgru_output(profile: NumericProfile) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    product = nodes.op("Mul", ["g", "h"])
    nodes.saturate(nodes.rs(product, profile.output_shift), profile.o, "o")
    return nodes.function(
        "MlgruOutput", ["g", "h"], ["o"], "o = sat(rs(g * h, Ff + Fh - Fo)).")


def _glu_product(profile: NumericProfile) -> onnx.FunctionProto:
    tables = _sigmoid_inputs(profile)
    nodes = NodeBuilder()
    nodes.split("z", ["gate", "up"])
    nodes.call("Sigmoid", ["gate", *tables], ["gated"])
    nodes.rs(nodes.op("Mul", ["gate", "gated"]), profile.sigmoid_frac, "silu")
    product = nodes.op("Mul", ["silu", "up"])
    nodes.saturate(nodes.rs(product, profile.product_shift), profile.p, "p")
    return nodes.function(
        "GluProduct", ["z", *tables], ["silu", "p"],
        "silu(gate) and p = sat(rs(silu(gate) * up, 2 Fz - Fp)) of the merged gate|up.")
