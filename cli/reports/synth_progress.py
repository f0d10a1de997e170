"""Showing how far synthesis, place and route are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from sterna.cli.terminal.console import say
from sterna.hw.flow.cached_tools import Progress
from sterna.hw.flow.pnr_progress import Phase, Step

__all__ = ["synth_progress"]


@contextmanager
def synth_progress(quiet: bool) -> Iterator[Progress]:
    """A display that moves on a terminal; a line for each part elsewhere.

    Yields what :func:`~sterna.hw.flow.synth.synth` is to tell its progress.
    """
    notes = Console(stderr=True, highlight=False, markup=False, emoji=False)
    start = time.monotonic()
    if quiet:
        yield lambda text, step: None
        return

    if not notes.is_terminal:
        seen: set[tuple[str, Phase | None]] = set()

        def tell(text: str, step: Step | None) -> None:
            phase = None if step is None else step.phase
            if (text, phase) not in seen:
                seen.add((text, phase))
                say(f"{time.monotonic() - start:6.1f} s  {text}" + (f": {phase}" if phase else ""))

        yield tell
        return

    with notes.status("") as status:
        def show(text: str, step: Step | None) -> None:
            status.update(f"{text}{_words(step)}  ({time.monotonic() - start:.0f} s)")
            if step is None:
                notes.print(f"{time.monotonic() - start:6.1f} s  {text}")

        yield show


def _words(step: Step | None) -> str:
    if step is None:
        return ""
    left = "" if step.left is None else f", {step.left:,} left"
    return f": {step.phase}, iteration {step.iteration:,}{left}"
