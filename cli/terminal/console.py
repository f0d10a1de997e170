"""What commands print with: tables for people, JSON for programs, progress on a terminal."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

__all__ = ["out", "print_json", "print_table", "progress_bar", "say", "status", "write"]

_REPEAT_S = 10.0
"""Seconds after which, where there is no terminal, a status says that it is still at it."""

_NUMBER = re.compile(r"[\d,.%]*")

# Names, prompts and texts are a user's: nothing in them is markup.
_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
out = Console(soft_wrap=True, **_PLAIN)
_notes = Console(stderr=True, soft_wrap=True, **_PLAIN)


def say(text: str, quiet: bool = False) -> None:
    """Print a line of progress to standard error, where it never mixes with results."""
    if not quiet:
        _notes.print(text)


def write(text: str) -> None:
    """Write text to standard output as it is, at once; nowhere if that is closed."""
    if sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()


def print_json(data: Any) -> None:
    """Print one JSON document to standard output."""
    write(json.dumps(data, indent=2) + "\n")


def print_table(
    title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]],
) -> None:
    """Print a table; columns whose cells are all numbers are aligned to the right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        numeric = all(
            isinstance(row[index], int | float) or _NUMBER.fullmatch(str(row[index]))
            for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    # A pipe has no width: do not fold there what a program may want to read.
    console = out if out.is_terminal else Console(width=160, **_PLAIN)
    console.print(table)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value)


def progress_bar(
    label: str, quiet: bool = False,
) -> tuple[Progress, Callable[[int, int], None]]:
    """Return a progress display to enter, and the function that moves it.

    Where there is no terminal the label is said once, when it first moves.
    """
    display = Progress(
        TextColumn(label), BarColumn(), TaskProgressColumn(), console=_notes,
        transient=True, disable=quiet or not _notes.is_terminal)
    task = display.add_task(label)

    said = quiet or _notes.is_terminal

    def move(done: int, total: int) -> None:
        nonlocal said
        if not said:
            say(label)
            said = True
        display.update(task, completed=done, total=total)

    return display, move


@contextmanager
def status(label: str = "", quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show what is being done and for how long, while the block runs.

    On a terminal this is a line with a running clock, gone at the end. Elsewhere the label is
    said when it begins, and again every ten seconds with how many have passed. Without a
    label nothing is shown until there is one.

    Yields
    ------
    callable
        Takes another label, for what is done next; the clock starts again.
    """
    if quiet:
        yield lambda label: None
    elif _notes.is_terminal:
        with Progress(
                SpinnerColumn(), TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(), console=_notes, transient=True) as display:
            task = display.add_task(label, total=None, visible=bool(label))
            yield lambda label: display.reset(task, description=label, visible=bool(label))
    else:
        with _spoken_status(label) as show:
            yield show


@contextmanager
def _spoken_status(label: str) -> Iterator[Callable[[str], None]]:
    changed = threading.Event()
    done = False
    now, since = "", time.monotonic()

    def show(label: str) -> None:
        nonlocal now, since
        now, since = label, time.monotonic()
        if label:
            say(label)
        changed.set()

    def repeat() -> None:
        while not done:
            if changed.wait(_REPEAT_S):
                changed.clear()
            elif now:
                say(f"{now}: {time.monotonic() - since:.0f} s")

    show(label)
    speaker = threading.Thread(target=repeat, daemon=True)
    speaker.start()
    try:
        yield show
    finally:
        done = True
        changed.set()
        speaker.join()
