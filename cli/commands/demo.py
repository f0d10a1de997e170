"""``sterna demo``: the whole path on the bundled model, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.cli.terminal.console import Stages, out, print_json, print_table, say
from sterna.cli.terminal.options import JsonOption, ModelArgument, QuietOption

if TYPE_CHECKING:
    from sterna.cli.reports.results import DemoResult

__all__ = ["COMMANDS", "demo", "print_result"]


def demo(
    model: ModelArgument = "tiny",
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Folder for everything it makes.")] = Path("build/demo"),
    rows: Annotated[int, typer.Option(help="Rows of the array.")] = 8,
    cols: Annotated[int, typer.Option(help="Columns of the array.")] = 128,
    tokens: Annotated[int, typer.Option(help="Tokens of text to write.")] = 300,
    quick: Annotated[bool, typer.Option(
        "--quick", help="Leave out what needs a compiler: simulation, and counting cells.")
        ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Take a model to ONNX and Verilog, and check each stage.

    Every stage is compared with the same integers, up to text that simulated Verilog writes. It
    takes two minutes; with --quick, where the ONNX graph writes the text, half a minute.

    Example: sterna demo
    """
    from sterna.cli.commands.walkthrough import demo as run_demo
    with Stages(quiet) as stages:
        result = run_demo(model, output, rows=rows, cols=cols, tokens=tokens, quick=quick,
                          progress=stages)
    if as_json:
        print_json(result.as_dict())
    else:
        print_result(result)
    for stage in result.stages:
        if stage.first:
            say(f"MISMATCH in {stage.name}: {stage.first}")
    return 0 if result.passed else 1


def print_result(result: DemoResult) -> None:
    """Print the table, the text and where the cycles go."""
    from sterna.cli.reports.cycle_tables import print_bars
    print_table(
        f"sterna demo: {result.model}",
        ("stage", "checked", "values compared", "mismatches", "seconds"),
        [(stage.name, stage.checked, "" if stage.values is None else f"{stage.values:,}",
          stage.mismatches, f"{stage.seconds:.1f}") for stage in result.stages])
    out.print(result.prompt, end="", style="bold")
    out.print(result.text)
    if result.cycles is not None:
        out.print()
        print_bars(result.cycles)
    out.print(f"\nreport: {result.report}")


COMMANDS = (demo,)
