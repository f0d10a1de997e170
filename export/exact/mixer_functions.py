"""The two mixers and the head as ONNX functions, between their projections.

Each idea stands here twice, as in :mod:`sterna.export.exact.projection_functions`: a function
for each step of the integer reference in the traced graph, one for each layer in the lookup
graph.

Vectors of the lookup graph are ``[1, rows, width]``; of a sequence graph the rows are
``length * batch``, time first. A state is ``[1, batch, d]``.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from sterna.export.exact.projection_functions import append_projection, projection_inputs
from sterna.export.graph.graph_builder import scan_over_time
from sterna.export.graph.metadata import GraphKind
from sterna.export.graph.node_builder import NodeBuilder
from sterna.export.graph.products import Product
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel

__all__ = ["lookup_mixers", "sigmoid_inputs", "traced_mixers"]


def traced_mixers(profile: NumericProfile) -> list[onnx.FunctionProto]:
    """The functions of the traced graph, of any leading shape, callees before their callers."""
    return [_sigmoid(profile), _mlgru_gates(profile), _traced_mlgru_state(profile),
            _mlgru_output(profile), _glu_product(profile)]


def lookup_mixers(
    model: QuantizedModel, kind: GraphKind, product: Product,
) -> list[onnx.FunctionProto]:
    """The functions of the lookup graph, callees before their callers; the last are the layers."""
    return [_lookup(model.profile.z), _lookup_mlgru_state(), _mlgru_layer(model, kind, product),
            _glu_layer(model, product), _head(model, product)]


# Sigmoids ----------------------------------------------------------------------------


def sigmoid_inputs(profile: NumericProfile) -> list[str]:
    """Names of the tables that ``Sigmoid`` reads: the rise only where it interpolates."""
    return ["sigmoid.table", "sigmoid.rise"][:1 + (profile.sigmoid_step_bits > 0)]


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
        "Sigmoid", ["z", *sigmoid_inputs(profile)], ["y"],
        "Sigmoid by table: the top bits of z select a segment, the others, if any, "
        "interpolate inside it.")


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


# The token mixer ---------------------------------------------------------------------


def _mlgru_gates(profile: NumericProfile) -> onnx.FunctionProto:
    tables = sigmoid_inputs(profile)
    nodes = NodeBuilder()
    nodes.call("Sigmoid", ["z", *tables], ["gates"])
    nodes.split("gates", ["f", "c_gate", "g"])
    nodes.split("z", ["f_z", "c_z", "g_z"])
    silu = nodes.rs(nodes.op("Mul", ["c_z", "c_gate"]), profile.candidate_shift)
    nodes.saturate(silu, profile.h, "c")
    return nodes.function(
        "MlgruGates", ["z", *tables], ["f", "g", "c"],
        "Forget gate f, output gate g and candidate c of the merged pre-activations f|c|g.")


def _traced_mlgru_state(profile: NumericProfile) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    # f * h + (2^Ff - f) * c = 2^Ff * c + f * (h - c), and c is a whole number.
    product = nodes.op("Mul", ["f", nodes.op("Sub", ["h", "c"])])
    nodes.op("Add", ["c", nodes.rs(product, profile.sigmoid_frac)], "h_next")
    return nodes.function(
        "MlgruState", ["f", "c", "h"], ["h_next"],
        "The recurrence: h = rs(f * h + (2^Ff - f) * c, Ff).")


def _lookup_mlgru_state() -> onnx.FunctionProto:
    nodes = NodeBuilder()
    nodes.round(nodes.op("Add", [
        "c", nodes.op("Mul", ["f", nodes.op("Sub", ["h", "c"])])]), "h_next")
    return nodes.function(
        "MlgruState", ["f", "c", "h"], ["h_next"],
        "The recurrence: h = floor(c + f * (h - c) + 1/2), with f a fraction.")


def _mlgru_output(profile: NumericProfile) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    product = nodes.op("Mul", ["g", "h"])
    nodes.saturate(nodes.rs(product, profile.output_shift), profile.o, "o")
    return nodes.function(
        "MlgruOutput", ["g", "h"], ["o"], "o = sat(rs(g * h, Ff + Fh - Fo)).")


def _mlgru_layer(
    model: QuantizedModel, kind: GraphKind, product: Product,
) -> onnx.FunctionProto:
    profile, d = model.profile, model.config.d
    nodes = NodeBuilder()
    v = append_projection(nodes, product, "x", "fcg", d, 3 * d, 3)
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
    _residual(nodes, append_projection(nodes, product, o, "out", d, d), profile)
    return nodes.function(
        "MlgruLayer", ["x", "h", *projection_inputs("fcg", "out"), "gates", "reciprocals"],
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


# The channel mixer and the head ------------------------------------------------------


def _glu_product(profile: NumericProfile) -> onnx.FunctionProto:
    tables = sigmoid_inputs(profile)
    nodes = NodeBuilder()
    nodes.split("z", ["gate", "up"])
    nodes.call("Sigmoid", ["gate", *tables], ["gated"])
    nodes.rs(nodes.op("Mul", ["gate", "gated"]), profile.sigmoid_frac, "silu")
    product = nodes.op("Mul", ["silu", "up"])
    nodes.saturate(nodes.rs(product, profile.product_shift), profile.p, "p")
    return nodes.function(
        "GluProduct", ["z", *tables], ["silu", "p"],
        "silu(gate) and p = sat(rs(silu(gate) * up, 2 Fz - Fp)) of the merged gate|up.")


def _glu_layer(model: QuantizedModel, product: Product) -> onnx.FunctionProto:
    profile, d, dff = model.profile, model.config.d, model.config.dff
    nodes = NodeBuilder()
    v = append_projection(nodes, product, "x", "gate_up", d, 2 * dff, 2)
    z = nodes.op(
        "Reshape", [nodes.saturate(v, profile.z), nodes.integers([1, -1, 2 * dff])])
    nodes.split(z, ["gate", "up"])
    nodes.call("Lookup", ["gate", "silu", nodes.constant(float(-profile.z.min))], ["found"])
    silu = nodes.op("Reshape", ["found", nodes.integers([1, -1, dff])])
    rounded = nodes.round(nodes.op("Mul", [silu, nodes.op("Floor", ["up"])]))
    p = nodes.saturate(rounded, profile.p)
    _residual(nodes, append_projection(nodes, product, p, "down", dff, d), profile)
    return nodes.function(
        "GluLayer", ["x", *projection_inputs("gate_up", "down"), "silu", "reciprocals"], ["y"],
        "The channel mixer: y = sat(x + W_down norm(silu(gate) * up)).", ["profile"])


def _head(model: QuantizedModel, product: Product) -> onnx.FunctionProto:
    nodes = NodeBuilder()
    v = append_projection(nodes, product, "x", "head", model.config.d, model.config.vocab)
    nodes.saturate(nodes.op("Floor", [v]), model.profile.logit, "logits")
    return nodes.function(
        "Head", ["x", *projection_inputs("head"), "reciprocals"], ["logits"],
        "The logits, [1, rows, vocab].", ["profile"])
