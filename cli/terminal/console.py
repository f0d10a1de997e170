"""Output of commands: lines, JSON for programs, progress on a terminal."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
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

__all__ = ["Stages", "out", "print_files", "print_json", "printer", "progress_bar", "say", "write"]

_WIDTH = 80
_MOMENT_S = 1.0
"""Seconds below which the time of a quick stage is not shown."""
_REPEAT_S = 10.0
"""Interval in seconds of a running stage's messages without a terminal."""


def printer(**options: Any) -> Console:
    """A console without markup, as names, prompts and texts are a user's."""
    console = Console(highlight=False, markup=False, emoji=False, **options)
    if not console.width:       # COLUMNS or the terminal reports 0
        console.width = _WIDTH
    return console


out = printer(soft_wrap=True)
_notes = printer(stderr=True, soft_wrap=True)


def say(text: str, quiet: bool = False) -> None:
    """Print a line of progress to standard error, separate from results."""
    if not quiet:
        _notes.print(text)


def write(text: str) -> None:
    """Write text to standard output unchanged and unbuffered, unless it is closed."""
    if sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()


def print_json(data: Any) -> None:
    """Print one JSON document to standard output."""
    write(json.dumps(data, indent=2) + "\n")


def print_files(paths: Iterable[Path]) -> None:
    """Print each file that was written, with its size."""
    for path in paths:
        out.print(f"{path}: {path.stat().st_size:,} bytes")


@contextmanager
def progress_bar(label: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar; yields its update function of the done and the total amount.

    Without a terminal, the label is printed once, at the first update.
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

    with display:
        yield move


class Stages:
    """Shows the running stage of a command and its time.

    On a terminal a clock runs beside the stage; when it ends, a line with its seconds stays.
    Elsewhere a line is printed at its beginning, and every ten seconds. Use it in a ``with``
    block, and call it with the name of each stage; :meth:`end` ends a stage before the next begins.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._display: Progress | None = None
        self._label = self._detail = ""
        self._quick = False
        self._started = 0.0
        self._ended = threading.Event()
        self._speaker: threading.Thread | None = None

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop(tell=error is None)

    def __call__(self, label: str, quick: bool = False) -> None:
        """Begin a stage and end the previous one.

        A ``quick`` stage usually ends in a moment, and may be refused: no line of it stays on a
        terminal if it took less than a second, and elsewhere none is printed at its beginning.
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
        self._ended.clear()
        self._speaker = threading.Thread(target=self._say_seconds, daemon=True)
        self._speaker.start()

    def detail(self, text: str) -> None:
        """Show the progress of the stage beside its name or its seconds."""
        self._detail = f" ({text})"
        if self._display is not None:
            self._display.update(self._display.task_ids[0], description=f"{self._label}: {text}")

    def end(self) -> None:
        """End the stage: remove its clock and print its time."""
        self._stop(tell=True)

    def _say_seconds(self) -> None:
        while not self._ended.wait(_REPEAT_S):
            say(f"{self._label}{self._detail}: {time.monotonic() - self._started:.0f} s")

    def _stop(self, tell: bool) -> None:
        if self._speaker is not None:
            self._ended.set()
            self._speaker.join()
            self._speaker = None
        if self._display is not None:
            self._display.stop()
            self._display = None
            seconds = time.monotonic() - self._started
            if tell and not (self._quick and seconds < _MOMENT_S):
                say(f"{self._label} ({seconds:.1f} s)")
