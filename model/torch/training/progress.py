"""Progress display of a training run: a bar on a terminal, plain lines otherwise.

Written to standard error, so that it never mixes with results.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = [
    "BarReporter", "LineReporter", "TrainProgress", "TrainReporter", "default_reporter",
]


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """Progress of a training run after some steps and seconds."""

    fraction: float             # of the budget
    step: int
    seconds: float
    train_bpb: float            # running mean of the training loss, in bits per byte
    heldout_bpb: float | None   # the last measure
    tokens_per_second: float    # of this session
    skipped: int = 0            # non-finite steps, which changed nothing

    def __str__(self) -> str:
        held = "" if self.heldout_bpb is None else f"  held-out {self.heldout_bpb:.3f}"
        return (f"step {self.step:6d}  loss {self.train_bpb * 0.6931472:.3f}  "
                f"{self.train_bpb:.3f} bpb{held}  {self.tokens_per_second:,.0f} tokens/s"
                f"{f'  {self.skipped} steps skipped' * bool(self.skipped)}")


class TrainReporter:
    """Receives the progress of :func:`sterna.train`; shows nothing. Extend it to show a run
    elsewhere."""

    def update(self, progress: TrainProgress) -> None:
        """Note the progress; called after every step, so it must return quickly."""

    def measured(self, done: int, total: int) -> None:
        """Note how many held-out predictions are done."""

    def message(self, text: str) -> None:
        """Show one line of text."""

    def close(self) -> None:
        """Finish the display; called once, also after an error."""


class LineReporter(TrainReporter):
    """One plain line every ``interval_seconds``, for logs and pipes."""

    def __init__(self, interval_seconds: float = 10.0) -> None:
        self._interval_seconds = interval_seconds
        self._next = time.monotonic() + min(1.0, interval_seconds)

    def update(self, progress: TrainProgress) -> None:
        """Print the progress if the interval has passed."""
        left = ""
        if progress.fraction:       # 0 while a timed run measures its speed
            seconds = progress.seconds * (1.0 / progress.fraction - 1.0)
            left = f"  {timedelta(seconds=round(seconds))} left"
        self._say(f"{progress.fraction:4.0%}  {progress}{left}")

    def measured(self, done: int, total: int) -> None:
        """Print the progress of the evaluation if the interval has passed."""
        self._say(f"{done / total:.0%} of the held-out text is measured")

    def message(self, text: str) -> None:
        """Print one line to standard error, unless it is closed."""
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)

    def _say(self, line: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval_seconds
            self.message(line)


class BarReporter(TrainReporter):
    """A progress bar with loss, bits per byte and speed."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("training"), BarColumn(), TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"), TimeRemainingColumn(),
            console=console, refresh_per_second=2)
        self._task = self._progress.add_task("training", total=1.0, figures="")
        self._progress.start()

    def update(self, progress: TrainProgress) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=progress.fraction, figures=str(progress))

    def measured(self, done: int, total: int) -> None:
        """Show the progress of the evaluation beside the bar."""
        self._progress.update(self._task, figures=f"measuring held-out text: {done / total:.0%}")

    def message(self, text: str) -> None:
        """Print one line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


def default_reporter(quiet: bool = False) -> TrainReporter:
    """Return a bar on a terminal, plain lines otherwise, nothing if ``quiet``."""
    if quiet:
        return TrainReporter()
    console = Console(stderr=True)
    return BarReporter(console) if console.is_terminal else LineReporter()
