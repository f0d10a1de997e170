"""Float graphs: ``fast``, for speed where the last bit does not matter, and ``float32``.

They compute in real numbers what the integer model approximates: RMS normalisation in
place of NormQuant, sigmoids in place of tables, no 8-bit activations. ``fast`` multiplies
with onnxruntime's 2-bit ``MatMulNBits`` (which quantises each block of 128 activations to
8 bits for itself), ``float32`` with dense matrices: the baseline that speed is compared
with. ``float32`` saturates as the model was trained; ``fast`` does not, which changes little
(docs/onnx.md) and saves five nodes a layer.

With y the input of a projection, ``q / sqrt(S)`` of the integer model is ``y / |y|``, so its
output is ``T RMSNorm(y) * 127 K / (sqrt(n) 2^(MK - MA + shift + F))`` plus the bias, with
F the fraction bits of the output (docs/numerics.md).
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from sterna.export.float.reference import EPSILON, real_scale
from sterna.export.graph.builder import (
    GraphBuilder,
    NodeBuilder,
    merged,
    opset_imports,
    scan_over_time,
)
from sterna.export.graph.metadata import GraphKind
from sterna.export.graph.products import (
    BLOCK,
    CONTRIB,
    block_columns,
    nbits_product,
    pack_codes,
)
from sterna.model.profile import FixedPoint
from sterna.model.quantized import QuantizedModel

__all__ = ["build_float"]


def build_float(model: QuantizedModel, kind: GraphKind, *, packed: bool) -> onnx.ModelProto:
    """Build the ``fast`` (``packed``) or the ``float32`` graph of ``model``.

    Inputs and outputs as of the exact graphs, but ``logits``, ``state`` and ``state_out``
    are float32 in real units. The result has no metadata yet.
    """
    return _Assembler(model, kind, packed).assemble()


class _Assembler:
    """Puts one graph together; all values are float32."""

    def __init__(self, model: QuantizedModel, kind: GraphKind, packed: bool) -> None:
        self.model = model
        self.packed = packed
        self.graph = GraphBuilder(model, kind, TensorProto.FLOAT)
        self.nodes = self.graph.nodes

    def assemble(self) -> onnx.ModelProto:
        x = self.graph.rows_of(self._real(
            "embedding", self.model.embedding, self.model.profile.x.frac))
        normed = self._normed(x, self.model.config.d)
        states = []
        for layer, h in enumerate(self.graph.states("state")):
            mixed, added = f"layer{layer}.mlgru.x", f"layer{layer}.glu.x"
            states.append(f"layer{layer}.mlgru.h_out")
            normed = self._added(x, self._mlgru(layer, normed, h, states[-1]), mixed)
            normed = self._added(mixed, self._glu(layer, normed), added)
            x = added
        self.graph.logits(
            self._product("", ("head",), normed, self.model.profile.logit), "logits")
        self.nodes.op("Concat", states, "state_out", attributes={"axis": 0})
        return self.graph.model_proto(
            [*opset_imports()[:1], helper.make_opsetid(CONTRIB, 1)])

    # Products ----------------------------------------------------------------------

    def _real(self, name: str, values: np.ndarray, frac: int) -> str:
        """Store integers with ``frac`` fraction bits; they are real when loaded."""
        narrow = np.int16 if np.abs(values).max(initial=0) < 1 << 15 else np.int32
        stored = self.graph.store(name, values.astype(narrow))
        whole = self.nodes.cast(stored, TensorProto.FLOAT)
        return self.nodes.op(
            "Mul", [whole, self.nodes.constant(math.ldexp(1.0, -frac), TensorProto.FLOAT)])

    def _ones(self, columns: int) -> str:
        return self.nodes.op("Expand", [
            self.nodes.constant(1.0, TensorProto.FLOAT), self.nodes.integers([columns])])

    def _normed(self, y: str, columns: int) -> str:
        return self.nodes.op("RMSNormalization", [y, self._ones(columns)],
                            attributes={"epsilon": EPSILON})

    def _added(self, x: str, update: str, output: str) -> str:
        """The residual stream ``x + update``, called ``output``; return its norm."""
        if self.packed:
            return self.nodes.op(
                "SkipSimplifiedLayerNormalization", [x, update, self._ones(self.model.config.d)],
                domain=CONTRIB, attributes={"epsilon": EPSILON}, further=["", "", output])
        total = self.nodes.op("Add", [x, update])
        return self._normed(
            self._clip(total, self.model.profile.x, output), self.model.config.d)

    def _clip(self, value: str, fmt: FixedPoint, output: str = "") -> str:
        """Saturate as the model was trained; the packed graph does not."""
        if self.packed:
            return value
        scale = math.ldexp(1.0, -fmt.frac)
        return self.nodes.op("Clip", [
            value, self.nodes.constant(fmt.min * scale, TensorProto.FLOAT),
            self.nodes.constant(fmt.max * scale, TensorProto.FLOAT)], output)

    def _product(
        self, at: str, parts: tuple[str, ...], normed: str, fmt: FixedPoint,
    ) -> str:
        """``W normed + bias`` of projections that share their input, side by side."""
        name, members = merged(at, parts)
        projections = [self.model.projections[member] for member in members]
        weight = np.concatenate([each.weight for each in projections])
        scales = np.array([real_scale(self.model, member) for member in members], np.float32)
        bias = self._real(
            f"{name}.bias", np.concatenate([each.bias for each in projections]), fmt.frac)
        make = self._packed_product if self.packed else self._dense_product
        return make(name, normed, weight, scales, bias)

    def _dense_product(
        self, name: str, y: str, weight: np.ndarray, scales: np.ndarray, bias: str,
    ) -> str:
        rows = np.repeat(scales, len(weight) // len(scales))
        stored = self.graph.store(f"{name}.weight", weight.T * rows)
        return self.nodes.op("Add", [self.nodes.op("MatMul", [y, stored]), bias])

    def _packed_product(
        self, name: str, y: str, weight: np.ndarray, scales: np.ndarray, bias: str,
    ) -> str:
        n, columns = weight.shape
        width = block_columns(columns)
        nodes = self.nodes
        # Four blocks are multiplied at a time: of 128 columns they would be half empty.
        block = BLOCK // 2 if columns <= 2 * BLOCK else BLOCK
        codes = self.graph.add(f"{name}.weight", pack_codes(weight, block))
        if width != columns:
            y = nodes.op("Pad", [y, nodes.integers([0, 0, 0, 0, 0, width - columns])])
        scale = self.graph.store(f"{name}.scale", scales[:, None])
        repeated = nodes.op("Expand", [
            scale, nodes.integers([len(scales), n // len(scales) * -(-width // block)])])
        spread = nodes.op("Reshape", [repeated, nodes.integers([-1])])
        return nbits_product(
            nodes, y, codes, columns, n, width, spread, bias, block)

    # Blocks ------------------------------------------------------------------------

    def _silu(self, value: str) -> str:
        return self.nodes.op("Mul", [value, self.nodes.op("Sigmoid", [value])])

    def _mlgru(self, layer: int, normed: str, h: str, h_next: str) -> str:
        nodes, profile, d = self.nodes, self.model.profile, self.model.config.d
        at = f"layer{layer}.mlgru"
        z = self._clip(self._product(at, ("f", "g", "c"), normed, profile.z), profile.z)
        nodes.split(z, [f"{at}.f_z", f"{at}.g_z", f"{at}.c_z"])
        f, g = (nodes.op("Sigmoid", [f"{at}.{gate}_z"]) for gate in "fg")
        c = self._silu(f"{at}.c_z")
        if self.graph.kind is GraphKind.STEP:
            rows = _next(nodes, f, c, h, h_next)
        else:
            rows = scan_over_time(
                nodes, f, c, h, h_next, d, TensorProto.FLOAT,
                lambda cell: _next(cell, "f_t", "c_t", "h_t", "h_after"))
        o = nodes.op("Mul", [g, rows])
        return self._product(at, ("out",), self._normed(o, d), profile.x)

    def _glu(self, layer: int, normed: str) -> str:
        profile, at = self.model.profile, f"layer{layer}.glu"
        z = self._clip(self._product(at, ("gate", "up"), normed, profile.z), profile.z)
        self.nodes.split(z, [f"{at}.gate", f"{at}.up"])
        p = self._clip(
            self.nodes.op("Mul", [self._silu(f"{at}.gate"), f"{at}.up"]), profile.p)
        return self._product(
            at, ("down",), self._normed(p, self.model.config.dff), profile.x)


def _next(nodes: NodeBuilder, f: str, c: str, h: str, output: str) -> str:
    """``c + f * (h - c)``."""
    return nodes.op("Add", [c, nodes.op("Mul", [f, nodes.op("Sub", [h, c])])], output)
