"""The structures of a row of the array, and their numbers of steps."""

from __future__ import annotations

import enum

__all__ = ["CHAIN_COLUMNS", "ArrayStyle", "row_steps", "tree_steps"]


class ArrayStyle(enum.StrEnum):
    """How a row selects and adds; the results are identical."""

    GENERIC = "generic"
    """Portable: a mask and an exclusive or for each weight, then a tree of adders."""
    ECP5_CHAIN = "ecp5-chain"
    """Lattice ECP5: carry cells that select, negate and add in one."""
    XC7_PAIR = "xc7-pair"
    """Xilinx 7 series: two weights in each carry cell, then adders of three operands."""

CHAIN_COLUMNS = 4
"""Columns per chain of style ``ecp5-chain``.

Longer chains take fewer cells (up to 3 percent) and more registers to delay operands, as each
operand waits for its predecessors.
"""


def binary_levels(operands: int) -> int:
    """Levels of a tree of two-input adders.

    >>> binary_levels(1), binary_levels(2), binary_levels(5)
    (0, 1, 3)
    """
    return (operands - 1).bit_length()


def row_steps(style: ArrayStyle, cols: int) -> int:
    """Return the steps from the operands of a beat to its accumulator.

    >>> [row_steps(style, 128) for style in ArrayStyle]
    [7, 9, 5]
    """
    match style:
        case ArrayStyle.ECP5_CHAIN:
            return min(cols, CHAIN_COLUMNS) + binary_levels(-(-cols // CHAIN_COLUMNS))
        case ArrayStyle.XC7_PAIR:
            return 1 + tree_steps(-(-cols // 2))
    return max(1, binary_levels(cols))


def tree_steps(operands: int) -> int:
    """Levels of a tree of three-input adders.

    >>> tree_steps(43), tree_steps(2), tree_steps(1)
    (4, 1, 0)
    """
    levels = 0
    while operands > 1:
        operands = -(-operands // 3)
        levels += 1
    return levels
