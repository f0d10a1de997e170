"""The lookup graphs: exact, with few nodes; what edge devices run.

The same integers as :mod:`sterna.export.exact.traced`, with everything that depends on one small
number read from a table. The tables are computed inside the graph from the 64 sigmoid
segments and the scales; a runtime folds them when it loads the file, so they take no room
in it. What stays is about 100 nodes a layer.

- ``reciprocals``: what a vector is multiplied with to quantise it, by its absolute maximum.
- ``gates``: the forget gate, the candidate and the output gate, by pre-activation.
- ``silu``: the gated half of the GLU, by pre-activation.
- ``ScaleTable``: the output scale of a projection, by the root of the sum of squares.

``exact``, ``exact-2bit`` and ``web`` differ in one function, the ternary product
(:mod:`sterna.export.graph.products`). A layer is two nodes, ``MlgruLayer`` and ``GluLayer``, so
that a native library can take their place (:mod:`sterna.export.native.ops`). Values are whole
numbers in float64, also divided by a power of two; vectors are ``[1, rows, width]``; of a
sequence graph the rows are ``length * batch``, time first. A state is ``[1, batch, d]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.graph.builder import (
    GraphBuilder,
    NodeBuilder,
    merged,
    opset_imports,
    scan_over_time,
)
from sterna.export.graph.metadata import PROFILE_ATTRIBUTE, GraphKind, profile_numbers
from sterna.export.graph.products import CONTRIB, Product
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.bounds import folds_biases

__all__ = ["build_lookup_graph"]

_Z_BITS = 16
_NORM_BITS = 18


def build_lookup_graph(
    model: QuantizedModel, kind: GraphKind, product: Product,
) -> onnx.ModelProto:
    """Build the step or sequence graph of ``model`` around one way of multiplying.

    Inputs and outputs are those of :func:`sterna.export.exact.traced.build_graph`. The result has
    no metadata yet. Raises ValueError if a lookup table would be too long.
    """
    _check_lookups(model)
    return _Assembler(model, kind, product).assemble()


class _Assembler:
    """Puts the top level of one graph together."""

    def __init__(self, model: QuantizedModel, kind: GraphKind, product: Product) -> None:
        self.model = model
        self.product = product
        self.graph = GraphBuilder(model, kind, TensorProto.INT32)
        self.nodes = self.graph.nodes
        self.values: list[onnx.ValueInfoProto] = []
        self.attributes: dict[str, Any] = {
            PROFILE_ATTRIBUTE: list(profile_numbers(model.profile).values())}

    def assemble(self) -> onnx.ModelProto:
        reciprocals, gates, silu = _store_lookups(self.graph)
        x = self._embed()
        before = self.nodes.cast("state", TensorProto.DOUBLE, "state.value")
        states = []
        for layer, h in enumerate(self.graph.states(before)):
            at = f"layer{layer}"
            x, h = self._call(
                "MlgruLayer", at,
                [x, h, *self._projection(f"{at}.mlgru", "f", "c", "g"),
                 *self._projection(f"{at}.mlgru", "out"), gates, reciprocals],
                [f"{at}.mlgru.x", f"{at}.mlgru.h"])
            states.append(h)
            (x,) = self._call(
                "GluLayer", at,
                [x, *self._projection(f"{at}.glu", "gate", "up"),
                 *self._projection(f"{at}.glu", "down"), silu, reciprocals],
                [f"{at}.glu.x"])
        (z,) = self._call(
            "Head", "head", [x, *self._projection("", "head"), reciprocals], ["head.z"])
        self.nodes.cast(self.graph.logits(z), TensorProto.INT32, "logits")
        after = self.nodes.op("Concat", states, attributes={"axis": 0})
        self.nodes.cast(after, TensorProto.INT32, "state_out")
        return self.graph.model_proto(
            [*opset_imports(), helper.make_opsetid(CONTRIB, 1)], functions=self._functions(),
            values=self.values)

    def _functions(self) -> list[onnx.FunctionProto]:
        """Callees before their callers; the last are the layers."""
        model, product, profile = self.model, self.product, self.model.profile
        d, dff, vocab = model.config.d, model.config.dff, model.config.vocab
        # Bias and the half that rounds are added in one, which all but extreme shifts allow.
        fold_bias = folds_biases(model)
        return [
            *product.functions([(d, 3 * d), (d, d), (d, 2 * dff), (dff, d), (d, vocab)]),
            _scale_table(profile), _norm_quant(profile),
            *(_rescale(parts, fold_bias) for parts in (1, 2, 3)), _lookup(profile.z),
            _mlgru_state(), _mlgru_layer(model, self.graph.kind, product),
            _glu_layer(model, product), _head(model, product)]

    def _embed(self) -> str:
        """Rows of the embedding, float64 ``[1, rows, d]``."""
        rows = self.graph.rows_of(self.graph.store_embedding())
        return self.nodes.cast(
            rows, TensorProto.DOUBLE, self._value("embedding.x", self.model.config.d))

    def _call(self, function: str, at: str, inputs: list[str], outputs: list[str]) -> list[str]:
        name = at if function == "Head" else f"{at}/{function.removesuffix('Layer').lower()}"
        self.nodes.call(function, inputs, outputs, name=name, attributes=self.attributes)
        self._value(outputs[0], self.model.config.vocab if function == "Head"
                    else self.model.config.d)
        return outputs

    def _value(self, name: str, width: int) -> str:
        """Record type and shape of a tensor that the reference has, too."""
        self.values.append(helper.make_tensor_value_info(
            name, TensorProto.DOUBLE, [1, "rows", width]))
        return name

    def _projection(self, at: str, *parts: str) -> list[str]:
        """Store a projection, merged from ``parts``; return weight, k, scale and bias."""
        name, members = merged(at, parts)
        return self.graph.store_projection(
            name, [self.model.projections[member] for member in members], self.product.store)


# Tables -------------------------------------------------------------------------------


def _check_lookups(model: QuantizedModel) -> None:
    """Check that every table stays below a few megabytes."""
    profile = model.profile
    for name, bits, most in (("z", profile.z.bits, _Z_BITS), ("x", profile.x.bits, _NORM_BITS),
                             ("o", profile.o.bits, _NORM_BITS),
                             ("p", profile.p.bits, _NORM_BITS)):
        if bits > most:
            raise ValueError(
                f"{name} of profile {profile.name} has {bits} bits, but this form looks it up "
                f"in a table and takes at most {most}; the form traced has no such limit")


def _store_lookups(graph: GraphBuilder) -> tuple[str, str, str]:
    """Append the nodes that compute the tables; return ``reciprocals``, ``gates``, ``silu``.

    ``reciprocals`` float64 ``[largest m + 1, 1]`` holds ``R(m) * 2^-k``. ``gates`` float64
    ``[3 * 2^z_bits]`` holds ``f * 2^-Ff``, then c, then ``g * 2^-output_shift``; ``silu``
    float64 ``[2^z_bits]`` holds ``rs(z * sigmoid(z), Ff) * 2^-product_shift``; both are
    indexed by ``z - z.min``.
    """
    nodes, profile = graph.nodes, graph.model.profile
    k, ff, z = profile.reciprocal_bits, profile.sigmoid_frac, profile.z
    one = nodes.constant(1.0)

    def counted(first: int, last: int) -> str:
        return nodes.op("Range", [
            nodes.constant(float(first)), nodes.constant(float(last + 1)), one])

    largest = 1 << (max(profile.x.bits, profile.o.bits, profile.p.bits) - 1)
    divisor = nodes.op("Max", [counted(0, largest), one])
    ratio = nodes.op("Floor", [nodes.op("Div", [nodes.constant(float(127 << k)), divisor])])
    nodes.op("Unsqueeze", [nodes.op("Mul", [ratio, nodes.power(-k)]), nodes.integers([1])],
            "reciprocals")

    values = counted(z.min, z.max)
    sigmoid = _sigmoids(graph)
    silu = nodes.op("Mul", [values, sigmoid])
    candidate = nodes.saturate(nodes.rs(silu, profile.candidate_shift), profile.h)
    nodes.op("Concat", [
        nodes.op("Mul", [sigmoid, nodes.power(-ff)]), candidate,
        nodes.op("Mul", [sigmoid, nodes.power(-profile.output_shift)])],
        "gates", attributes={"axis": 0})
    nodes.op("Mul", [nodes.rs(silu, ff), nodes.power(-profile.product_shift)], "silu")
    return "reciprocals", "gates", "silu"


def _sigmoids(graph: GraphBuilder) -> str:
    """The sigmoid of every z, float64 ``[2^z_bits]``."""
    nodes, model = graph.nodes, graph.model
    step = model.profile.sigmoid_step_bits
    table = graph.store("sigmoid.table", model.sigmoid.astype(np.int32))
    entries = nodes.cast(table, TensorProto.DOUBLE)
    if step == 0:
        return entries
    segments = model.profile.sigmoid_segments
    column = nodes.op("Unsqueeze", [entries, nodes.integers([1])])
    low = nodes.op("Slice", [column, nodes.integers([0]), nodes.integers([segments])])
    high = nodes.op("Slice", [column, nodes.integers([1]), nodes.integers([segments + 1])])
    inside = nodes.op("Range", [
        nodes.constant(0.0), nodes.constant(float(1 << step)), nodes.constant(1.0)])
    rise = nodes.op("Mul", [nodes.op("Sub", [high, low]), inside])
    grid = nodes.op("Add", [low, nodes.rs(rise, step)])
    return nodes.op("Reshape", [grid, nodes.integers([-1])])


def _scale_table(profile: NumericProfile) -> onnx.FunctionProto:
    """``ScaleTable(columns, k, scale) -> table``.

    ``table`` float64 ``[largest root + 1, parts]`` holds ``A * 2^-shift`` for every value of
    ``floor(2^t * sqrt(S))``; the largest is ``127 * 2^t * sqrt(columns)``.
    """
    t = profile.root_frac
    nodes = NodeBuilder()
    reach = nodes.op("Mul", [nodes.op("Sqrt", ["columns"]), nodes.constant(float(127 << t))])
    end = nodes.op("Add", [reach, nodes.constant(2.0)])
    roots = nodes.op("Range", [nodes.constant(0.0), end, nodes.constant(1.0)])
    root = nodes.op("Max", [roots, nodes.constant(float(127 << t))])
    norm = nodes.op("Floor", [nodes.op("Div", [
        nodes.constant(float(127 << (profile.scale_frac + t))), root])])
    column = nodes.op("Unsqueeze", [norm, nodes.integers([1])])
    flat = nodes.integers([-1])
    product = nodes.op("Mul", [column, nodes.op("Reshape", ["k", flat])])
    a = nodes.rs(product, profile.combine_shift)
    nodes.op("Mul", [a, nodes.op("Reshape", ["scale", flat])], "table")
    return nodes.function(
        "ScaleTable", ["columns", "k", "scale"], ["table"],
        "Output scale A * 2^-shift of a projection, by the root of the sum of squares "
        "of its input. Folded when the graph is loaded.")


# Functions ----------------------------------------------------------------------------


def _norm_quant(profile: NumericProfile) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    axes = {"keepdims": 0}
    last = nodes.integers([-1])
    m = nodes.op("ReduceMax", [nodes.op("Abs", ["y"]), last], attributes=axes)
    r = nodes.op("Gather", ["reciprocals", nodes.cast(m, TensorProto.INT32)])
    nodes.round(nodes.op("Mul", ["y", r]), "q")
    root = nodes.op("ReduceL2", ["q", last], attributes=axes)
    if profile.root_frac:
        root = nodes.op("Mul", [root, nodes.power(profile.root_frac)])
    nodes.cast(root, TensorProto.INT32, "root")
    return nodes.function(
        "NormQuant", ["y", "reciprocals"], ["q", "root"],
        "RMS normalisation and absmax quantisation in one: activations q = rs(y * R, "
        "k), and the root of their sum of squares, [1, rows].")


def _append_projection(
    nodes: NodeBuilder, product: Product, y: str, name: str, columns: int, rows: int,
    parts: int = 1,
) -> str:
    """Append NormQuant, TernaryMatMul and Rescale of one projection to a lookup graph's layer.

    It reads the inputs :func:`_projection_inputs` of ``name``; the result is not yet floored.
    """
    q, root, acc, v = (f"{name}_{value}" for value in ("q", "root", "acc", "v"))
    weight, *rest = _projection_inputs(name)
    nodes.call("NormQuant", [y, "reciprocals"], [q, root])
    if product.trits:
        # Here and not inside: onnxruntime takes no int2 for an input that only a nested
        # function reads. It is folded when the graph is loaded.
        weight = nodes.cast(weight, TensorProto.INT8)
    nodes.call(product.name(columns, rows), [q, weight], [acc])
    nodes.call(f"Rescale{parts}", [acc, root, nodes.constant(float(columns)), *rest], [v])
    return v


def _projection_inputs(*names: str) -> list[str]:
    """The inputs of a layer that hold these projections, in the order of the graph's nodes."""
    return [f"{name}_{part}" for name in names for part in ("weight", "k", "scale", "bias")]


