"""Tables that a lookup graph computes once, when it is loaded, and then only reads.

``reciprocals``: what a vector is multiplied with to quantise it, by its absolute maximum.
``gates``: the forget gate, the candidate and the output gate, by pre-activation.
``silu``: the gated half of the GLU, by pre-activation.
``ScaleTable``: the output scale of a projection, by the root of the sum of squares.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from sterna.export.graph.node_builder import NodeBuilder
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
    nodes: NodeBuilder, store: Callable[[str, np.ndarray], str], model: QuantizedModel,
) -> tuple[str, str, str]:
    """Append the nodes that compute the tables; return ``reciprocals``, ``gates``, ``silu``.

    ``reciprocals`` float64 ``[largest m + 1, 1]`` holds ``R(m) * 2^-k``. ``gates`` float64
    ``[3 * 2^z_bits]`` holds ``f * 2^-Ff``, then c, then ``g * 2^-output_shift``; ``silu``
    float64 ``[2^z_bits]`` holds ``rs(z * sigmoid(z), Ff) * 2^-product_shift``; both are
    indexed by ``z - z.min``.
    """
    profile = model.profile
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
    sigmoid = _sigmoids(nodes, store, model)
    silu = nodes.op("Mul", [values, sigmoid])
    candidate = nodes.saturate(nodes.rs(silu, profile.candidate_shift), profile.h)
    nodes.op("Concat", [
        nodes.op("Mul", [sigmoid, nodes.power(-ff)]), candidate,
        nodes.op("Mul", [sigmoid, nodes.power(-profile.output_shift)])],
        "gates", attributes={"axis": 0})
    nodes.op("Mul", [nodes.rs(silu, ff), nodes.power(-profile.product_shift)], "silu")
    return "reciprocals", "gates", "silu"


def _sigmoids(
    nodes: NodeBuilder, store: Callable[[str, np.ndarray], str], model: QuantizedModel,
) -> str:
    """The sigmoid of every z, float64 ``[2^z_bits]``."""
    step = model.profile.sigmoid_step_bits
    table = store("sigmoid.table", model.sigmoid.astype(np.int32))
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


def scale_table(profile: NumericProfile) -> onnx.FunctionProto:
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
