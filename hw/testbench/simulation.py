"""How a simulation may fail."""

from __future__ import annotations

__all__ = ["SimulationError"]


class SimulationError(RuntimeError):
    """The simulation did not run to its end; the message holds the end of its log."""
