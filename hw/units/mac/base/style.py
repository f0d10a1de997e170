"""The structures that a row of the array can be built with."""

from __future__ import annotations

import enum

__all__ = ["ArrayStyle"]


class ArrayStyle(enum.StrEnum):
    """How a row selects and adds; what it computes is always the same."""

    GENERIC = "generic"
    """Portable: a mask and an exclusive or for each weight, then a tree of adders."""
    ECP5_CHAIN = "ecp5-chain"
    """Lattice ECP5: carry cells that select, negate and add in one."""
    ECP5_TABLE = "ecp5-table"
    """Lattice ECP5: LUT RAM holds the sums of every three activations; carry cells add."""
    XC7_PAIR = "xc7-pair"
    """Xilinx 7 series: two weights in each carry cell, then adders of three operands."""
    XC7_TABLE = "xc7-table"
    """Xilinx 7 series: LUT RAM holds the sums of every three activations."""

    @property
    def has_tables(self) -> bool:
        """Whether activations are loaded into tables before beats can use them."""
        return self in (ArrayStyle.ECP5_TABLE, ArrayStyle.XC7_TABLE)
