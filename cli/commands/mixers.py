"""``sterna mixers``: what each mixer costs, and what it buys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sterna.cli.terminal.console import Stages, out, print_json, say
from sterna.cli.terminal.options import JsonOption, QuietOption, check_folder

__all__ = ["COMMANDS", "mixers"]


def mixers(
    mixer: Annotated[list[str] | None, typer.Option(
        help="A row of the table, several times for several: the name of a mixer, a pattern such "
             "as '3*mlgru + window', module:Class or file.py:Class of your own, hybrid or "
             "transformer. Default: all.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each cell.")] = 3,
    jobs: Annotated[int, typer.Option(help="Processes, of one thread each.")] = 2,
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Folder for the cells and the page; what is there is not done "
                               "again.")] = Path("runs/mixers"),
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compare mixers: quality, speed and cost, each trained the same way.

    Example: sterna mixers --quick
    """
    check_folder(output)
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.model.study.plan import Study
        from sterna.model.study.rows import find_row
        from sterna.model.study.summary import summarize
        from sterna.model.study.tasks.text import TextTask
        from sterna.model.study.workers import make_cells
    output.mkdir(parents=True, exist_ok=True)
    study = Study(tuple((find_row(name), (TextTask(),)) for name in mixer or ("mlgru",)), seeds)
    study.check()
    make_cells(study.cells(output), output, jobs, lambda cell, result, error: say(
        cell.summary(result) if result else f"{cell.title}: {error}", quiet))
    found = summarize(study, output)
    if as_json:
        print_json(found)
    else:
        out.print(str(found))
    return 0


COMMANDS = (mixers,)
