"""``sterna demo``: the whole path on the bundled model, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.cli.terminal.console import Stages, out, print_json, say
from sterna.cli.terminal.options import JsonOption, ModelArgument, QuietOption

if TYPE_CHECKING:
    from sterna.cli.reports.report import DemoResult

__all__ = ["COMMANDS", "demo", "print_result"]


def demo(
    model: ModelArgument = "tiny",
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Folder for everything that is written.")] = Path("build/demo"),
    rows: Annotated[int | None, typer.Option(
        help="Rows of the array. Default: 8, of a network 4.")] = None,
    cols: Annotated[int | None, typer.Option(
        help="Columns of the array. Default: 64, of a network 16.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of text to write.")] = 300,
    quick: Annotated[bool, typer.Option(
        "--quick", help="Skip what needs a compiler: simulation and cell counts.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Take a model to ONNX and Verilog, and check each stage.

    Every stage is compared with the same integers, up to text that simulated Verilog writes, or
    recordings that a network reads. Takes two to three minutes, a network one; with --quick, where
    the ONNX graph writes the text, half a minute.

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
    from sterna.cli.reports.hardware_page import print_bars
    result.table(f"sterna demo: {result.model}").print()
    if result.text:
        out.print(result.prompt, end="", style="bold")
        out.print(result.text)
    if result.cycles is not None:
        out.print()
        print_bars(result.cycles.greedy)
    out.print(f"\nreport: {result.report}")


COMMANDS = (demo,)
