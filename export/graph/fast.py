"""The form ``fast``: for speed from onnxruntime alone, where the last bit does not matter.

It walks the records as the exact graph does, and computes in real numbers what they approximate:
sigmoids instead of tables, no rounding and no saturation (which changes little, docs/onnx.md). It
multiplies with onnxruntime's 2-bit ``MatMulNBits``, which quantises each block of 64 or 128
activations to 8 bits separately. The activations of a norm are the vector ``x / root``, whose scale
is in :class:`~sterna.export.float.reference.RealNumbers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import onnx
from onnx import TensorProto

from sterna.export.float.reference import RealNumbers
from sterna.export.graph.builder import CONTRIB, GraphBuilder, model_proto, recur
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.records import (
    Add,
    Energy,
    Multiply,
    Narrow,
    Norm,
    Project,
    Quantize,
    Record,
    Recur,
    Root,
    Scale,
    Sigmoid,
    row_suffix,
)

__all__ = ["BLOCK", "FastGraph", "build_fast", "pack_codes"]

BLOCK = 128
"""Columns per scale in ``MatMulNBits``; its fastest kernels have this size."""
_TINY = 1e-30
"""Added to a sum of squares: the root of zeros must not be zero."""


def build_fast(model: QuantizedModel, *, one_token: bool = False) -> onnx.ModelProto:
    """Build the ``fast`` graph of the language model ``model``, without metadata.

    Inputs and outputs are those of the exact graph, but ``logits``, ``state`` and ``state_out`` are
    float32 in real units.
    """
    return FastGraph(model, one_token).assemble()


class FastGraph:
    """Builds one graph; all values are float32 ``[length, batch, width]``, for one token ``[batch,
    width]``, with the names of the reference."""

    def __init__(self, model: QuantizedModel, one_token: bool) -> None:
        self.model, self.one_token, self.graph = model, one_token, GraphBuilder()
        self.real = RealNumbers.of(model)
        self._current: dict[str, str] = {}
        """The value to read instead of another: of the tokens with logits only, or a direction."""

    def assemble(self) -> onnx.ModelProto:
        """Append all nodes; return the file."""
        graph, model, first = self.graph, self.model, self.graph.integers(0)
        tokens = (graph.op("Squeeze", ["tokens", graph.integers(1)]) if self.one_token
                  else graph.op("Transpose", ["tokens"]))
        table = self.stored("embedding", model.embedding, model.row.frac)
        graph.op("Gather", [table, tokens], model.records[0].result)
        kept = [f"{record.name}_in" for record in model.states]
        parts = [f"{name}_kept" for name in kept]
        graph.op("Split", ["state"], *parts, axis=0, num_outputs=len(parts))
        for part, name in zip(parts, kept, strict=True):
            graph.op("Squeeze", [part, first], name)
        after = self._append(model.records[1:], kept)
        logits = self._at(model.records[-1].result)
        if self.one_token:
            graph.op("Unsqueeze", [logits, graph.integers(1)], "logits")
        else:
            graph.op("Transpose", [logits], "logits", perm=[1, 0, 2])
        graph.concat([graph.op("Unsqueeze", [h, first]) for h in after], 0, "state_out")
        return model_proto(graph, model, TensorProto.FLOAT, self.one_token)

    def stored(self, name: str, values: np.ndarray, frac: int) -> str:
        """Store integers with ``frac`` fraction bits, converted to real numbers on loading."""
        narrow = np.int16 if np.abs(values).max(initial=0) < 1 << 15 else np.int32
        whole = self.graph.cast(self.graph.store(name, values.astype(narrow)), TensorProto.FLOAT)
        return self.graph.op("Mul", [whole, self._number(math.ldexp(1.0, -frac))])

    def added(self, record: Add, normed: str) -> None:
        """Append a sum, and its direction ``normed`` if it is named."""
        graph, (x, y) = self.graph, map(self._at, record.reads)
        if not normed:
            graph.op("Add", [x, y], record.name)
            return
        # The operator divides by the root of the mean square, not of the sum of squares.
        gains = graph.op("Expand", [
            self._number(1 / math.sqrt(record.width)), graph.integers(record.width)])
        graph.op("SkipSimplifiedLayerNormalization", [x, y, gains], normed, "", "", record.name,
                 domain=CONTRIB, epsilon=1e-12)

    def product(self, records: Sequence[Project], normed: str, output: str = "") -> str:
        """Projections of the same activations ``normed``, concatenated."""
        graph, columns, rows = self.graph, records[0].columns, records[0].rows
        own = [self.model.projections[record.name] for record in records]
        weight = np.concatenate([each.weight for each in own])
        # Four blocks are multiplied at a time: with 128 columns they would be half empty.
        block = BLOCK // 2 if columns <= 2 * BLOCK else BLOCK
        blocks = -(-columns // block)
        if columns > 8 * BLOCK:
            blocks = -(-blocks // 4) * 4        # a remainder of four costs up to half of the whole
        width = blocks * block if columns > 8 * BLOCK else columns
        name = "+".join(record.name for record in records)
        codes = graph.store(f"{name}.weight", pack_codes(weight, block))
        if blocks * block >= columns + block:
            codes = graph.op("Pad", [
                codes, graph.integers(0, 0, 0, 0, blocks - -(-columns // block), 0),
                graph.constant(0xAA, np.uint8)])
        if width != columns:
            pads = [0] * (4 if self.one_token else 6)
            pads[-1] = width - columns
            normed = graph.op("Pad", [normed, graph.integers(*pads)])
        scales = np.array([self.real.scales[record.name] for record in records], np.float32)
        scale = graph.op("Expand", [
            graph.store(f"{name}.scale", scales[:, None]),
            graph.integers(len(own), rows * blocks)])
        return graph.op(
            "MatMulNBits", [normed, codes, graph.op("Reshape", [scale, graph.integers(-1)]), "", "",
                            self.bias(records)], output,
            domain=CONTRIB, K=width, N=len(weight), bits=2, block_size=block, accuracy_level=4)

    def bias(self, records: Sequence[Project]) -> str:
        """The biases of projections with outputs of one format, concatenated."""
        name = "+".join(record.name for record in records)
        return self.stored(f"{name}.bias", np.concatenate([
            self.model.projections[record.name].bias for record in records]),
            records[0].output.frac)

    def _number(self, value: float) -> str:
        return self.graph.constant(value, np.float32)

    def _at(self, name: str) -> str:
        return self._current.get(name, name)

    def _append(self, records: Sequence[Record], states: Sequence[str]) -> list[str]:
        """Append the records after an embedding; return the new states."""
        before, after = iter(states), []
        cut, read = row_suffix(records)
        sums = {each.name for each in records if isinstance(each, Add)}
        directions = {each.x: f"{each.name}.q" for each in records
                      if isinstance(each, Norm) and each.x in sums}
        for _, group in groupby(enumerate(records), key=lambda each: _alike(*each)):
            index, record = next(group)
            if index == cut and not self.one_token:
                ends = self.graph.integers(np.iinfo(np.int64).max)
                for name in (read, directions.get(read)):
                    if name:
                        self._current[name] = self.graph.op(
                            "Slice", [name, "logits_from", ends, self.graph.integers(0)])
            match record:
                case Project():
                    others = (each for _, each in group if isinstance(each, Project))
                    self._project([record, *others])
                case Recur():
                    after.append(recur(self.graph, record, record.gate, next(before),
                                       TensorProto.FLOAT, self.one_token))
                case Add():
                    self.added(record, directions.get(record.name, ""))
                case Norm(name, x):
                    if x not in directions:
                        self.direction(self._at(x), f"{name}.q")
                case _:
                    self._step(record)
        return after

    def direction(self, x: str, output: str) -> None:
        """Append ``x / |x|``."""
        self.graph.op("LpNormalization", [x], output, axis=-1, p=2)

    def _project(self, records: Sequence[Project]) -> None:
        results, normed = [each.result for each in records], self._at(f"{records[0].norm}.q")
        if len(results) == 1:
            self.product(records, normed, results[0])
        else:
            self.graph.op("Split", [self.product(records, normed)], *results, axis=-1,
                          num_outputs=len(results))

    def _step(self, record: Record) -> None:
        """Append a record that reads values of its own token only."""
        graph, at, real = self.graph, self._at, self.real
        match record:
            case Narrow(name, x):
                self._current[name] = at(x)
            case Scale(name, x):
                gains = graph.store(f"{name}.vector", real.vectors[name].astype(np.float32))
                graph.op("Mul", [at(x), gains], name)
            case Energy(name, x):
                graph.op("Mul", [self._squares(x), self._number(real.constants[name])], name)
            case Root(name, x):
                total = self._squares(x)
                if record.extra:
                    total = graph.op("Add", [total, at(record.extra)])
                total = graph.op("Add", [total, self._number(real.constants[name] + _TINY)])
                graph.op("Sqrt", [total], f"{name}.n")
            case Quantize(name, x, root):
                graph.op("Div", [at(x), at(f"{root}.n")], f"{name}.q")
            case Sigmoid(name, x):
                graph.op("Sigmoid", [graph.op("Neg", [at(x)]) if record.complement else at(x)],
                         name)
            case Multiply(name, x, y):
                graph.op("Mul", [at(x), at(y)], name)
            case _:
                raise ValueError(
                    f"{record.name}: the form fast has no {type(record).__name__.lower()}")

    def _squares(self, x: str) -> str:
        return self.graph.op("ReduceSumSquare", [self._at(x), self.graph.integers(-1)])


def _alike(index: int, record: Record) -> object:
    """Key of projections that can be multiplied as one."""
    if isinstance(record, Project):
        return record.norm, record.rows, record.output
    return index


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
