"""Showing how far synthesis, place and route are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sterna.cli.terminal.console import Stages

if TYPE_CHECKING:
    from sterna.hw.flow.cached_tools import Progress
    from sterna.hw.flow.pnr_progress import RouterStep

__all__ = ["synth_progress"]


@contextmanager
def synth_progress(quiet: bool) -> Iterator[Progress]:
    """Show each tool, and each phase of place and route, as a stage.

    Yields what :func:`~sterna.hw.flow.synth.synth` is to tell its progress.
    """
    with Stages(quiet) as stages:
        shown = ""

        def tell(text: str, step: RouterStep | None) -> None:
            nonlocal shown
            stage = text if step is None else f"{text}, {step.phase}"
            if stage != shown:
                stages(stage)
                shown = stage
            if step is not None:
                left = "" if step.left is None else f", {step.left:,} left"
                stages.detail(f"iteration {step.iteration:,}{left}")

        yield tell
