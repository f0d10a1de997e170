"""What ``sterna build`` and ``sterna chat`` share: a board's options, and its core."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.hw.board.names import BoardName

if TYPE_CHECKING:
    from sterna.hw.board.boards import Board
    from sterna.hw.board.emit_board import BoardDesign
    from sterna.hw.board.top import BoardParams
    from sterna.hw.units.spec import Sizes
    from sterna.model.quantized import QuantizedModel

__all__ = ["BaudOption", "BoardCore", "ClockOption", "ColsOption", "QuantLanesOption",
           "RowsOption", "StyleOption", "board_params", "board_temperature"]

_USUAL_TEMPERATURE = 0.7

ClockOption = Annotated[float | None, typer.Option(
    help="Clock of the core in MHz. Default: the board's usual clock.")]
BaudOption = Annotated[int, typer.Option(
    help="Bits per second of the serial line; 0 takes the board's usual speed.")]
RowsOption = Annotated[int, typer.Option(
    help="Rows of the array; 0 takes the board's usual number.")]
ColsOption = Annotated[int, typer.Option(
    help="Columns of the array; 0 takes the board's usual number.")]
QuantLanesOption = Annotated[int, typer.Option(
    help="Elements quantised per cycle; 0 takes the board's usual number, or chooses one if "
         "rows or columns are given.")]
StyleOption = Annotated[str, typer.Option(
    help="What the array is built of: auto, or a style that suits the board.")]


@dataclass(frozen=True, slots=True)
class BoardCore:
    """The sizes asked for; 0 stands for the board's usual ones."""

    rows: int
    cols: int
    quant_lanes: int
    style: str

    def design(
        self, model: QuantizedModel, params: BoardParams, begin: Callable[[str], None],
    ) -> BoardDesign:
        """The top module of a board with a core of these sizes.

        ``begin`` is told of the stage once it is known that the model may fit.

        Raises
        ------
        FitError
            If the model clearly has more weights than the board has room for.
        ValueError
            If the core cannot be built.
        """
        from sterna.hw.board.emit_board import board_design
        from sterna.hw.core.core_product import CORE
        from sterna.hw.flow.fit import check_memories
        board = params.board
        sizes = self._sizes(board)
        check_memories(CORE, CORE.params_for(model, sizes), board.target, advice=[
            f"of the bundled models {board.fitting} fits the {board.name}"])
        begin(f"emit the Verilog of {board.name}")
        return board_design(model, params, sizes)

    def _sizes(self, board: Board) -> Sizes:
        from sterna.hw.flow.target import style_for
        given = {"rows": self.rows, "cols": self.cols, "quant_lanes": self.quant_lanes}
        usual = dict(board.sizes)
        if self.rows or self.cols:
            del usual["quant_lanes"]      # it would be that of another array
        return {**usual, **{name: value for name, value in given.items() if value},
                "style": style_for(board.target, self.style)}


def board_temperature(board: BoardName, wanted: float | None) -> float:
    """The temperature asked for, or the usual one of a board."""
    from sterna.hw.board.boards import BOARDS
    sampled = BOARDS[board].sampled
    if wanted and not sampled:
        raise ValueError(
            f"--temperature must be 0 on {board}, whose core has no sampling, got {wanted:g}")
    return (_USUAL_TEMPERATURE if sampled else 0.0) if wanted is None else wanted


def board_params(
    board: BoardName, clock: float | None, baud: int, tokens: int = 64,
    temperature: float = 0.0,
) -> BoardParams:
    """The parameters of a board, the line's defaults included."""
    from sterna.hw.board.boards import BOARDS
    from sterna.hw.board.line_settings import LineDefaults
    from sterna.hw.board.top import BoardParams
    from sterna.model.quantized.sampling import Sampler
    if clock is not None and not 0 < clock < math.inf:
        raise ValueError(f"--clock must be a positive number of MHz, got {clock:g}")
    hz = 0 if clock is None else round(clock * 1e6)
    defaults = LineDefaults(tokens, Sampler(temperature=temperature).beta)
    return BoardParams(BOARDS[board], hz, baud, defaults)