def _rescale(parts: int, fold_bias: bool) -> onnx.FunctionProto:
    """``Rescale<parts>(acc, root, columns, k, scale, bias) -> v``, not yet floored.

    The cast of the root truncates, and so takes its floor.
    """
    nodes = NodeBuilder()
    nodes.call("ScaleTable", ["columns", "k", "scale"], ["table"])
    table, acc = "table", "acc"
    if parts > 1:
        table = nodes.op("Unsqueeze", [table, nodes.integers([2])])
        acc = nodes.op("Reshape", [acc, nodes.integers([0, 0, parts, -1])])
    a = nodes.op("Gather", [table, "root"])
    scaled = nodes.op("Mul", [acc, a])
    bias = nodes.cast("bias", TensorProto.DOUBLE)
    if fold_bias:
        nodes.op("Add", [scaled, nodes.op("Add", [bias, nodes.constant(0.5)])], "v")
    else:
        nodes.op("Add", [nodes.round(scaled), bias], "v")
    return nodes.function(
        f"Rescale{parts}", ["acc", "root", "columns", "k", "scale", "bias"], ["v"],
        "acc * A * 2^-shift + bias + 1/2, whose floor is the projection's output; A by the "
        "root. The result is [1, rows, width], or [1, rows, parts, width] of a merged matrix.")


