"""A projection as ONNX functions, from the vector that is normalised to the rescaled output.

Each idea stands here twice. Those of the traced graph give every tensor of the integer
reference a name; those of the lookup graph read from tables and fold factors ``2^-s`` into them.

All values are whole numbers in float64, of the lookup graph also divided by a power of two.
``rs`` is a multiplication by a power of two, an addition of a half and a floor.
``sterna.export.exact.bounds`` proves that nothing is lost. A runtime inlines the functions, a
viewer shows them as one box each.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from sterna.export.graph.node_builder import NodeBuilder
from sterna.export.graph.products import Product
from sterna.model.profile import NumericProfile

__all__ = ["append_projection", "lookup_projection", "projection_inputs", "ternary_matmul",
           "traced_projection"]


def traced_projection(profile: NumericProfile) -> list[onnx.FunctionProto]:
    """The functions of the traced graph, of any leading shape, callees before their callers."""
    return [_traced_norm_quant(profile), ternary_matmul(), _traced_rescale(profile), _per_row(),
            _requantize(), _residual_add(profile)]


def lookup_projection(profile: NumericProfile, *, fold_bias: bool) -> list[onnx.FunctionProto]:
    """The functions of the lookup graph, on ``[1, rows, width]``, for one to three merged matrices.

    ``fold_bias`` adds the bias and the half that rounds in one, which is exact for all but
    extreme shifts (:func:`sterna.export.exact.bounds.folds_biases`).
    """
    return [_lookup_norm_quant(profile), *(_lookup_rescale(n, fold_bias) for n in (1, 2, 3))]


# Normalisation and quantisation ------------------------------------------------------


def _traced_norm_quant(profile: NumericProfile) -> onnx.FunctionProto:
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


def _lookup_norm_quant(profile: NumericProfile) -> onnx.FunctionProto:
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


# Products ----------------------------------------------------------------------------


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


def append_projection(
    nodes: NodeBuilder, product: Product, y: str, name: str, columns: int, rows: int,
    parts: int = 1,
) -> str:
    """Append NormQuant, TernaryMatMul and Rescale of one projection to a lookup graph's layer.

    It reads the inputs :func:`projection_inputs` of ``name``; the result is not yet floored.
    """
    q, root, acc, v = (f"{name}_{value}" for value in ("q", "root", "acc", "v"))
    weight, *rest = projection_inputs(name)
    nodes.call("NormQuant", [y, "reciprocals"], [q, root])
    if product.trits:
        # Here and not inside: onnxruntime takes no int2 for an input that only a nested
        # function reads. It is folded when the graph is loaded.
        weight = nodes.cast(weight, TensorProto.INT8)
    nodes.call(product.name(columns, rows), [q, weight], [acc])
    nodes.call(f"Rescale{parts}", [acc, root, nodes.constant(float(columns)), *rest], [v])
    return v


def projection_inputs(*names: str) -> list[str]:
    """The inputs of a layer that hold these projections, in the order of the graph's nodes."""
    return [f"{name}_{part}" for name in names for part in ("weight", "k", "scale", "bias")]


# Output scales -----------------------------------------------------------------------


def _traced_rescale(profile: NumericProfile) -> onnx.FunctionProto:
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


def _lookup_rescale(parts: int, fold_bias: bool) -> onnx.FunctionProto:
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
