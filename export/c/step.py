"""The step of a model as calls of C functions, a call for each record.

``sources/arithmetic.c`` has a function for each kind of record. Values take 16 bits if every one
fits, else 32, and reuse the buffers of values that are no longer needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from sterna.model.profile import FixedPoint
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.bounds import tensor_bounds
from sterna.model.quantized.records import (
    Add,
    Embedding,
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
)

__all__ = ["Step", "pack_groups"]

_UNLIMITED = 1 - (1 << 31), (1 << 31) - 1


class Step:
    """The C of one token or frame of ``model``.

    Attributes
    ----------
    calls
        The calls, in order; ``result`` is the array that holds the logits or results.
    buffers
        Arrays of the scratch structure: type and length, by name.
    numbers
        Local variables: their types, by name.
    weights
        All stored numbers as bytes, ``stored_bytes`` (2 or 4) each, but packed matrices.
    value_bits, wide_bits
        Of a value, and of a product of two.
    """

    def __init__(self, model: QuantizedModel) -> None:
        self.model = model
        self.calls: list[str] = []
        self.buffers: dict[str, tuple[str, int]] = {}
        self.numbers: dict[str, str] = {}
        self.weights = bytearray()
        stored = [model.sigmoid, *([] if model.table is None else [model.table]),
                  *(each.bias for each in model.projections.values()),
                  *(vector for name, vector in model.vectors.items() if not _is_frac(name))]
        self.stored_bytes = 2 if all(
            -1 << 15 <= each.min() <= each.max() < 1 << 15 for each in stored) else 4
        bounds = tensor_bounds(
            model.records, model.projections, model.entry.reach, model.vectors)
        groups = list(_groups(model.records))
        self.value_bits = 16 if all(
            _limit(group[-1], bounds) < 1 << 15 for group in groups) else 32
        self.wide_bits = 32 if all(
            bounds[f"{record.name}{end}"] < 1 << 31 for record in model.records
            for kind, end in _PRODUCTS.items() if isinstance(record, kind)) else 64
        self._places: dict[str, str] = {}
        self._free: dict[tuple[str, int], list[str]] = defaultdict(list)
        self._offsets: dict[str, int] = {}
        self._states = {record.name: f"state->h[{i}]" for i, record in enumerate(model.states)}
        last = {name: i for i, group in enumerate(groups) for each in group for name in each.reads}
        for i, group in enumerate(groups):
            self._append(group, {name for name, at in last.items() if at == i})
        self.result = self._places[model.records[-1].result]

    def _append(self, group: Sequence[Record], done: set[str]) -> None:
        """Append the call of a record, or of a projection and the sum that it goes to; values
        ``done`` are not read again."""
        record, at = group[0], self._places.get
        match record:
            case Embedding(name, _, width):
                self._call("embed", self._value(name, width), self._store("embedding"), "token",
                           width)
            case Input(name, _, channels, _, output):
                self._call("scale_frame", self._value(name, channels + 1), "frame",
                           self._store(f"{name}.offset", f"{name}.shift"), channels,
                           *_limits(output), 1 << output.frac)
            case Narrow(name, x, width, shift, output):
                self._call("narrow", *self._mapped(record, done), width, shift, *_limits(output))
            case Scale(name, x, width, shift, output):
                y, x = self._mapped(record, done)
                self._call("scale", y, x, self._store(name), width, shift, *_limits(output))
            case Norm(name, x, width, k, t, scale_frac):
                q, v = self._activations(record)
                self.calls.append(f"{v} = norm({q}, {at(x)}, {width}, {k}, {t}, {scale_frac});")
            case Quantize(name, x, root, width, k, shift, scale_frac):
                q, v = self._activations(record)
                self.calls.append(
                    f"{v} = quantize({q}, {at(x)}, {width}, {k}, {at(f'{root}.n')}, {shift}, "
                    f"{scale_frac});")
            case Energy(name, x, width, mantissa, shift):
                number = self._number(name, "int64_t")
                self.calls.append(
                    f"{number} = shifted(sum_of_squares({at(x)}, {width}) * {mantissa}, {shift});")
            case Root(name, x, width, t, epsilon, extra):
                number = self._number(f"{name}.n", "int64_t")
                more = f"{epsilon}" + (f" + {at(extra)}" if extra else "")
                self.calls.append(f"{number} = root({at(x)}, {width}, {t}, {more});")
            case Project(name, norm, rows, columns):
                added = group[1] if len(group) > 1 else None
                own, output = self.model.projections[name], record.output
                limits = _limits(output, record.saturates)
                base, result = "0", f"{name}.z"
                if isinstance(added, Add):
                    base, result = at(next(x for x in added.reads if x != result)), added.name
                    limits = _limits(added.output, added.saturates)
                    self._release(done)
                self._call(
                    "project", self._value(result, rows), base, self._store(name),
                    at(f"{norm}.q"), at(f"{norm}.v"), rows, columns, own.k, record.combine_shift,
                    own.shift, *limits)
            case Sigmoid(_, _, width, z, _, step_bits, complement):
                y, x = self._mapped(record, done)
                self._call("sigmoid", y, x, self._store("sigmoid"), width, z.min, step_bits,
                           int(complement))
            case Recur(name, gate, candidate, width, frac):
                self._places[name] = self._states[name]
                self._call("recur", self._states[name], at(gate), at(candidate), width, frac,
                           int(record.keeps))
            case Multiply(_, _, _, width, shift, output):
                self._call("multiply", *self._mapped(record, done), width, shift, *_limits(output))
            case Add(_, _, _, width, output, saturates):
                self._call("add", *self._mapped(record, done), width, *_limits(output, saturates))
        self._release(done)

    def _call(self, function: str, *arguments: object) -> None:
        self.calls.append(f"{function}({', '.join(map(str, arguments))});")

    # Where values are ---------------------------------------------------------------------

    def _mapped(self, record: Record, done: set[str]) -> list[str]:
        """The places of the result and the inputs of an element-wise record, which may be one."""
        inputs = [self._places[name] for name in record.reads]
        if len(inputs) == 1 and isinstance(record, Multiply | Add):
            inputs *= 2
        self._release(done)
        return [self._value(record.name, record.width), *inputs]

    def _value(self, name: str, width: int) -> str:
        return self._buffer(name, "value", width)

    def _activations(self, record: Norm | Quantize) -> tuple[str, str]:
        return (self._buffer(f"{record.name}.q", "int8_t", -(-record.width // 4) * 4),
                self._number(f"{record.name}.v", "int32_t"))

    def _number(self, name: str, kind: str) -> str:
        place = self._places[name] = f"n{len(self.numbers)}"
        self.numbers[place] = kind
        return place

    def _buffer(self, name: str, kind: str, width: int) -> str:
        free = self._free[kind, width]
        if not free:
            own = f"{'q' if kind == 'int8_t' else 'x'}{len(self.buffers)}"
            self.buffers[own] = kind, width
            free.append(own)
        own = free.pop()
        self._places[name] = f"s->{own}"
        return self._places[name]

    def _release(self, names: set[str]) -> None:
        """Free the buffers of these values; those of a state or a number are none."""
        for name in names:
            own = self._places.get(name, "").removeprefix("s->")
            if own in self.buffers:
                self._free[self.buffers[own]].append(own)
        names.clear()

    def _store(self, *names: str) -> str:
        """The stored numbers of a record as an expression."""
        if names[0] not in self._offsets:
            self._offsets[names[0]] = len(self.weights)
            if names[0] in self.model.projections:
                own = self.model.projections[names[0]]
                self.weights += pack_groups(own.weight).tobytes() + self._bytes(own.bias)
            else:
                for name in names:
                    found = {"sigmoid": self.model.sigmoid, "embedding": self.model.table}.get(
                        name)
                    self.weights += self._bytes(
                        self.model.vectors[name] if found is None else found)
        return f"weights + {self._offsets[names[0]]}"

    def _bytes(self, numbers: np.ndarray) -> bytes:
        return np.asarray(numbers, f"<i{self.stored_bytes}").tobytes()


_PRODUCTS = {Norm: ".q", Quantize: ".q", Project: ".z", Sigmoid: "", Recur: "", Multiply: ""}
"""Records that compute products in ``wide``, and the end of the name of their bound."""


def _limit(record: Record, bounds: dict[str, int]) -> int:
    """The largest value of a record that is stored as one."""
    match record:
        case Norm() | Quantize() | Energy() | Root():
            return 0
        case Sigmoid():
            return (1 << record.frac) - 1
        case Add() | Project() if not record.saturates:
            return bounds[record.result]
    return record.output.max


def _limits(output: FixedPoint, saturates: bool = True) -> tuple[int, int]:
    """The least and the largest value that a call may give."""
    return (output.min, output.max) if saturates else _UNLIMITED


def _is_frac(name: str) -> bool:
    """Of vectors, those that only the units of a frame need."""
    return name.endswith(".frac")


def _groups(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Each record alone, but a projection that does not saturate with the sum after it."""
    taken = False
    for record, following in pairwise([*records, None]):
        if taken:
            taken = False
            continue
        assert record is not None
        taken = (isinstance(record, Project) and not record.saturates
                 and isinstance(following, Add) and record.result in following.reads)
        yield [record, following] if taken and following is not None else [record]


def pack_groups(weight: np.ndarray) -> np.ndarray:
    """Pack a ternary matrix ``[rows, columns]`` as uint8 ``[rows, ceil(columns / 4)]``.

    Byte j of a row has the codes, weight + 1, of the columns j, j + bytes, j + 2 bytes and j + 3
    bytes, the first in the lowest bits; columns beyond the last are zeros.
    """
    rows, columns = weight.shape
    size = -(-columns // 4)
    codes = np.ones((rows, 4 * size), np.uint8)
    codes[:, :columns] = weight + 1
    parts = codes.reshape(rows, 4, size)
    return np.bitwise_or.reduce(parts << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=1)
