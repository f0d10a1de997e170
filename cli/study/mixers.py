"""``sterna mixers``: the cost and benefit of each mixer."""

from __future__ import annotations

import difflib
import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.terminal.console import Stages, out, print_json, say
from sterna.cli.terminal.options import JsonOption, QuietOption, check_folder, choose
from sterna.cli.terminal.tables import Table
from sterna.model.checks import check_whole
from sterna.model.config import WEIGHTS
from sterna.model.extras import install_command

if TYPE_CHECKING:
    from sterna.model.torch.study.rows import Row
    from sterna.model.torch.study.tasks import Task

__all__ = ["COMMANDS", "mixers"]

_TASKS = ("text", "recall", "digits")
_QUICK = 1 / 4
"""Fraction of the budgets."""


def mixers(
    mixer: Annotated[list[str] | None, typer.Option(
        metavar="PATTERN",
        help="A row of the table; give it again for more. The name of a mixer, a pattern such as "
             "'3*mlgru + window', FILE.py:CLASS, hybrid, transformer or encoder. Default: all.",
        )] = None,
    channel: Annotated[str | None, typer.Option(
        metavar="PATTERN", help="Channel mixer of the rows. Default: glu.")] = None,
    weights: Annotated[str | None, typer.Option(
        help="Weights of the rows: ternary or float. Default: ternary, of transformer and encoder "
             "float.")] = None,
    task: Annotated[list[str] | None, typer.Option(
        help="text, recall or digits; give it again for more. Default: text and recall, or "
             "digits for mixers that are not causal.")] = None,
    quick: Annotated[bool, typer.Option(
        "--quick", help="Four rows on text, a quarter of the budget, one seed, no sweep.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Seeds of each cell. Default: 3.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of all rows.")] = None,
    sweep: Annotated[bool | None, typer.Option(
        help="Try three learning rates or more for every row, or for none. Default: for mlgru, "
             "hybrid, transformer and encoder.")] = None,
    budget: Annotated[float | None, typer.Option(
        metavar="FACTOR", help="Multiply the default budgets of training by this. "
                               "Default: 1.")] = None,
    d: Annotated[int, typer.Option(help="Width of the models.")] = 64,
    window: Annotated[int | None, typer.Option(
        help="Bytes of a window of the task text. Default: 256.")] = None,
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text for the task text; its last tenth is held out. Default: the manual of "
             "this Python.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes, of one thread each.")] = 2,
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="Folder for cells, figures and page; existing cells are "
                               "reused.")] = Path("runs/mixers"),
    list_only: Annotated[bool, typer.Option(
        "--list", help="List all mixers with their options, or those of --mixer, and do nothing "
                       "else.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compare mixers: what each costs, and what it buys.

    Trains each mixer the same way, at equal tokens and at equal CPU seconds, on text and on recall
    of pairs, or on digits if it is not causal; times a step and counts what it costs; writes
    tables, figures and a page with drawings. After an interruption the same command continues.

    Example: sterna mixers --quick
    """
    if list_only:
        return _list(_rows(mixer, channel, weights), as_json)
    check_folder(output)
    if sweep and lr is not None:
        raise ValueError("--sweep finds learning rates, and --lr gives one: leave one out")
    if lr is not None and not 0 < lr < math.inf:
        raise ValueError(f"--lr must be a positive number, got {lr}")
    check_whole("--jobs", jobs, 1)
    check_whole("--seeds", 1 if seeds is None else seeds, 1, 1000)
    with Stages(quiet) as stage:
        stage("load torch", quick=True)
        from sterna.cli.study.run import run_study
        from sterna.model.torch.study.cells import Costs
        from sterna.model.torch.study.plan import Study, default_entries, entries_of
        stage("check the rows", quick=True)
        if budget is None:
            budget = _QUICK if quick else 1.0
        tasks = _tasks(task or (["text"] if quick and not mixer else None), budget, d, window, text)
        rows = _rows(mixer, channel, weights)
        entries = (entries_of(rows, tasks, asked=bool(task)) if rows
                   else default_entries(tasks, quick=quick))
        study = Study(entries, seeds or (1 if quick else 3),
                      _swept(entries, sweep, quick or lr is not None), lr, Costs(d=d))
        study.check()
    return run_study(study, output, jobs, quiet=quiet, as_json=as_json)


def _tasks(
    asked: list[str] | None, budget: float, d: int, window: int | None, text: Path | None,
) -> list[Task]:
    """The requested tasks, or all, of the given size."""
    from sterna.model.torch.study.tasks import DigitsTask, RecallTask, TextTask
    if not 0 < budget <= 1e6:
        raise ValueError(f"--budget must be above 0, up to a million, got {budget}")
    check_whole("--d", d, 1, 65536 // 3)      # channel mixers are 3 times as wide
    if window is not None:
        check_whole("--window", window, 1)
    names = list(dict.fromkeys(choose("--task", name, _TASKS) for name in asked or _TASKS))
    if not asked and find_spec("sklearn") is None:
        names.remove("digits")
        say(f"without digits, which mixers that are not causal are compared on: for them, "
            f"{install_command('compare')}")
    for name, value in (("--text", text), ("--window", window)):
        if value is not None and "text" not in names:
            raise ValueError(f"{name} is for the task text: leave it out, or ask for that task")
    made: dict[str, Task] = {
        "text": TextTask(d=d, window=256 if window is None else window,
                         text=None if text is None else str(text)),
        "recall": RecallTask(d=d), "digits": DigitsTask(d=d)}
    return [made[name].scaled(budget) for name in names]


def _rows(mixer: list[str] | None, channel: str | None, weights: str | None) -> list[Row]:
    """The requested rows."""
    from sterna.model.torch.network.registry import TOKEN_MIXERS
    from sterna.model.torch.study.rows import NAMED_ROWS, find_row
    if not mixer:
        for option, value in (("--channel", channel), ("--weights", weights)):
            if value is not None:
                raise ValueError(f"{option} is for rows of your own: give --mixer as well")
        return []
    if weights is not None:
        choose("--weights", weights, WEIGHTS)
    for name in mixer:      # names that are not in the registry of mixers
        known = (*NAMED_ROWS, *TOKEN_MIXERS.names())
        near = difflib.get_close_matches(name, known, n=1)
        if name not in known and near and near[0] in NAMED_ROWS:
            raise ValueError(f"no row is called {name!r}; did you mean {near[0]}?")
    return [find_row(name, channel, weights) for name in dict.fromkeys(mixer)]


def _swept(entries: tuple[Any, ...], sweep: bool | None, off: bool) -> tuple[str, ...]:
    """The rows whose learning rate is swept."""
    from sterna.model.torch.study.plan import SWEPT_ROWS
    if sweep is None:
        sweep_names = () if off else SWEPT_ROWS
    else:
        sweep_names = tuple(row.name for row, _ in entries) if sweep else ()
    return tuple(row.name for row, _ in entries if row.name in sweep_names)


def _list(rows: list[Row], as_json: bool) -> int:
    """List all mixers by name, or those of rows."""
    from sterna.model.torch.study.rows import list_mixers
    found = list_mixers(rows)
    if as_json:
        print_json(found)
        return 0
    for each in found:
        each |= {"causal": "yes" if each["causal"] else "no", "arXiv": " ".join(each["papers"]),
                 "options": _options(each["options"]), "mixers, channel, weights": each["does"]}
    for kind, title, columns in (
            ("token", "token mixers, for --mixer", ("name", "causal", "arXiv", "options")),
            ("channel", "channel mixers, for --channel", ("name", "arXiv", "options")),
            ("row", "rows with a name, for --mixer", ("name", "mixers, channel, weights"))):
        lines = [[each[column] for column in columns]
                        for each in found if each["kind"] == kind]
        if lines:
            Table(title, columns, lines).print()
            out.print()
    return 0


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}"
                     for name, value in options.items())


COMMANDS = (mixers,)
