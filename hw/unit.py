"""The units that can be emitted as Verilog."""

from __future__ import annotations

import enum

__all__ = ["Unit"]


class Unit(enum.StrEnum):
    """A unit that can be emitted and simulated on its own."""

    MAC = "mac"
    """The ternary multiply-accumulate array."""
    MLGRU = "mlgru"
    """The recurrence with its state memory and sigmoid tables."""
