"""How many steps the rows of each style take."""

from __future__ import annotations

from sterna.hw.units.mac.base.style import ArrayStyle

__all__ = ["CHAIN_COLUMNS", "FILL_ENTRIES", "binary_levels", "row_steps", "tree_steps"]

CHAIN_COLUMNS = 4
"""Columns that follow each other in a chain of style ``ecp5-chain``.

Longer chains take fewer cells (up to 3 percent) and more registers that delay operands: an
operand waits for those before it.
"""

FILL_ENTRIES = {ArrayStyle.ECP5_TABLE: 14, ArrayStyle.XC7_TABLE: 29}
"""Entries that are written to a table when activations are loaded; some may come twice."""


def binary_levels(operands: int) -> int:
    """Levels of a tree of two-input adders.

    >>> binary_levels(1), binary_levels(2), binary_levels(5)
    (0, 1, 3)
    """
    return (operands - 1).bit_length()


def row_steps(style: ArrayStyle, cols: int) -> int:
    """Return the steps from the operands of a beat to its accumulator.

    >>> [row_steps(style, 128) for style in ArrayStyle]
    [7, 9, 7, 5, 4]
    """
    match style:
        case ArrayStyle.ECP5_CHAIN:
            return min(cols, CHAIN_COLUMNS) + binary_levels(-(-cols // CHAIN_COLUMNS))
        case ArrayStyle.ECP5_TABLE:
            return 1 + binary_levels(-(-cols // 3))
        case ArrayStyle.XC7_PAIR:
            return 1 + tree_steps(-(-cols // 2), 1)
        case ArrayStyle.XC7_TABLE:
            return 1 + tree_steps(-(-cols // 3), 2)
    return max(1, binary_levels(cols))


def tree_steps(operands: int, left: int) -> int:
    """Return the levels that leave at most ``left`` of ``operands`` partial sums.

    >>> tree_steps(43, 2), tree_steps(43, 1), tree_steps(2, 2)
    (3, 4, 0)
    """
    levels = 0
    while operands > left:
        operands = -(-operands // 3)
        levels += 1
    return levels
