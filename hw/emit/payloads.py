"""Positions of payload fields, and conversion between words and fields.

Independent of Amaranth, so that a bench loads fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sterna.hw.parts.bits import elements_of, from_ints, to_bits, to_ints

__all__ = ["FieldBits", "Fields", "UnitPorts", "pack_words", "read_field"]


@dataclass(frozen=True, slots=True)
class FieldBits:
    """Position of a field in a payload: its first and last bit, and its array of elements."""

    name: str  # empty if the payload is one array
    low: int
    high: int
    dims: tuple[int, ...]  # lengths of the array, outermost first; empty for a scalar
    element_bits: int
    signed: bool

    @property
    def elements(self) -> int:
        """Total number of elements."""
        return (self.high - self.low + 1) // self.element_bits


Fields = Mapping[str, FieldBits]
"""Fields of a payload by name; the only field of an array or a number is ``""``."""


@dataclass(frozen=True, slots=True)
class UnitPorts:
    """Streams of a unit with the fields of their payloads, and its plain input ports."""

    inputs: list[str]
    outputs: list[str]
    levels: list[str]  # plain input ports, without clock and reset
    fields: dict[str, Fields]

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> UnitPorts:
        """Read the ports from the manifest of an emitted folder."""
        directions = {port["name"]: port["direction"] for port in manifest["ports"]}
        fields: dict[str, Fields] = {
            stream: {each["name"]: FieldBits(**{**each, "dims": tuple(each["dims"])})
                     for each in members}
            for stream, members in manifest["payloads"].items()}
        of_streams = {f"{stream}__{part}" for stream in fields
                      for part in ("payload", "valid", "ready")}
        return cls(
            [name for name in fields if directions[f"{name}__payload"] == "input"],
            [name for name in fields if directions[f"{name}__payload"] == "output"],
            [name for name, direction in directions.items()
             if direction == "input" and name not in {*of_streams, "clk", "rst"}],
            fields)


def pack_words(fields: Fields, values: Mapping[str, np.ndarray]) -> list[int]:
    """Return payloads of a stream.

    ``values`` has integers ``[words, elements]`` for each field, or ``[words]`` for a single
    element.
    """
    if set(values) != set(fields):
        raise ValueError(f"the payload has the fields {list(fields)}, got {list(values)}")
    count = len(next(iter(values.values())))
    bits = np.zeros((count, 1 + max(field.high for field in fields.values())), dtype=np.uint8)
    for name, field in fields.items():
        elements = np.asarray(values[name], dtype=np.int64).reshape(count, -1)
        if elements.shape[1] != field.elements:
            raise ValueError(
                f"field {name!r} has {field.elements} elements, got {elements.shape[1]}")
        low, high = ((-(1 << field.element_bits - 1), (1 << field.element_bits - 1) - 1)
                     if field.signed else (0, (1 << field.element_bits) - 1))
        if count and (elements.min() < low or elements.max() > high):
            raise ValueError(
                f"field {name!r} takes {low} to {high}, "
                f"got {elements.min()} to {elements.max()}")
        bits[:, field.low:field.high + 1] = to_bits(elements, field.element_bits)
    return to_ints(bits)


def read_field(words: Sequence[int], field: FieldBits) -> np.ndarray:
    """Return a field of payloads; int64 ``[words, elements]``."""
    bits = from_ints(words, field.low, field.elements * field.element_bits)
    return elements_of(bits, field.element_bits, signed=field.signed)
