"""The layers of a lean graph as ONNX functions, for one model.

All values are whole numbers in float64, ``[1, rows, width]``; of a sequence graph the rows are
``length * batch``, time first. A state is ``[1, batch, d]``. Fractions appear where a factor
``2^-s`` has been folded into a table. ``floor(v + 1/2)`` is the rounding of the reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from sterna.export.graph.body import DOMAIN, Body, opset_imports
from sterna.export.graph.bounds import folds_biases
from sterna.export.graph.lookups import scale_table
from sterna.export.graph.metadata import GraphKind
from sterna.export.graph.products import Product
from sterna.export.graph.shell import scan_over_time
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel

__all__ = ["layer_functions"]

_LAST = [-1]


def layer_functions(
    model: QuantizedModel, kind: GraphKind, product: Product,
) -> list[onnx.FunctionProto]:
    """Build every function of ``model``'s lean graph, callees before their callers."""
    config, profile = model.config, model.profile
    d, dff, vocab = config.d, config.dff, config.vocab
    shapes = [(d, 3 * d), (d, d), (d, 2 * dff), (dff, d), (d, vocab)]
    return [
        *product.functions(shapes), scale_table(profile), _norm_quant(profile),
        *(_rescale(parts, folds_biases(model)) for parts in (1, 2, 3)),
        _lookup(profile.z), _mlgru_state(), _mlgru_layer(model, kind, product),
        _glu_layer(model, product), _head(model, product),
    ]


def _function(
    name: str, inputs: Sequence[str], outputs: Sequence[str], body: Body, text: str,
    attributes: Sequence[str] = (),
) -> onnx.FunctionProto:
    return helper.make_function(
        DOMAIN, name, list(inputs), list(outputs), body.nodes, opset_imports(),
        attributes=list(attributes), doc_string=text)


def _norm_quant(profile: NumericProfile) -> onnx.FunctionProto:
    body = Body()
    axes = {"keepdims": 0}
    last = body.integers(_LAST)
    m = body.op("ReduceMax", [body.op("Abs", ["y"]), last], attributes=axes)
    r = body.op("Gather", [
        "reciprocals", body.op("Cast", [m], attributes={"to": TensorProto.INT32})])
    body.round(body.op("Mul", ["y", r]), "q")
    root = body.op("ReduceL2", ["q", last], attributes=axes)
    if profile.root_frac:
        root = body.op("Mul", [root, body.power(profile.root_frac)])
    body.op("Cast", [root], "root", attributes={"to": TensorProto.INT32})
    return _function(
        "NormQuant", ["y", "reciprocals"], ["q", "root"], body,
        "RMS normalisation and absmax quantisation in one: activations q = rs(y * R, "
        "k), and the root of their sum of squares, [1, rows].")


def _rescale(parts: int, folds: bool) -> onnx.FunctionProto:
    """``Rescale<parts>(acc, root, columns, k, scale, bias) -> v``, not yet floored.

    The cast of the root truncates, and so takes its floor.
    """
    body = Body()
    body.call("ScaleTable", ["columns", "k", "scale"], ["table"])
    table, acc = "table", "acc"
    if parts > 1:
        table = body.op("Unsqueeze", [table, body.integers([2])])
        acc = body.op("Reshape", [acc, body.integers([0, 0, parts, -1])])
    a = body.op("Gather", [table, "root"])
    scaled = body.op("Mul", [acc, a])
    bias = body.op("Cast", ["bias"], attributes={"to": TensorProto.DOUBLE})
    if folds:
        body.op("Add", [scaled, body.op("Add", [bias, body.constant(0.5)])], "v")
    else:
        body.op("Add", [body.round(scaled), bias], "v")
    return _function(
        f"Rescale{parts}", ["acc", "root", "columns", "k", "scale", "bias"], ["v"], body,
        "acc * A * 2^-shift + bias + 1/2, whose floor is the projection's output; A by the "
        "root. The result is [1, rows, width], or [1, rows, parts, width] of a merged matrix.")


def _lookup(z: FixedPoint) -> onnx.FunctionProto:
    body = Body()
    position = body.op("Add", ["z", "offset"])
    index = body.op("Cast", [position], attributes={"to": TensorProto.INT32})
    # GatherElements is five times faster than Gather where each element is alone.
    flat = body.op("Reshape", [index, body.integers(_LAST)])
    body.op("GatherElements", ["table", flat], "found", attributes={"axis": 0})
    return _function(
        "Lookup", ["z", "table", "offset"], ["found"], body,
        "table[floor(z + offset)], flat; the sum is not negative.")


