"""Making a comparison, and showing what it found."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.cli.study.core import core_costs
from sterna.cli.study.page import settings_text, write_study
from sterna.cli.study.tables import Found, findings, study_tables
from sterna.cli.terminal.console import out, print_json, print_table, progress_bar, say
from sterna.cli.terminal.interrupt import INTERRUPTED

if TYPE_CHECKING:
    from sterna.model.study.cells import Cell
    from sterna.model.study.plan import Study

__all__ = ["run_study"]


def run_study(study: Study, output: Path, jobs: int, *, quiet: bool, as_json: bool) -> int:
    """Make the cells that are not there, write the files, print; return the exit code.

    After Ctrl-C what is done so far is written and printed.
    """
    from sterna.model.study.summary import summarize
    cells = output / "cells"
    cells.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    code = 0
    try:
        while not failed and any(
                cell.result(cells) is None for cell in study.sweep_cells(cells)):
            failed += _make("learning rates", study.sweep_cells(cells), cells, jobs, quiet)
        failed += _make("cells", study.cells(cells), cells, jobs, quiet)
    except KeyboardInterrupt:
        code = INTERRUPTED
    found = summarize(study, cells)
    found["core"] = {row.name: core_costs(config) for row, config in study.configs()
                     if config.has_integer_form}
    _show(found, write_study(output, found), as_json)
    for line in failed:
        say(line)
    if code == INTERRUPTED:
        say(f"what is done stays in {output}: the same command goes on, {found['missing']:,} "
            f"cells are left")
    return code or int(bool(failed))


def _make(label: str, cells: list[Cell], folder: Path, jobs: int, quiet: bool) -> list[str]:
    """Make cells with progress; return what went wrong."""
    from sterna.model.study.workers import make_cells
    failed: list[str] = []
    total = len({cell.path(folder) for cell in cells})
    done = sum(cell.result(folder) is not None
               for cell in {each.path(folder): each for each in cells}.values())
    before, started = done, time.monotonic()
    if done == total:
        return failed
    display, move = progress_bar(f"{label}: {total:,}, of which {done:,} are there", quiet)

    def note(cell: Cell, result: dict[str, Any] | None, error: str) -> None:
        nonlocal done
        if result is None:
            failed.append(f"{cell.title}: {error}")
            return
        done += 1
        left = (time.monotonic() - started) / (done - before) * (total - done) / 60
        say(f"{done:,}/{total:,}, {left:.0f} min left: {cell.summary(result)}", quiet)
        move(done, total)

    with display:
        move(done, total)
        make_cells(cells, folder, jobs, note)
    return failed


def _show(found: Found, written: list[Path], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for line in settings_text(found):
        out.print(line)
    for table in study_tables(found).values():
        out.print()
        print_table(table.title, table.columns, table.rows)
    out.print()
    for line in findings(found):
        out.print(line)
    for path in written:
        out.print(f"{path}: {path.stat().st_size:,} bytes")
