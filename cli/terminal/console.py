"""What commands print with: tables for people, JSON for programs, progress on a terminal."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
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

__all__ = ["Stages", "out", "print_json", "print_table", "progress_bar", "say", "write"]

_MOMENT_S = 1.0
"""Seconds below which nobody is told how long a quick stage took."""
_REPEAT_S = 10.0
"""Seconds after which, where there is no terminal, a stage says that it is still at work."""

_LONGEST_NAME = 18
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
    title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]], *,
    width: int | None = None,
) -> None:
    """Print a table; columns whose cells are all numbers are aligned to the right.

    It is ``width`` characters wide, or as wide as the terminal, or as COLUMNS says, or 80;
    programs have ``--json``.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD,
                  show_edge=False, pad_edge=False, collapse_padding=True)
    for index, column in enumerate(columns):
        numeric = all(
            isinstance(row[index], int | float) or _NUMBER.fullmatch(str(row[index]))
            for row in rows)
        # Numbers and names are kept whole; words may go to the next line.
        whole = numeric or all(
            len(str(row[index])) <= _LONGEST_NAME and " " not in str(row[index]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold",
                         no_wrap=whole and " " not in column)
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    Console(width=width, **_PLAIN).print(table)


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
        SpinnerColumn(), TextColumn(label), BarColumn(), TaskProgressColumn(),
        TimeElapsedColumn(), console=_notes, transient=True,
        disable=quiet or not _notes.is_terminal)
    task = display.add_task(label)

    said = quiet or _notes.is_terminal

    def move(done: int, total: int) -> None:
        nonlocal said
        if not said:
            say(label)
            said = True
        display.update(task, completed=done, total=total)

    return display, move


class Stages:
    """Shows which stage of a command is at work, and for how long.

    On a terminal a clock runs beside the stage; when it ends, a line with its seconds stays.
    Elsewhere a line is said as it begins, and one every ten seconds. Use it in a ``with``
    block, and call it with the name of each stage; :meth:`end` ends one before the next begins.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._display: Progress | None = None
        self._label = self._detail = ""
        self._quick = False
        self._started = 0.0
        self._speaker: _Repeater | None = None

    def __enter__(self) -> Stages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(tell=error is None)

    def __call__(self, label: str, quick: bool = False) -> None:
        """Begin a stage; the one before it has ended.

        A ``quick`` one is over in a moment as a rule, and may be refused: no line of it stays on
        a terminal if it took less than a second, and none is said elsewhere as it begins.
        """
        self.end()
        self._label, self._detail = label, ""
        self._quick, self._started = quick, time.monotonic()
        if self._quiet:
            return
        if _notes.is_terminal:
            self._display = Progress(
                SpinnerColumn(), TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(), console=_notes, transient=True)
            self._display.add_task(label, total=None)
            self._display.start()
            return
        if not quick:
            say(label)
        self._speaker = _Repeater(self._say_seconds)

    def detail(self, text: str) -> None:
        """Say how far the stage is: beside its name, or where there is no terminal with its
        seconds."""
        self._detail = f" ({text})"
        if self._display is not None:
            self._display.update(self._display.task_ids[0], description=f"{self._label}: {text}")

    def end(self) -> None:
        """End the stage: its clock is gone, its time is told."""
        self._stop(tell=True)

    def _say_seconds(self) -> None:
        say(f"{self._label}{self._detail}: {time.monotonic() - self._started:.0f} s")

    def _stop(self, tell: bool) -> None:
        if self._speaker is not None:
            self._speaker.stop()
            self._speaker = None
        if self._display is not None:
            self._display.stop()
            self._display = None
            seconds = time.monotonic() - self._started
            if tell and not (self._quick and seconds < _MOMENT_S):
                say(f"{self._label} ({seconds:.1f} s)")


class _Repeater:
    """Calls a function every so often, from a thread, until it is stopped."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call, self._stopped = call, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_REPEAT_S):
            self._call()