def _product(
    body: Body, product: Product, y: str, name: str, columns: int, rows: int, parts: int = 1,
) -> str:
    """NormQuant, TernaryMatMul and Rescale of one projection, whose inputs are ``<name>.*``."""
    q, root, acc, v = (f"{name}_{value}" for value in ("q", "root", "acc", "v"))
    weight, *rest = (f"{name}_{part}" for part in ("weight", "k", "scale", "bias"))
    body.call("NormQuant", [y, "reciprocals"], [q, root])
    if product.trits:
        # Here and not inside: onnxruntime takes no int2 for an input that only a nested
        # function reads. It is folded when the graph is loaded.
        weight = body.op("Cast", [weight], attributes={"to": TensorProto.INT8})
    body.call(product.name(columns, rows), [q, weight], [acc])
    body.call(f"Rescale{parts}", [acc, root, body.constant(float(columns)), *rest], [v])
    return v


def _inputs(*names: str) -> list[str]:
    return [f"{name}_{part}" for name in names for part in ("weight", "k", "scale", "bias")]


def _saturate(body: Body, value: str, fmt: FixedPoint, output: str = "") -> str:
    return body.op("Clip", [
        value, body.constant(float(fmt.min)), body.constant(float(fmt.max))], output)


def _mlgru_state() -> onnx.FunctionProto:
    body = Body()
    body.round(body.op("Add", [
        "c", body.op("Mul", ["f", body.op("Sub", ["h", "c"])])]), "h_next")
    return _function(
        "MlgruState", ["f", "c", "h"], ["h_next"], body,
        "The recurrence: h = floor(c + f * (h - c) + 1/2), with f a fraction.")


def _mlgru_layer(
    model: QuantizedModel, kind: GraphKind, product: Product,
) -> onnx.FunctionProto:
    profile, d = model.profile, model.config.d
    body = Body()
    v = _product(body, product, "x", "fcg", d, 3 * d, 3)
    z = _saturate(body, v, profile.z)
    span = 1 << profile.z.bits
    offsets = body.op("Unsqueeze", [
        body.constant([float(part * span - profile.z.min) for part in range(3)]),
        body.integers([1])])
    body.call("Lookup", [z, "gates", offsets], ["found"])
    body.split(body.op("Reshape", ["found", body.integers([1, -1, 3 * d])]), ["f", "c", "g"])
    if kind is GraphKind.STEP:
        body.call("MlgruState", ["f", "c", "h"], ["h_next"])
        rows = "h_next"
    else:
        rows = scan_over_time(
            body, "f", "c", "h", "h_next", d, TensorProto.DOUBLE,
            lambda cell: cell.call("MlgruState", ["f_t", "c_t", "h_t"], ["h_after"], name="state"))
    o = body.round(body.op("Mul", ["g", rows]))
    if not _output_fits(profile):
        o = _saturate(body, o, profile.o)
    v = _product(body, product, o, "out", d, d)
    body_sum = body.op("Floor", [body.op("Add", [v, "x"])])
    _saturate(body, body_sum, profile.x, "y")
    return _function(
        "MlgruLayer", ["x", "h", *_inputs("fcg", "out"), "gates", "reciprocals"],
        ["y", "h_next"], body,
        "The token mixer: y = sat(x + W_out norm(g * h)), h = f * h + (1 - f) * c.", ["profile"])


def _output_fits(profile: NumericProfile) -> bool:
    """Whether ``rs(g * h, output_shift)`` is always inside the format of o."""
    half = (1 << profile.output_shift) >> 1
    reach = [(profile.sigmoid_max * h + half) >> profile.output_shift
             for h in (profile.h.min, profile.h.max)]
    return profile.o.min <= reach[0] and reach[1] <= profile.o.max


def _glu_layer(model: QuantizedModel, product: Product) -> onnx.FunctionProto:
    profile, d, dff = model.profile, model.config.d, model.config.dff
    body = Body()
    v = _product(body, product, "x", "gate_up", d, 2 * dff, 2)
    z = body.op("Reshape", [_saturate(body, v, profile.z), body.integers([1, -1, 2 * dff])])
    body.split(z, ["gate", "up"])
    body.call("Lookup", ["gate", "silu", body.constant(float(-profile.z.min))], ["found"])
    silu = body.op("Reshape", ["found", body.integers([1, -1, dff])])
    rounded = body.round(body.op("Mul", [silu, body.op("Floor", ["up"])]))
    p = _saturate(body, rounded, profile.p)
    v = _product(body, product, p, "down", dff, d)
    _saturate(body, body.op("Floor", [body.op("Add", [v, "x"])]), profile.x, "y")
    return _function(
        "GluLayer", ["x", *_inputs("gate_up", "down"), "silu", "reciprocals"], ["y"], body,
        "The channel mixer: y = sat(x + W_down norm(silu(gate) * up)).", ["profile"])


def _head(model: QuantizedModel, product: Product) -> onnx.FunctionProto:
    body = Body()
    v = _product(body, product, "x", "head", model.config.d, model.config.vocab)
    _saturate(body, body.op("Floor", [v]), model.profile.logit, "logits")
    return _function(
        "Head", ["x", *_inputs("head"), "reciprocals"], ["logits"], body,
        "The logits, [1, rows, vocab].", ["profile"])
