"""Boards: what surrounds the core on a real one. Their names are here, as they need no Amaranth."""

from __future__ import annotations

import enum

__all__ = ["BoardName"]


class BoardName(enum.StrEnum):
    """A board, as the command line calls it."""

    ULX3S_85F = "ulx3s-85f"
    """Radiona ULX3S with an ECP5 LFE5U-85F."""
    ICEBREAKER = "icebreaker"
    """1BitSquared iCEBreaker with an iCE40 UP5K."""
