"""The form ``fast``: for speed from onnxruntime alone, where the last bit does not matter.

It computes in real numbers what the integer model approximates: RMS normalisation instead of
NormQuant, sigmoids instead of tables, no saturation (which changes little, docs/onnx.md). It
multiplies with onnxruntime's 2-bit ``MatMulNBits``, which quantises each block of 64 or 128
activations to 8 bits separately.

With y the input of a projection, ``q / sqrt(S)`` of the integer model is ``y / |y|``, so its
output is ``T y / |y| * 127 K / 2^(MK - MA + shift + F)`` plus the bias, with F the fraction bits
of the output (docs/numerics.md).
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from sterna.export.float.reference import real_scale
from sterna.export.graph.builder import CONTRIB, GraphBuilder, model_proto, recurrence
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.plan import StageKind, StagePlan

__all__ = ["BLOCK", "FastGraph", "build_fast", "pack_codes"]

BLOCK = 128
"""Columns per scale in ``MatMulNBits``; its fastest kernels have this size."""


def build_fast(model: QuantizedModel, *, one_token: bool = False) -> onnx.ModelProto:
    """Build the ``fast`` graph of ``model``, without metadata.

    Inputs and outputs are those of the exact graph, but ``logits``, ``state`` and ``state_out`` are
    float32 in real units.
    """
    return FastGraph(model, one_token).assemble()


class FastGraph:
    """Builds one graph; all values are float32 ``[length, batch, width]``, for one token ``[batch,
    width]``."""

    def __init__(self, model: QuantizedModel, one_token: bool) -> None:
        self.model, self.one_token, self.graph = model, one_token, GraphBuilder()

    def assemble(self) -> onnx.ModelProto:
        """Append all nodes; return the file."""
        graph, model, first = self.graph, self.model, self.graph.integers(0)
        tokens = (graph.op("Squeeze", ["tokens", graph.integers(1)]) if self.one_token
                  else graph.op("Transpose", ["tokens"]))
        table = self.real("embedding", model.embedding, model.profile.x.frac)
        x = graph.op("Gather", [table, tokens])
        normed = self.norm(x)
        kept = [f"state{layer}" for layer in range(len(model.states))]
        graph.op("Split", ["state"], *kept, axis=0, num_outputs=len(kept))
        before, after, sliced = iter(kept), [], self.one_token
        for stage in model.stages:
            results = self.product(stage, normed)
            match stage.kind:
                case StageKind.MLGRU:
                    h = graph.op("Squeeze", [next(before), first])
                    o, last = self._mlgru(stage, results, h)
                    normed = self.norm(o)
                    after.append(graph.op("Unsqueeze", [last, first]))
                case StageKind.GLU:
                    gate, up = self._split(results, 2)
                    normed = self.norm(graph.op("Mul", [self._silu(gate), up]))
                case StageKind.RESIDUAL:
                    x, normed = self.added(x, results)
                    # After the last recurrence, keep only the tokens to give logits for.
                    if len(after) == len(kept) and not sliced:
                        ends, sliced = graph.integers(np.iinfo(np.int64).max), True
                        x, normed = (graph.op("Slice", [value, "logits_from", ends, first])
                                     for value in (x, normed))
                case StageKind.HEAD:
                    logits = results
        if self.one_token:
            graph.op("Unsqueeze", [logits, graph.integers(1)], "logits")
        else:
            graph.op("Transpose", [logits], "logits", perm=[1, 0, 2])
        graph.concat(after, 0, "state_out")
        return model_proto(graph, model, TensorProto.FLOAT, self.one_token)

    def real(self, name: str, values: np.ndarray, frac: int) -> str:
        """Store integers with ``frac`` fraction bits, converted to real numbers on loading."""
        narrow = np.int16 if np.abs(values).max(initial=0) < 1 << 15 else np.int32
        whole = self.graph.cast(self.graph.store(name, values.astype(narrow)), TensorProto.FLOAT)
        return self.graph.op("Mul", [whole, self._number(math.ldexp(1.0, -frac))])

    def _number(self, value: float) -> str:
        return self.graph.constant(value, np.float32)

    def added(self, x: str, update: str) -> tuple[str, str]:
        """The residual stream ``x + update``, and its direction."""
        normed, total, d = f"{update}.norm", f"{update}.x", self.model.stages[0].columns
        # The operator divides by the root of the mean square, not of the sum of squares.
        gains = self.graph.op("Expand", [self._number(1 / math.sqrt(d)), self.graph.integers(d)])
        self.graph.op("SkipSimplifiedLayerNormalization", [x, update, gains],
                      normed, "", "", total, domain=CONTRIB, epsilon=1e-12)
        return total, normed

    def product(self, stage: StagePlan, normed: str) -> str:
        """The projections of a stage applied to the direction ``normed``, concatenated."""
        graph, members = self.graph, stage.matrices
        own = [self.model.projections[member] for member in members]
        frac = self.model.projects[members[0]].output.frac
        weight = np.concatenate([each.weight for each in own])
        rows, columns = weight.shape
        # Four blocks are multiplied at a time: with 128 columns they would be half empty.
        block = BLOCK // 2 if columns <= 2 * BLOCK else BLOCK
        blocks = -(-columns // block)
        if columns > 8 * BLOCK:
            blocks = -(-blocks // 4) * 4        # a remainder of four costs up to half of the whole
        width = blocks * block if columns > 8 * BLOCK else columns
        name = "+".join(members)
        codes = graph.store(f"{name}.weight", pack_codes(weight, block))
        if blocks * block >= columns + block:
            codes = graph.op("Pad", [
                codes, graph.integers(0, 0, 0, 0, blocks - -(-columns // block), 0),
                graph.constant(0xAA, np.uint8)])
        if width != columns:
            pads = [0] * (2 * self._rank)
            pads[-1] = width - columns
            normed = graph.op("Pad", [normed, graph.integers(*pads)])
        scales = np.array([real_scale(self.model, member) for member in members], np.float32)
        scale = graph.op("Expand", [
            graph.store(f"{name}.scale", scales[:, None]),
            graph.integers(len(own), rows // len(own) * blocks)])
        bias = self.real(f"{name}.bias", np.concatenate([each.bias for each in own]), frac)
        return graph.op(
            "MatMulNBits",
            [normed, codes, graph.op("Reshape", [scale, graph.integers(-1)]), "", "", bias],
            domain=CONTRIB, K=width, N=rows, bits=2, block_size=block, accuracy_level=4)

    @property
    def _rank(self) -> int:
        return 2 if self.one_token else 3

    def norm(self, y: str) -> str:
        """The direction ``y / |y|``."""
        return self.graph.op("LpNormalization", [y], axis=-1, p=2)

    def _silu(self, value: str) -> str:
        return self.graph.op("Mul", [value, self.graph.op("Sigmoid", [value])])

    def _split(self, value: str, count: int) -> list[str]:
        parts = [f"{value}.{part}" for part in range(count)]
        self.graph.op("Split", [value], *parts, axis=-1, num_outputs=count)
        return parts

    def _mlgru(self, stage: StagePlan, results: str, h: str) -> tuple[str, str]:
        """The output of the token mixer, and its last state ``[batch, d]``."""
        graph, last = self.graph, dict(stage.values)["h"]
        f, c, g = self._split(results, 3)
        f, g = (graph.op("Sigmoid", [gate]) for gate in (f, g))
        c = self._silu(c)
        if self.one_token:
            rows = _next(graph, f, c, h, last)
        else:
            cell, rows = GraphBuilder(graph), f"{last}.rows"
            _next(cell, "f", "c", "h", "h_next")
            graph.op("Scan", [h, f, c], last, rows, num_scan_inputs=2,
                     body=recurrence(cell, stage.rows, TensorProto.FLOAT))
        return graph.op("Mul", [g, rows]), last


def _next(graph: GraphBuilder, f: str, c: str, h: str, output: str) -> str:
    """``c + f * (h - c)``."""
    return graph.op("Add", [c, graph.op("Mul", [f, graph.op("Sub", [h, c])])], output)


def pack_codes(weight: np.ndarray, block: int = BLOCK) -> np.ndarray:
    """Pack a weight ``[rows, columns]`` for ``MatMulNBits``.

    uint8 ``[rows, blocks, block / 4]``: four codes ``trit + 2`` per byte, the first in the lowest
    bits; columns up to a whole block are zeros. 2 is the operator's default zero point.
    """
    rows, columns = weight.shape
    blocks = -(-columns // block)
    codes = np.full((rows, blocks * block), 2, dtype=np.uint8)
    codes[:, :columns] = weight + 2
    quads = codes.reshape(rows, blocks, block // 4, 4)
    return np.bitwise_or.reduce(quads << np.array([0, 2, 4, 6], dtype=np.uint8), axis=-1)
