"""``sterna build``: a bitstream of a model for a board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.commands import board_core
from sterna.cli.reports.synth_progress import synth_progress
from sterna.cli.terminal.console import out, print_json, print_table, say
from sterna.cli.terminal.options import JsonOption, ModelArgument, QuietOption, check_folder
from sterna.hw.board.names import BoardName
from sterna.model.files import write_atomically
from sterna.model.quantized import load_model

if TYPE_CHECKING:
    from sterna.hw.board.bitstream import Attempt, Bitstream
    from sterna.hw.board.emit_board import BoardDesign

__all__ = ["COMMANDS", "build"]


def build(
    model: ModelArgument,
    board: Annotated[BoardName, typer.Option(help="Which board.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    clock: board_core.ClockOption = None,
    baud: board_core.BaudOption = 0,
    tokens: Annotated[int, typer.Option(
        help="Tokens to write after a line, until a user says otherwise.")] = 64,
    temperature: Annotated[float | None, typer.Option(
        help="Temperature until a user says otherwise; 0 takes the most likely token. "
             "Default: 0.7, or 0 on a board without sampling.")] = None,
    rows: board_core.RowsOption = 0,
    cols: board_core.ColsOption = 0,
    quant_lanes: board_core.QuantLanesOption = 0,
    style: board_core.StyleOption = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the placer, from 1.")] = 1,
    seeds: Annotated[int, typer.Option(
        help="How many seeds to try, counted up from --seed, until one meets the clock.")] = 1,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Make a bitstream of a model for a board.

    Synthesises, places, routes and packs with tools from pip. Writes the bitstream,
    report.json and, in the folder source, the Verilog and the constraints. No bitstream has
    been tried on a physical board. Exits with 1 if the design does not fit or the clock is not
    met; report.json is written then, too.

    Example: sterna build micro --board icebreaker -o build/icebreaker
    """
    from sterna.hw.board.bitstream import TimingError, build_bitstream
    from sterna.hw.board.emit_board import write_sources
    from sterna.hw.flow.fit import FitError
    if seed < 1 or seeds < 1:
        raise ValueError(f"--seed and --seeds must be at least 1, got {seed} and {seeds}")
    check_folder(output)
    loaded = load_model(model)
    warmth = board_core.board_temperature(board, temperature)
    params = board_core.board_params(board, clock, baud, tokens, warmth)
    core = board_core.BoardCore(rows, cols, quant_lanes, style)
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
        _print(design, made, path)
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
    print_table(
        f"{params.board.description}, clock {params.clock_hz / 1e6:g} MHz",
        ("resource", "used", "available"),
        [(name.value, *counts) for name, counts in tried.used.items()])


def _print(design: BoardDesign, made: Bitstream, path: Path) -> None:
    params = design.params
    out.print(f"fmax {made.fmax_mhz:.1f} MHz (nextpnr, seed {made.seed}); "
              f"{design.tokens_per_second:,.0f} tokens/s by the cycle model, at most "
              f"{params.baud // 10:,} over the serial line")
    out.print(f"{path}: {len(made.data):,} bytes; not tried on a physical board")


COMMANDS = (build,)
