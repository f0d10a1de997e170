"""The boards, each in a file of this folder whose name is the board's: a new one needs no other.

A file has ``BOARD``. The names are known without Amaranth.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sterna.hw.board.board import Board

__all__ = ["BOARD_NAMES", "board_named"]

BOARD_NAMES = tuple(each.name.replace("_", "-") for each in pkgutil.iter_modules(__path__))
"""Every board, as the command line calls it."""


def board_named(name: str) -> Board:
    """Return a board; ValueError with a list of all if there is none of that name."""
    if name not in BOARD_NAMES:
        raise ValueError(f"board must be one of {', '.join(BOARD_NAMES)}, got {name!r}")
    board: Board = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").BOARD
    return board
