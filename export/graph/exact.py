"""The exact graph: the integer reference, tensor for tensor, in standard ONNX operators.

It walks the same list of records as the reference, so the result of every record is a value of the
graph under the same name. All values are whole numbers in float64, where ``rs`` is a multiplication
by a power of two, an addition of a half and a floor; :mod:`sterna.model.quantized.bounds` proves
that this is exact.

Vectors are ``[length, batch, width]``: length is first, as ``Scan`` requires, but last but one in
inputs and outputs. A graph of one token has ``[batch, width]`` and no ``Scan``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from sterna.export.graph.builder import GraphBuilder, model_proto, recur, value_info
from sterna.export.graph.weights import append_weight
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.bounds import folds_bias, tensor_bounds
from sterna.model.quantized.entry import Entry
from sterna.model.quantized.records import (
    Add,
    Energy,
    Input,
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

__all__ = ["RecordGraph", "append_product", "build_exact"]

_TABLE_BITS = 16
"""Most bits of a pre-activation for a table with an entry per value, computed at load time."""


def build_exact(model: QuantizedModel, *, one_token: bool = False) -> onnx.ModelProto:
    """Build the graph that runs a row of tokens for every sequence of a batch, without metadata.

    Inputs: ``tokens`` int64 ``[batch, length]``, each below ``vocab``; ``state`` int32 ``[layers,
    batch, d]``, zeros at the start of a sequence; ``logits_from`` int64 ``[1]``, the first token
    of the call to give logits for, negative from its end. Outputs: ``logits`` int32 ``[batch,
    tokens wanted, vocab]`` and ``state_out`` int32 ``[layers, batch, d]`` after the last token.

    A network takes ``frames`` int32 ``[batch, length, channels]`` and ``results_from``, and gives
    ``results``.

    With ``one_token`` the length is 1 and there is no ``logits_from``.
    """
    entry, records = model.entry, list(model.records)
    graph = GraphBuilder()
    walk = RecordGraph(
        graph, model.projections, model.sigmoid,
        tensor_bounds(model.records, model.projections, entry.reach, model.vectors),
        ["batch"] if one_token else ["length", "batch"], model.vectors)
    first = records[0]
    if isinstance(first, Input):
        records[0] = replace(first, x=graph.cast(
            _steps(graph, entry, one_token), TensorProto.DOUBLE))
    else:
        wide = model.row.bits > 16
        table = graph.store("embedding", model.embedding.astype(np.int32 if wide else np.int16))
        row = graph.op("Gather", [table, _steps(graph, entry, one_token)])
        graph.cast(row, TensorProto.DOUBLE, walk.value(first.name, first.width))
        del records[0]

    states, front = [f"{record.name}_in" for record in model.states], graph.integers(0)
    before = graph.cast("state", TensorProto.DOUBLE, "state.value")
    parts = [f"{name}_kept" for name in states]
    graph.op("Split", [before], *parts, axis=0, num_outputs=len(parts))
    for part, name in zip(parts, states, strict=True):
        graph.op("Squeeze", [part, front], name)
    after = walk.append(records, states, "" if one_token else f"{entry.result}_from")

    last = records[-1].result
    last = (graph.op("Unsqueeze", [last, graph.integers(1)]) if one_token
            else graph.op("Transpose", [last], perm=[1, 0, 2]))
    graph.cast(last, TensorProto.INT32, entry.result)
    stacked = graph.concat([graph.op("Unsqueeze", [h, front]) for h in after], 0)
    graph.cast(stacked, TensorProto.INT32, "state_out")

    return model_proto(graph, model, TensorProto.INT32, one_token)


def _steps(graph: GraphBuilder, entry: Entry, one_token: bool) -> str:
    """The input, ``[length, batch, ...]``, or without the length."""
    if one_token:
        return graph.op("Squeeze", [entry.name, graph.integers(1)])
    order: dict[str, Any] = {"perm": [1, 0, 2]} if entry.shape else {}
    return graph.op("Transpose", [entry.name], **order)


class RecordGraph:
    """Appends records to a graph of vectors with the leading axes ``lead``.

    ``bounds`` are those of :func:`~sterna.model.quantized.bounds.tensor_bounds`.
    """

    def __init__(
        self, graph: GraphBuilder, projections: Mapping[str, Projection], sigmoid: np.ndarray,
        bounds: Mapping[str, int], lead: Sequence[str],
        vectors: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self._graph, self._projections, self._sigmoid = graph, projections, sigmoid
        self._lead, self._vectors = list(lead), vectors
        self._bounds = bounds
        self._tables: dict[bool, list[str]] = {}
        self._shapes: dict[tuple[str, int], str] = {}
        self._sliced: dict[str, str] = {}
        self._sigmoids: dict[str, Sigmoid] = {}     # not yet made, by input

    def value(self, name: str, width: int) -> str:
        """Record type and shape of a tensor of the reference; return its name."""
        self._graph.values.append(value_info(name, TensorProto.DOUBLE, [*self._lead, width]))
        return name

    def append(
        self, records: Sequence[Record], states: Iterable[str], logits_from: str = "",
    ) -> list[str]:
        """Append records; ``states`` are the values ``[batch, width]`` of the recurrences.

        Only the tokens from ``logits_from`` on reach the records that do not depend on other
        tokens. Returns the new states.
        """
        before, after = iter(states), []
        self._sigmoids = {each.x: each for each in records if isinstance(each, Sigmoid)}
        cut, read = row_suffix(records)
        for _, group in groupby(enumerate(records), key=lambda each: _alike(*each)):
            index, record = next(group)
            if index == cut and logits_from:
                ends = self._graph.integers(np.iinfo(np.int64).max)
                self._sliced[read] = self._graph.op(
                    "Slice", [read, logits_from, ends, self._graph.integers(0)])
                self._lead = ["wanted", *self._lead[1:]]
            if isinstance(record, Project):
                others = (each for _, each in group if isinstance(each, Project))
                self._project([record, *others])
            elif isinstance(record, Recur):
                self.value(record.name, record.width)
                gate = self._graph.op("Mul", [record.gate, self._graph.power(-record.frac)])
                after.append(recur(self._graph, record, gate, next(before), TensorProto.DOUBLE,
                                   len(self._lead) == 1))
            else:
                self._append(record)
        return after

    def _append(self, record: Record) -> None:
        graph = self._graph

        def at(name: str) -> str:
            return self._sliced.get(name, name)

        match record:
            case Input(name, x, _, _, output):
                offset, shift = (self._vectors[f"{name}.{part}"].astype(np.float64)
                                 for part in ("offset", "shift"))
                centred = graph.op("Sub", [at(x), graph.store(f"{name}.offset", offset)])
                scaled = graph.op("Mul", [centred, graph.store(f"{name}.scale", 2.0 ** -shift)])
                pads = [0] * (2 * len(self._lead) + 2)
                pads[-1] = 1
                graph.op("Pad", [graph.saturate(graph.round(scaled), output), graph.integers(*pads),
                                 graph.constant(float(1 << output.frac))],
                         self.value(name, record.width))
            case Narrow(name, x, width, shift, output):
                graph.saturate(graph.rs(at(x), shift), output, self.value(name, width))
            case Scale(name, x, width, shift, output):
                gains = graph.store(f"{name}.vector", self._vectors[name].astype(np.float64))
                value = graph.rs(graph.op("Mul", [at(x), gains]), shift)
                graph.saturate(value, output, self.value(name, width))
            case Norm(name, x, width, k, t):
                self._absmax_quant(name, at(x), width, k)
                total = graph.op("ReduceSumSquare", [f"{name}.q", graph.integers(-1)],
                                 self.value(f"{name}.s", 1))
                root = self._root(total, t, float(127 << t), self.value(f"{name}.n", 1))
                scale = graph.constant(float(127 << (record.scale_frac + t)))
                graph.op("Floor", [graph.op("Div", [scale, root])], self.value(f"{name}.v", 1))
            case Energy(name, x, _, mantissa, shift):
                total = graph.op("ReduceSumSquare", [at(x), graph.integers(-1)])
                product = graph.op("Mul", [total, graph.constant(float(mantissa))])
                graph.rs(product, shift, self.value(name, 1))
            case Root(name, x, _, t, epsilon, extra):
                total = graph.op("ReduceSumSquare", [at(x), graph.integers(-1)])
                if extra:
                    total = graph.op("Add", [total, at(extra)])
                total = graph.op("Add", [total, graph.constant(float(epsilon))],
                                 self.value(f"{name}.s", 1))
                self._root(total, t, 1.0, self.value(f"{name}.n", 1))
            case Quantize(name, x, root, width, k, shift, scale_frac):
                largest = self._absmax_quant(name, at(x), width, k)
                shifted = graph.op("Mul", [largest, graph.power(shift)])
                ratio = graph.op("Floor", [graph.op("Div", [shifted, at(f"{root}.n")])])
                graph.op("Min", [ratio, graph.constant(float((1 << scale_frac) - 1))],
                         self.value(f"{name}.v", 1))
            case Sigmoid(_, x):
                if x in self._sigmoids:
                    self._append_sigmoids(at(x), [self._sigmoids.pop(x)])
            case Multiply(name, x, y, width, shift, output):
                product, whole = graph.op("Mul", [at(x), at(y)]), self.value(name, width)
                if self._bounds[name] >> shift > output.max:
                    graph.saturate(graph.rs(product, shift), output, whole)
                else:
                    graph.rs(product, shift, whole)
            case Add(name, x, y, width, output, saturates):
                whole = self.value(name, width)
                total = graph.op("Add", [at(x), at(y)], "" if saturates else whole)
                if saturates:
                    graph.saturate(total, output, whole)
            case _:
                raise ValueError(f"{record.name}: an embedding can only be the first record")

    def _absmax_quant(self, name: str, y: str, width: int, k: int) -> str:
        """Append 8-bit activations ``{name}.q`` of ``y``; return its maximum ``m``."""
        graph = self._graph
        largest = graph.op("ReduceMax", [graph.op("Abs", [y]), graph.integers(-1)],
                           self.value(f"{name}.m", 1))
        divisor = graph.op("Max", [largest, graph.constant(1.0)])
        reciprocal = graph.op("Floor", [graph.op("Div", [
            graph.constant(float(127 << k)), divisor])], self.value(f"{name}.r", 1))
        factor = graph.op("Mul", [reciprocal, graph.power(-k)])
        graph.round(graph.op("Mul", [y, factor]), self.value(f"{name}.q", width))
        return largest

    def _root(self, total: str, t: int, least: float, output: str) -> str:
        """``max(floor(2^t sqrt(total)), least)``."""
        graph = self._graph
        wide = graph.op("Mul", [total, graph.power(2 * t)]) if t else total
        floor = graph.op("Floor", [graph.op("Sqrt", [wide])])
        return graph.op("Max", [floor, graph.constant(least)], output)

    def _project(self, records: Sequence[Project]) -> None:
        """Append projections of the same activations as one product.

        Sums and scales of several are concatenated, in values with the names joined by ``+``.
        """
        graph, first = self._graph, records[0]
        name, rows = "+".join(record.name for record in records), sum(r.rows for r in records)
        own = [self._projections[record.name] for record in records]
        weights = [append_weight(graph, f"{record.name}.weight", each.weight)
                   for record, each in zip(records, own, strict=True)]
        acc = append_product(graph, f"{first.norm}.q", graph.concat(weights, 1),
                             self.value(f"{name}.acc", rows))

        def spread(part: str, values: Iterable[float]) -> str:
            """A number per projection, repeated for each of its rows if there are several."""
            stored = [graph.store(f"{record.name}.{part}", np.array([value]))
                      for record, value in zip(records, values, strict=True)]
            if len(stored) > 1:
                stored = [graph.op("Expand", [name, graph.integers(record.rows)])
                          for name, record in zip(stored, records, strict=True)]
            return graph.concat(stored, 0)

        k = spread("k", (float(each.k) for each in own))
        k = graph.op("Mul", [k, graph.power(-first.combine_shift)])
        scale = graph.round(graph.op("Mul", [f"{first.norm}.v", k]),
                            self.value(f"{name}.a", rows if len(records) > 1 else 1))
        # Not a multiplication: onnxruntime would fuse it as the scale of a float32 product.
        scale = graph.op("Div", [scale, spread("divisor", (2.0 ** each.shift for each in own))])
        bias = graph.cast(graph.concat([
            graph.store(f"{record.name}.bias", each.bias.astype(np.int32))
            for record, each in zip(records, own, strict=True)], 0), TensorProto.DOUBLE)
        value = graph.op("Mul", [acc, scale])
        results = [self.value(f"{record.name}.z", record.rows) for record in records]
        end = results[0] if len(results) == 1 else ""
        last = "" if first.saturates else end
        if all(map(folds_bias, records, own)):
            added = graph.op("Add", [bias, graph.constant(0.5)])
            value = graph.op("Floor", [graph.op("Add", [value, added])], last)
        else:
            value = graph.op("Add", [graph.round(value), bias], last)
        if first.saturates:
            value = graph.saturate(value, first.output, end)
        if len(results) > 1:
            self._split(value, results, [record.rows for record in records])
            found = [self._sigmoids[name] for name in results if name in self._sigmoids]
            alike = {replace(each, name="", x="", width=1) for each in found}
            if len(found) == len(results) and len(alike) == 1:
                self._append_sigmoids(value, [self._sigmoids.pop(name) for name in results])

    def _split(self, value: str, names: Sequence[str], widths: Sequence[int]) -> None:
        self._graph.op("Split", [value, self._graph.integers(*widths)], *names, axis=-1)

    def _append_sigmoids(self, z: str, records: Sequence[Sigmoid]) -> None:
        """The sigmoids, in one format, of the concatenated values ``z``."""
        names = [self.value(record.name, record.width) for record in records]
        widths = [record.width for record in records]
        if len(names) == 1:
            self._append_sigmoid(records[0], z, names[0], widths[0])
        else:
            self._split(self._append_sigmoid(records[0], z, "", sum(widths)), names, widths)

    def _append_sigmoid(self, record: Sigmoid, z: str, output: str, width: int) -> str:
        """The sigmoid of z: entry z of a table, or that of its segment plus its rise."""
        graph, step = self._graph, record.step_bits
        table = self._table(record)
        if record.z.bits <= _TABLE_BITS:
            # Negative numbers count from the end of the table. The operators differ only in speed:
            # this one is fastest for few numbers; with the other, onnx's evaluator takes no long
            # table.
            if len(self._lead) == 1:
                index = graph.op("Unsqueeze", [
                    graph.cast(z, TensorProto.INT64), graph.integers(-1)])
                return graph.op("GatherND", [table[-1], index], output)
            flat = graph.op("Reshape", [graph.cast(z, TensorProto.INT32), graph.integers(-1)])
            found = graph.op("GatherElements", [table[-1], flat])
            return graph.op("Reshape", [found, self._shape(z, width)], output)
        place = graph.op("Mul", [z, graph.power(-step)])
        segment = graph.op("Floor", [place])
        index = graph.cast(segment, TensorProto.INT32)
        low, rise = (graph.op("Gather", [name, index]) for name in table)
        inside = graph.op("Sub", [place, segment])
        return graph.op("Add", [low, graph.round(graph.op("Mul", [rise, inside]))], output)

    def _shape(self, like: str, width: int) -> str:
        """The shape of vectors of this width, with the leading axes of the value ``like``."""
        graph, key = self._graph, (self._lead[0], width)
        if key not in self._shapes:
            lead = graph.op("Shape", [like], start=0, end=-1)
            self._shapes[key] = graph.concat([lead, graph.integers(width)], 0)
        return self._shapes[key]

    def _table(self, record: Sigmoid) -> list[str]:
        """The entry and the rise of each segment, and if z is narrow enough the sigmoid of every z:
        those from 0 on, then the negative ones. Made once."""
        if record.complement in self._tables:
            return self._tables[record.complement]
        graph, step = self._graph, record.step_bits
        if not self._tables:
            graph.cast(graph.store("sigmoid.table", self._sigmoid.astype(np.int32)),
                       TensorProto.DOUBLE, "sigmoid.value")
        segments = 1 << (record.z.bits - step)
        first = np.roll(np.arange(segments), segments // 2)
        ends = [first, first + 1] if step else [first]
        if record.complement:
            ends = [segments - each for each in ends]
        entries = [graph.op("Gather", ["sigmoid.value", graph.constant(each, np.int64)])
                   for each in ends]
        low = entries[0]
        rise = graph.op("Sub", [entries[1], low]) if step else low
        made = [low, rise]
        if record.z.bits <= _TABLE_BITS and step:
            column = graph.integers(1)
            inside = graph.constant(np.arange(1 << step) / (1 << step))
            risen = graph.round(graph.op("Mul", [graph.op("Unsqueeze", [rise, column]), inside]))
            whole = graph.op("Add", [graph.op("Unsqueeze", [low, column]), risen])
            made.append(graph.op("Reshape", [whole, graph.integers(-1)]))
        self._tables[record.complement] = made
        return made


def _alike(index: int, record: Record) -> object:
    """Key of projections that can be multiplied as one."""
    if isinstance(record, Project):
        return record.norm, record.combine_shift, record.output, record.saturates
    return index


def append_product(graph: GraphBuilder, q: str, weight: str, output: str = "") -> str:
    """Multiply 8-bit whole numbers q by codes int8 ``[columns, rows]`` of 0, 1, 2 for -1, 0, 1."""
    # Unsigned activations: the kernels for signed ones are not vectorised on x86.
    acts = graph.cast(graph.op("Add", [q, graph.constant(128.0)]), TensorProto.UINT8)
    dot = graph.op("MatMulInteger", [
        acts, weight, graph.constant(128, np.uint8), graph.constant(1, np.int8)])
    return graph.cast(dot, TensorProto.DOUBLE, output)
