"""Making the cells of a comparison, in one process or several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, TypeAlias

from sterna.model.processes import deaf_to_ctrl_c, end_with_parent
from sterna.model.study.cells import Cell
from sterna.model.study.fit import StoppedError

__all__ = ["Note", "make_cells"]

Note: TypeAlias = Callable[[Cell, dict[str, Any] | None, str], None]
"""Told of every cell that ends: its result, or None and what went wrong."""

_stop: Event | None = None


def make_cells(cells: Sequence[Cell], folder: Path, jobs: int, note: Note) -> None:
    """Make the cells that are not in ``folder``, ``jobs`` at a time.

    A cell that fails does not stop the others. Ctrl-C stops all of them within a step, and what
    is done stays: the next call goes on from there.

    Raises
    ------
    OSError
        If a result cannot be written, or a process was ended from outside.
    """
    left = [cell for cell in {each.path(folder): each for each in cells}.values()
            if cell.result(folder) is None]
    if jobs == 1 or len(left) < 2:
        for cell in left:
            note(cell, *_attempt(cell, folder))
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(
        min(jobs, len(left)), mp_context=context, initializer=_begin, initargs=(stop,))
    try:
        with deaf_to_ctrl_c():     # what a process imports at first would show where it was
            running: dict[Future[Any], Cell] = {
                pool.submit(_attempt, cell, folder): cell for cell in left}
        while running:
            for each in wait(running, return_when=FIRST_COMPLETED).done:
                note(running.pop(each), *each.result())
    except BrokenProcessPool as error:
        raise OSError("a process that made cells was ended from outside, perhaps for lack of "
                      "memory; what is done stays, and the same command with fewer --jobs goes "
                      "on") from error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _begin(stop: Event) -> None:
    """Prepare a worker."""
    global _stop
    _stop = stop
    end_with_parent()


def _attempt(cell: Cell, folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The result of a cell, or what went wrong: a user's own mixer may raise anything."""
    try:
        return cell.run(folder, lambda: _stop is not None and _stop.is_set()), ""
    except StoppedError:
        return None, "stopped"
    except OSError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        return None, f"{type(error).__name__}: {said}"
