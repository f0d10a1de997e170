"""What can drive a simulated core."""

from __future__ import annotations

import enum

__all__ = ["Engine"]


class Engine(enum.StrEnum):
    """What drives the simulated core."""

    COCOTB = "cocotb"
    """cocotb: every intermediate tensor is compared; for some hundred tokens."""
    CPP = "cpp"
    """A clock loop in C++: logits, tokens and the state at the end; for thousands."""
