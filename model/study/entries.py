"""Which rows take part in which tasks."""

from __future__ import annotations

from collections.abc import Sequence

from sterna.model.network.registry import TOKEN_MIXERS
from sterna.model.study.tasks.row import Row, find_row
from sterna.model.study.tasks.task import Task

__all__ = ["QUICK", "SWEPT_ROWS", "default_entries", "entries_of"]

SWEPT_ROWS = ("mlgru", "hybrid", "transformer", "encoder")
"""Rows whose learning rate is swept: those that the others are held against."""
QUICK = ("mlgru", "hybrid", "transformer", "attention", "window", "linear", "fnet")
"""Rows of the short comparison."""

_FIRST = ("mlgru", "hybrid", "transformer", "attention")
_LEFT_OUT = ("ring",)       # in one process it is attention
_BESIDE = ("mlgru", "attention(causal=false)", "encoder")
"""Rows that do the tasks of mixers that are not causal as well, to read those by."""


def default_entries(
    tasks: Sequence[Task], *, quick: bool = False,
) -> tuple[tuple[Row, tuple[Task, ...]], ...]:
    """Every mixer that is registered, with the tasks that it is made for, and the named rows."""
    names = [*_FIRST, *(name for name in TOKEN_MIXERS.names()
                        if name not in (*_FIRST, *_LEFT_OUT)), *_BESIDE]
    found = []
    for name in dict.fromkeys(names):
        row = find_row(name)
        causal = row.is_causal(tasks[0].d)
        mine = tuple(task for task in tasks if task.causal == causal
                     or (not task.causal and name in _BESIDE))
        if mine and (not quick or name in (*QUICK, *_BESIDE)):
            found.append((row, mine))
    return tuple(found)


def entries_of(
    rows: Sequence[Row], tasks: Sequence[Task], *, asked: bool,
) -> tuple[tuple[Row, tuple[Task, ...]], ...]:
    """The given rows with all tasks if those were ``asked`` for, else with those made for them."""
    return tuple(
        (row, tuple(task for task in tasks if asked or task.causal == row.is_causal(task.d)))
        for row in rows)