def _lookup(z: FixedPoint) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    position = nodes.op("Add", ["z", "offset"])
    index = nodes.cast(position, TensorProto.INT32)
    # GatherElements is five times faster than Gather where each element is alone.
    flat = nodes.op("Reshape", [index, nodes.integers([-1])])
    nodes.op("GatherElements", ["table", flat], "found", attributes={"axis": 0})
    return nodes.function(
        "Lookup", ["z", "table", "offset"], ["found"],
        "table[floor(z + offset)], flat; the sum is not negative.")


def _mlgru_state() -> onnx.FunctionProto:
    nodes = NodeBuilder()
    nodes.round(nodes.op("Add", [
        "c", nodes.op("Mul", ["f", nodes.op("Sub", ["h", "c"])])]), "h_next")
    return nodes.function(
        "MlgruState", ["f", "c", "h"], ["h_next"],
        "The recurrence: h = floor(c + f * (h - c) + 1/2), with f a fraction.")


def _mlgru_layer(
    model: QuantizedModel, kind: GraphKind, product: Product,
) -> onnx.FunctionProto:
    profile, d = model.profile, model.config.d
    nodes = NodeBuilder()
    v = _append_projection(nodes, product, "x", "fcg", d, 3 * d, 3)
    z = nodes.saturate(v, profile.z)
    span = 1 << profile.z.bits
    offsets = nodes.op("Unsqueeze", [
        nodes.constant([float(part * span - profile.z.min) for part in range(3)]),
        nodes.integers([1])])
    nodes.call("Lookup", [z, "gates", offsets], ["found"])
    nodes.split(nodes.op("Reshape", ["found", nodes.integers([1, -1, 3 * d])]), ["f", "c", "g"])
    if kind is GraphKind.STEP:
        nodes.call("MlgruState", ["f", "c", "h"], ["h_next"])
        rows = "h_next"
    else:
        rows = scan_over_time(
            nodes, "f", "c", "h", "h_next", d, TensorProto.DOUBLE,
            lambda cell: cell.call("MlgruState", ["f_t", "c_t", "h_t"], ["h_after"], name="state"))
    o = nodes.round(nodes.op("Mul", ["g", rows]))
    if not _output_fits(profile):
        o = nodes.saturate(o, profile.o)
    _residual(nodes, _append_projection(nodes, product, o, "out", d, d), profile)
    return nodes.function(
        "MlgruLayer", ["x", "h", *_projection_inputs("fcg", "out"), "gates", "reciprocals"],
        ["y", "h_next"],
        "The token mixer: y = sat(x + W_out norm(g * h)), h = f * h + (1 - f) * c.", ["profile"])


