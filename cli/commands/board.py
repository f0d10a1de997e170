"""``sterna build``: a bitstream of a model for a board; and the options that ``chat`` shares."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import out, print_json, say
from sterna.cli.terminal.options import JsonOption, ModelArgument, QuietOption, check_folder
from sterna.cli.terminal.tables import Table
from sterna.hw.board import BoardName
from sterna.model.files import write_atomically
from sterna.model.quantized import load_model

if TYPE_CHECKING:
    from sterna.hw.board.bitstream import Attempt
    from sterna.hw.board.boards import Board
    from sterna.hw.board.top import BoardDesign, BoardParams
    from sterna.hw.units.spec import Sizes
    from sterna.model.quantized import QuantizedModel

__all__ = ["COMMANDS", "BaudOption", "BoardCore", "ClockOption", "ColsOption", "QuantLanesOption",
           "RowsOption", "StyleOption", "board_params", "build"]

ClockOption = Annotated[float | None, typer.Option(
    help="Clock of the core in MHz. Default: that of the board.")]
BaudOption = Annotated[int, typer.Option(
    help="Bits per second of the serial line; 0 takes the board's default.")]
RowsOption = Annotated[int, typer.Option(help="Rows of the array; 0 takes the board's default.")]
ColsOption = Annotated[int, typer.Option(
    help="Columns of the array; 0 takes the board's default.")]
QuantLanesOption = Annotated[int, typer.Option(
    help="Elements quantised per cycle; 0 takes the board's default, or chooses if rows or columns "
         "are given.")]
StyleOption = Annotated[str, typer.Option(
    help="How the array is built: auto, or a style that the board supports.")]


@dataclass(frozen=True, slots=True)
class BoardCore:
    """The sizes asked for; 0 stands for the board's own."""

    rows: int
    cols: int
    quant_lanes: int
    style: str

    def design(
        self, model: QuantizedModel, params: BoardParams, begin: Callable[[str], None],
    ) -> BoardDesign:
        """The top module of a board with a core of these sizes.

        ``begin`` is told of the stage once it is known that the model may fit; a FitError says
        that it clearly does not.
        """
        from sterna.hw.board.top import board_design
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


def board_params(board: BoardName, clock: float | None, baud: int) -> BoardParams:
    """The parameters of a board."""
    from sterna.hw.board.boards import BOARDS
    from sterna.hw.board.top import BoardParams
    if clock is not None and not 0 < clock < math.inf:
        raise ValueError(f"--clock must be a positive number of MHz, got {clock:g}")
    hz = 0 if clock is None else round(clock * 1e6)
    return BoardParams(BOARDS[board], hz, baud)


def build(
    model: ModelArgument,
    board: Annotated[BoardName, typer.Option(help="Which board.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    clock: ClockOption = None,
    baud: BaudOption = 0,
    rows: RowsOption = 0,
    cols: ColsOption = 0,
    quant_lanes: QuantLanesOption = 0,
    style: StyleOption = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the placer, from 1.")] = 1,
    seeds: Annotated[int, typer.Option(
        help="Seeds to try, counting up from --seed, until one meets the clock.")] = 1,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Make a bitstream of a model for a board.

    Synthesises, places, routes and packs with tools from pip. Writes the bitstream, report.json
    and, in the folder source, the Verilog and the constraints. No bitstream has been tried on a
    physical board. Exits with 1 if the design does not fit or the clock is not met; report.json
    is written even then.

    Example: sterna build micro --board icebreaker -o build/icebreaker
    """
    from sterna.cli.reports.synth_page import synth_progress
    from sterna.hw.board.bitstream import TimingError, build_bitstream
    from sterna.hw.board.top import write_sources
    from sterna.hw.flow.fit import FitError
    if seed < 1 or seeds < 1:
        raise ValueError(f"--seed and --seeds must be at least 1, got {seed} and {seeds}")
    check_folder(output)
    loaded = load_model(model)
    params = board_params(board, clock, baud)
    core = BoardCore(rows, cols, quant_lanes, style)
    try:
        with synth_progress(quiet) as progress:
            design = core.design(loaded, params, lambda text: progress(text, None))
            write_sources(design, output / "source")
            made = build_bitstream(design, seeds=range(seed, seed + seeds), progress=progress)
    except (FitError, TimingError) as error:
        if error.report is None:
            raise
        # What minutes of work found is not lost.
        _show(design, error.report, {"bitstream": None, "problem": str(error)}, output, as_json)
        say(f"sterna: {error}")
        return 1
    path = write_atomically(output / made.name, made.data)
    _show(design, made, {
        "bitstream": made.name, "problem": None, "seed": made.seed,
        "fmax_mhz": made.fmax_mhz, "tokens_per_second": design.tokens_per_second,
    }, output, as_json)
    if not as_json:
        out.print(f"fmax {made.fmax_mhz:.1f} MHz (nextpnr, seed {made.seed}); "
                  f"{design.tokens_per_second:,.0f} tokens/s by the cycle model, at most "
                  f"{params.baud // 10:,} over the serial line")
        out.print(f"{path}: {len(made.data):,} bytes; not tried on a physical board")
    return 0


def _show(
    design: BoardDesign, tried: Attempt, outcome: dict[str, Any], output: Path, as_json: bool,
) -> None:
    """Write report.json, and print it or the table of what is used."""
    report = {
        **design.summary, **outcome,
        "used": {name.value: {"needed": needed, "available": available}
                 for name, (needed, available) in tried.used.items()},
        "attempts": tried.attempts, "passes": tried.passes, "tools": tried.tools,
    }
    write_atomically(output / "report.json", json.dumps(report, indent=2) + "\n")
    if as_json:
        print_json(report)
        return
    params = design.params
    Table(f"{params.board.description}, clock {params.clock_hz / 1e6:g} MHz",
          ("resource", "used", "available"),
          [(name.value, *counts) for name, counts in tried.used.items()]).print()


COMMANDS = (build,)
