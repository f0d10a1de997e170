"""The step of a model as calls of C functions, a call for each record.

``sources/arithmetic.c`` has a function for each kind of record. Values take 16 bits if every one
fits, else 32, and reuse the buffers of values that are no longer needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

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



class Step:
    """The C of one token or frame of ``model``.

    Attributes
    ----------
    calls
        The calls, in order; ``result`` is the array that holds the logits or results.
    places
        Arrays of the scratch structure, and local variables, whose length is 0: type and length, by
        name.
    weights
        All stored numbers as bytes, ``stored_bytes`` (2 or 4) each, but packed matrices.
    value_bits, wide_bits
        Of a value, and of a product of two.
    """

    def __init__(self, model: QuantizedModel) -> None:
        self.model = model
        self.calls: list[str] = []
        self.places: dict[str, tuple[str, int]] = {}
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
        self.wide_bits = 32 if self.value_bits == 16 and all(
            self._is_narrow(record, bounds) for record in model.records) else 64
        self._places: dict[str, str] = {}
        self._free: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._offsets: dict[str, int] = {}
        # What all layers read comes first: so the layers' own weights are equally far apart.
        self._store("sigmoid")
        if model.table is not None:
            self._store("embedding")
        self._states = {record.name: i for i, record in enumerate(model.states)}
        last = {name: i for i, group in enumerate(groups) for each in group for name in each.reads}
        for i, group in enumerate(groups):
            self._append(group, {name for name, at in last.items() if at == i})
        self.result = self._places[model.records[-1].result]

    def _is_narrow(self, record: Record, bounds: Mapping[str, int]) -> bool:
        """Whether every product of a record fits in 32 bits, signed where it may be negative."""
        if isinstance(record, Project):
            own = self.model.projections[record.name]
            product = (own.k << record.scale_frac) + (1 << record.combine_shift >> 1)
            largest = int(np.abs(own.weight, dtype=np.int64).sum(axis=1).max())
            total = 127 * largest * (product >> record.combine_shift) + (1 << own.shift)
            return product < 1 << 32 and total < 1 << 31
        return all(bounds[f"{record.name}{end}"] < 1 << 31
                   for end in _PRODUCTS.get(type(record), ()))

    def _append(self, group: Sequence[Record], done: set[str]) -> None:
        """Append the call of a record, or of a projection and the sum that it goes to; values
        ``done`` are not read again."""
        record, at, call = group[0], self._places.get, self._call
        match record:
            case Embedding(name, _, width):
                call("embed", self._value(name, width), self._store("embedding"), "token", width)
            case Input(name, _, channels, _, output):
                call("scale_frame", self._value(name, channels + 1), "frame",
                     self._store(f"{name}.offset", f"{name}.shift"), channels, output.bits,
                     1 << output.frac)
            case Narrow(_, _, width, shift, output):
                call("narrow", *self._mapped(record, done), width, shift, output.bits)
            case Scale(name, _, width, shift, output):
                y, x = self._mapped(record, done)
                call("scale", y, x, self._store(name), width, shift, output.bits)
            case Norm(_, x, width, k, t, scale_frac):
                q, v = self._activations(record)
                call(f"{v} = norm", q, at(x), width, k, t, scale_frac)
            case Quantize(_, x, root, width, k, shift, scale_frac):
                q, v = self._activations(record)
                call(f"{v} = quantize", q, at(x), width, k, at(f"{root}.n"), shift, scale_frac)
            case Energy(name, x, width, mantissa, shift):
                number = self._allocate(name, "int64_t")
                call(f"{number} = shifted", f"sum_of_squares({at(x)}, {width}) * {mantissa}", shift)
            case Root(name, x, width, t, epsilon, extra):
                number = self._allocate(f"{name}.n", "int64_t")
                call(f"{number} = root", at(x), width, t,
                     f"{epsilon} + {at(extra)}" if extra else epsilon)
            case Project(name, norm, rows, columns):
                added = group[-1]
                base, result = "0", record.result
                activations, scale = at(f"{norm}.q"), at(f"{norm}.v")
                if isinstance(added, Add):
                    other = next(x for x in added.reads if x != result)
                    base, result = self._places[other], added.name
                    self._release(done)
                call("project", self._value(result, rows), base, self._store(name),
                     activations, scale, rows, columns, record.combine_shift, _bits(added))
            case Sigmoid(_, _, width, z, _, step_bits, complement):
                y, x = self._mapped(record, done)
                call("sigmoid", y, x, self._store("sigmoid"), width, z.bits, step_bits,
                     int(complement))
            case Recur(name, gate, candidate, width, frac):
                self._places[name] = f"state->h[{self._states[name]}]"
                call("recur", self._places[name], at(gate), at(candidate), width, frac,
                     int(record.keeps))
            case Multiply(_, _, _, width, shift, output):
                call("multiply", *self._mapped(record, done), width, shift, output.bits)
            case Add(_, _, _, width):
                call("add", *self._mapped(record, done), width, _bits(record))
            case _:
                raise ValueError(
                    f"{record.name}: the form c has no {type(record).__name__.lower()}")
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
        return self._allocate(name, "value", width)

    def _activations(self, record: Norm | Quantize) -> tuple[str, str]:
        return (self._allocate(f"{record.name}.q", "int8_t", -(-record.width // 4) * 4),
                self._allocate(f"{record.name}.v", "int32_t"))

    def _allocate(self, name: str, kind: str, length: int = 0) -> str:
        """A place for a value: the first free array of the scratch, or local variable."""
        free = self._free[kind, length]
        index = heappop(free) if free else len(self.places)
        own = f"{_LETTERS[kind]}{index}"
        self.places[own] = kind, length
        self._places[name] = f"s->{own}" if length else own
        return self._places[name]

    def _release(self, names: set[str]) -> None:
        """Free the places of these values; a state has none of its own."""
        for name in names:
            own = self._places.get(name, "").removeprefix("s->")
            if own in self.places:
                heappush(self._free[self.places[own]], int(own[1:]))
        names.clear()

    def _store(self, *names: str) -> str:
        """The stored numbers of a record as an expression."""
        if names[0] not in self._offsets:
            self._offsets[names[0]] = len(self.weights)
            for name in names:
                self.weights += self._stored(name)
        return f"weights + {self._offsets[names[0]]}"

    def _stored(self, name: str) -> bytes:
        model = self.model
        if name in model.projections:
            own = model.projections[name]
            return (own.k.to_bytes(3, "little") + bytes([own.shift])
                    + pack_groups(own.weight).tobytes() + self._bytes(own.bias))
        if name == "embedding":
            return self._bytes(model.embedding)
        return self._bytes(model.sigmoid if name == "sigmoid" else model.vectors[name])

    def _bytes(self, numbers: np.ndarray) -> bytes:
        return np.asarray(numbers, f"<i{self.stored_bytes}").tobytes()


_PRODUCTS: dict[type[Record], tuple[str, ...]] = {
    Norm: (".q", ".s", ".v"), Quantize: (".q",), Root: (".s",),
    **dict.fromkeys((Input, Narrow, Scale, Energy, Sigmoid, Recur, Multiply), ("",))}
"""Ends of the names of the bounds of products, by the kind of record."""
_LETTERS = {"value": "x", "int8_t": "q", "int32_t": "n", "int64_t": "r"}


def _limit(record: Record, bounds: Mapping[str, int]) -> int:
    """The largest value of a record that is stored as one."""
    match record:
        case Norm() | Quantize() | Energy() | Root():
            return 0
        case Sigmoid():
            return (1 << record.frac) - 1
        case Add() | Project() if not record.saturates:
            return bounds[record.result]
    return record.output.max


def _bits(record: Record) -> int:
    """To how many bits the result of a projection or a sum is limited."""
    assert isinstance(record, Project | Add)
    return record.output.bits if record.saturates else 32


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