def _output_fits(profile: NumericProfile) -> bool:
    """Whether ``rs(g * h, output_shift)`` is always inside the format of o."""
    half = (1 << profile.output_shift) >> 1
    reach = [(profile.sigmoid_max * h + half) >> profile.output_shift
             for h in (profile.h.min, profile.h.max)]
    return profile.o.min <= reach[0] and reach[1] <= profile.o.max


def _residual(nodes: NodeBuilder, v: str, profile: NumericProfile) -> None:
    """``y = sat(x + floor(v))``: a projection added to the residual stream."""
    nodes.saturate(nodes.op("Floor", [nodes.op("Add", [v, "x"])]), profile.x, "y")


def _glu_layer(model: QuantizedModel, product: Product) -> onnx.FunctionProto:
    profile, d, dff = model.profile, model.config.d, model.config.dff
    nodes = NodeBuilder()
    v = _append_projection(nodes, product, "x", "gate_up", d, 2 * dff, 2)
    z = nodes.op(
        "Reshape", [nodes.saturate(v, profile.z), nodes.integers([1, -1, 2 * dff])])
    nodes.split(z, ["gate", "up"])
    nodes.call("Lookup", ["gate", "silu", nodes.constant(float(-profile.z.min))], ["found"])
    silu = nodes.op("Reshape", ["found", nodes.integers([1, -1, dff])])
    rounded = nodes.round(nodes.op("Mul", [silu, nodes.op("Floor", ["up"])]))
    p = nodes.saturate(rounded, profile.p)
    _residual(nodes, _append_projection(nodes, product, p, "down", dff, d), profile)
    return nodes.function(
        "GluLayer", ["x", *_projection_inputs("gate_up", "down"), "silu", "reciprocals"], ["y"],
        "The channel mixer: y = sat(x + W_down norm(silu(gate) * up)).", ["profile"])


def _head(model: QuantizedModel, product: Product) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    v = _append_projection(nodes, product, "x", "head", model.config.d, model.config.vocab)
    nodes.saturate(nodes.op("Floor", [v]), model.profile.logit, "logits")
    return nodes.function(
        "Head", ["x", *_projection_inputs("head"), "reciprocals"], ["logits"],
        "The logits, [1, rows, vocab].", ["profile"])
