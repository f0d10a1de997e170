"""The blocks of the model as ONNX functions, one for each idea of the integer reference.

All values are whole numbers in float64, of any leading shape; ``rs`` is a multiplication
by a power of two, an addition of a half and a floor. ``sterna.export.graph.bounds`` proves that
nothing is lost. A runtime inlines the functions, a viewer shows them as one box each.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from sterna.export.graph.body import DOMAIN, Body, opset_imports
from sterna.model.profile import FixedPoint, NumericProfile

__all__ = ["profile_functions", "sigmoid_inputs"]


def sigmoid_inputs(profile: NumericProfile) -> list[str]:
    """Names of the tables that ``Sigmoid`` reads: the rise only where it interpolates."""
    return ["sigmoid.table", "sigmoid.rise"][:1 + (profile.sigmoid_step_bits > 0)]


def profile_functions(profile: NumericProfile) -> list[onnx.FunctionProto]:
    """Build every function for one profile, callees before their callers."""
    return [
        _norm_quant(profile), _ternary_matmul(), _rescale(profile), _per_row(),
        _requantise(), _residual_add(profile), _sigmoid(profile), _mlgru_gates(profile),
        _mlgru_state(profile), _mlgru_output(profile), _glu_product(profile),
    ]


def _function(
    name: str, inputs: Sequence[str], outputs: Sequence[str], body: Body, text: str,
) -> onnx.FunctionProto:
    return helper.make_function(
        DOMAIN, name, list(inputs), list(outputs), body.nodes, opset_imports(),
        doc_string=text)


def _saturate(body: Body, value: str, fmt: FixedPoint, output: str) -> str:
    limits = [body.constant(float(fmt.min)), body.constant(float(fmt.max))]
    return body.op("Clip", [value, *limits], output)


def _norm_quant(profile: NumericProfile) -> onnx.FunctionProto:
    k, t = profile.reciprocal_bits, profile.root_frac
    body = Body()
    last = body.constant([-1], TensorProto.INT64)
    body.op("ReduceMax", [body.op("Abs", ["y"]), last], "m")
    at_least_one = body.op("Max", ["m", body.constant(1.0)])
    body.op("Floor", [body.op("Div", [body.constant(float(127 << k)), at_least_one])], "r")
    body.round(body.op("Mul", ["y", body.op("Mul", ["r", body.power(-k)])]), "q")
    body.op("ReduceSumSquare", ["q", last], "s")
    root = body.op("Floor", [body.op("Sqrt", [body.op("Mul", ["s", body.power(2 * t)])])])
    body.op("Max", [root, body.constant(float(127 << t))], "n")
    scale = body.constant(float(127 << (profile.scale_frac + t)))
    body.op("Floor", [body.op("Div", [scale, "n"])], "v")
    return _function(
        "NormQuant", ["y"], ["m", "r", "q", "s", "n", "v"], body,
        "RMS normalisation and absmax quantisation in one: maximum m, reciprocal "
        "r = (127 << k) // m, activations q = rs(y * r, k), sum of squares s, its root n, "
        "output scale v = (127 << (P + t)) // n.")


def _ternary_matmul() -> onnx.FunctionProto:
    body = Body()
    # Unsigned activations: the kernels for signed ones are not vectorised on x86.
    moved = body.op("Add", ["q", body.constant(128.0)])
    acts = body.op("Cast", [moved], attributes={"to": TensorProto.UINT8})
    weight = body.op("Cast", ["weight"], attributes={"to": TensorProto.INT8})
    dot = body.op("MatMulInteger", [acts, weight, body.constant(128, TensorProto.UINT8)])
    # By way of int64: onnxruntime would fuse a direct cast with the scaling that follows
    # into MatMulIntegerToFloat, which has no float64 and then fails to load.
    wide = body.op("Cast", [dot], attributes={"to": TensorProto.INT64})
    body.op("Cast", [wide], "acc", attributes={"to": TensorProto.DOUBLE})
    return _function(
        "TernaryMatMul", ["q", "weight"], ["acc"], body,
        "Dot products of 8-bit activations q [..., n] with ternary weights [n, rows].")


def _rescale(profile: NumericProfile) -> onnx.FunctionProto:
    body = Body()
    k = body.op("Mul", ["k", body.power(-profile.combine_shift)])
    product = body.op("Mul", ["v", k])
    if profile.combine_shift:
        body.round(product, "a")
    else:
        body.op("Identity", [product], "a")
    z = body.round(body.op("Mul", [body.op("Mul", ["acc", "a"]), "scale"]))
    bias = body.op("Cast", ["bias"], attributes={"to": TensorProto.DOUBLE})
    body.op("Add", [z, bias], "z")
    return _function(
        "Rescale", ["acc", "v", "k", "scale", "bias"], ["a", "z"], body,
        "A = rs(v * k, P + MK - MA), z = rs(acc * A, shift) + bias, with scale = 2^-shift.")


def _per_row() -> onnx.FunctionProto:
    body = Body()
    spread = body.op("Expand", ["values", body.op("Shape", ["bias"])])
    body.op("Reshape", [spread, body.constant([-1], TensorProto.INT64)], "rows")
    return _function(
        "PerRow", ["values", "bias"], ["rows"], body,
        "Repeat one value for each merged matrix [parts, 1] over its rows: [parts * width].")


def _requantise() -> onnx.FunctionProto:
    body = Body()
    body.call("PerRow", ["k", "bias"], ["k_rows"])
    body.call("PerRow", ["scale", "bias"], ["scale_rows"])
    body.call("PerRow", ["bias", "bias"], ["bias_rows"])
    body.call("Rescale", ["acc", "v", "k_rows", "scale_rows", "bias_rows"], ["a", "wide"])
    body.op("Clip", ["wide", "low", "high"], "z")
    return _function(
        "Requantise", ["acc", "v", "k", "scale", "bias", "low", "high"], ["a", "z"], body,
        "Bring the dot products of merged matrices to their output format: Rescale with k "
        "and scale [parts, 1] and bias [parts, width], then saturate to low and high.")


def _residual_add(profile: NumericProfile) -> onnx.FunctionProto:
    body = Body()
    body.call("Rescale", ["acc", "v", "k", "scale", "bias"], ["a", "z"])
    _saturate(body, body.op("Add", ["x", "z"]), profile.x, "y")
    return _function(
        "ResidualAdd", ["x", "acc", "v", "k", "scale", "bias"], ["a", "z", "y"], body,
        "y = sat(x + Rescale(acc)): a projection added to the residual stream.")


def _sigmoid(profile: NumericProfile) -> onnx.FunctionProto:
    step = profile.sigmoid_step_bits
    body = Body()
    position = body.op("Add", ["z", body.constant(float(-profile.z.min))])
    if step == 0:
        index = body.op("Cast", [position], attributes={"to": TensorProto.INT64})
        body.op("Gather", ["sigmoid.table", index], "y")
    else:
        position = body.op("Mul", [position, body.power(-step)])
        segment = body.op("Floor", [position])
        inside = body.op("Sub", [position, segment])
        index = body.op("Cast", [segment], attributes={"to": TensorProto.INT64})
        low = body.op("Gather", ["sigmoid.table", index])
        rise = body.op("Gather", ["sigmoid.rise", index])
        body.op("Add", [low, body.round(body.op("Mul", [rise, inside]))], "y")
    return _function(
        "Sigmoid", ["z", *sigmoid_inputs(profile)], ["y"], body,
        "Sigmoid by table: the top bits of z select a segment, the others, if any, "
        "interpolate inside it.")


def _mlgru_gates(profile: NumericProfile) -> onnx.FunctionProto:
    tables = sigmoid_inputs(profile)
    body = Body()
    body.call("Sigmoid", ["z", *tables], ["gates"])
    body.split("gates", ["f", "c_gate", "g"])
    body.split("z", ["f_z", "c_z", "g_z"])
    silu = body.rs(body.op("Mul", ["c_z", "c_gate"]), profile.candidate_shift)
    _saturate(body, silu, profile.h, "c")
    return _function(
        "MlgruGates", ["z", *tables], ["f", "g", "c"], body,
        "Forget gate f, output gate g and candidate c of the merged pre-activations f|c|g.")


def _mlgru_state(profile: NumericProfile) -> onnx.FunctionProto:
    body = Body()
    # f * h + (2^Ff - f) * c = 2^Ff * c + f * (h - c), and c is a whole number.
    product = body.op("Mul", ["f", body.op("Sub", ["h", "c"])])
    body.op("Add", ["c", body.rs(product, profile.sigmoid_frac)], "h_next")
    return _function(
        "MlgruState", ["f", "c", "h"], ["h_next"], body,
        "The recurrence: h = rs(f * h + (2^Ff - f) * c, Ff).")


def _mlgru_output(profile: NumericProfile) -> onnx.FunctionProto:
    body = Body()
    product = body.op("Mul", ["g", "h"])
    _saturate(body, body.rs(product, profile.output_shift), profile.o, "o")
    return _function(
        "MlgruOutput", ["g", "h"], ["o"], body, "o = sat(rs(g * h, Ff + Fh - Fo)).")


def _glu_product(profile: NumericProfile) -> onnx.FunctionProto:
    tables = sigmoid_inputs(profile)
    body = Body()
    body.split("z", ["gate", "up"])
    body.call("Sigmoid", ["gate", *tables], ["gated"])
    body.rs(body.op("Mul", ["gate", "gated"]), profile.sigmoid_frac, "silu")
    product = body.op("Mul", ["silu", "up"])
    _saturate(body, body.rs(product, profile.product_shift), profile.p, "p")
    return _function(
        "GluProduct", ["z", *tables], ["silu", "p"], body,
        "silu(gate) and p = sat(rs(silu(gate) * up, 2 Fz - Fp)) of the merged gate|up.")
