"""Where a field of a payload lies; apart from what needs Amaranth, for a bench to load it fast."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FieldBits"]


@dataclass(frozen=True, slots=True)
class FieldBits:
    """Where a field of a payload lies: its first and last bit, and its array of elements.

    ``name`` is empty if the payload is one array. ``dims`` are the lengths of the array,
    outermost first; empty for a scalar.
    """

    name: str
    low: int
    high: int
    dims: tuple[int, ...]
    element_bits: int
    signed: bool
