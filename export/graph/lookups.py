"""Tables that a lean graph computes once, when it is loaded, and then only reads.

``reciprocals``: what a vector is multiplied with to quantise it, by its absolute maximum.
``gates``: the forget gate, the candidate and the output gate, by pre-activation.
``silu``: the gated half of the GLU, by pre-activation.
``ScaleTable``: the output scale of a projection, by the root of the sum of squares.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.graph.body import DOMAIN, Body, opset_imports
from sterna.model.profile import NumericProfile
from sterna.model.quantized import QuantizedModel

__all__ = ["check_lookups", "scale_table", "store_lookups"]

_Z_BITS = 16
_NORM_BITS = 18


def check_lookups(model: QuantizedModel) -> None:
    """Check that every table stays below a few megabytes.

    Raises
    ------
    ValueError
        If z has more than 16 bits, or x, o or p more than 18.
    """
    profile = model.profile
    for name, bits, most in (("z", profile.z.bits, _Z_BITS), ("x", profile.x.bits, _NORM_BITS),
                             ("o", profile.o.bits, _NORM_BITS),
                             ("p", profile.p.bits, _NORM_BITS)):
        if bits > most:
            raise ValueError(
                f"{name} of profile {profile.name} has {bits} bits, but this form looks it up "
                f"in a table and takes at most {most}; the form traced has no such limit")


def store_lookups(
    body: Body, store: Callable[[str, np.ndarray], str], model: QuantizedModel,
) -> tuple[str, str, str]:
    """Append the nodes that compute the tables; return ``reciprocals``, ``gates``, ``silu``.

    ``reciprocals`` float64 ``[largest m + 1, 1]`` holds ``R(m) * 2^-k``. ``gates`` float64
    ``[3 * 2^z_bits]`` holds ``f * 2^-Ff``, then c, then ``g * 2^-output_shift``; ``silu``
    float64 ``[2^z_bits]`` holds ``rs(z * sigmoid(z), Ff) * 2^-product_shift``; both are
    indexed by ``z - z.min``.
    """
    profile = model.profile
    k, ff, z = profile.reciprocal_bits, profile.sigmoid_frac, profile.z
    one = body.constant(1.0)

    def counted(first: int, last: int) -> str:
        return body.op("Range", [
            body.constant(float(first)), body.constant(float(last + 1)), one])

    largest = 1 << (max(profile.x.bits, profile.o.bits, profile.p.bits) - 1)
    divisor = body.op("Max", [counted(0, largest), one])
    ratio = body.op("Floor", [body.op("Div", [body.constant(float(127 << k)), divisor])])
    body.op("Unsqueeze", [body.op("Mul", [ratio, body.power(-k)]), body.integers([1])],
            "reciprocals")

    values = counted(z.min, z.max)
    sigmoid = _sigmoids(body, store, model)
    silu = body.op("Mul", [values, sigmoid])
    candidate = body.op("Clip", [
        body.rs(silu, profile.candidate_shift), body.constant(float(profile.h.min)),
        body.constant(float(profile.h.max))])
    body.op("Concat", [
        body.op("Mul", [sigmoid, body.power(-ff)]), candidate,
        body.op("Mul", [sigmoid, body.power(-profile.output_shift)])],
        "gates", attributes={"axis": 0})
    body.op("Mul", [body.rs(silu, ff), body.power(-profile.product_shift)], "silu")
    return "reciprocals", "gates", "silu"


def _sigmoids(
    body: Body, store: Callable[[str, np.ndarray], str], model: QuantizedModel,
) -> str:
    """The sigmoid of every z, float64 ``[2^z_bits]``."""
    step = model.profile.sigmoid_step_bits
    table = store("sigmoid.table", model.sigmoid.astype(np.int32))
    entries = body.op("Cast", [table], attributes={"to": TensorProto.DOUBLE})
    if step == 0:
        return entries
    segments = model.profile.sigmoid_segments
    column = body.op("Unsqueeze", [entries, body.integers([1])])
    low = body.op("Slice", [column, body.integers([0]), body.integers([segments])])
    high = body.op("Slice", [column, body.integers([1]), body.integers([segments + 1])])
    inside = body.op("Range", [
        body.constant(0.0), body.constant(float(1 << step)), body.constant(1.0)])
    rise = body.op("Mul", [body.op("Sub", [high, low]), inside])
    grid = body.op("Add", [low, body.rs(rise, step)])
    return body.op("Reshape", [grid, body.integers([-1])])


def scale_table(profile: NumericProfile) -> onnx.FunctionProto:
    """``ScaleTable(columns, k, scale) -> table``.

    ``table`` float64 ``[largest root + 1, parts]`` holds ``A * 2^-shift`` for every value of
    ``floor(2^t * sqrt(S))``; the largest is ``127 * 2^t * sqrt(columns)``.
    """
    t = profile.root_frac
    body = Body()
    reach = body.op("Mul", [body.op("Sqrt", ["columns"]), body.constant(float(127 << t))])
    end = body.op("Add", [reach, body.constant(2.0)])
    roots = body.op("Range", [body.constant(0.0), end, body.constant(1.0)])
    root = body.op("Max", [roots, body.constant(float(127 << t))])
    norm = body.op("Floor", [body.op("Div", [
        body.constant(float(127 << (profile.scale_frac + t))), root])])
    column = body.op("Unsqueeze", [norm, body.integers([1])])
    flat = body.integers([-1])
    product = body.op("Mul", [column, body.op("Reshape", ["k", flat])])
    a = body.rs(product, profile.combine_shift)
    body.op("Mul", [a, body.op("Reshape", ["scale", flat])], "table")
    return helper.make_function(
        DOMAIN, "ScaleTable", ["columns", "k", "scale"], ["table"], body.nodes, opset_imports(),
        doc_string="Output scale A * 2^-shift of a projection, by the root of the sum of squares "
        "of its input. Folded when the graph is loaded.")
