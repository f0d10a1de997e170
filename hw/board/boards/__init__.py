"""The boards, one file each, named after the board; a new board needs no change elsewhere.

Each file defines ``BOARD``. Listing the names does not need Amaranth.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sterna.hw.board.board import Board

__all__ = ["BOARD_NAMES", "board_named"]

BOARD_NAMES = tuple(each.name.replace("_", "-") for each in pkgutil.iter_modules(__path__))
"""Every board, by its command-line name."""


def board_named(name: str) -> Board:
    """Return a board by name; ValueError with a list of all boards if unknown."""
    if name not in BOARD_NAMES:
        raise ValueError(f"board must be one of {', '.join(BOARD_NAMES)}, got {name!r}")
    board: Board = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").BOARD
    return board
