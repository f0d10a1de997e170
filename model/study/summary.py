"""The figures of a comparison as plain data: means and deviations over the seeds."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from sterna.model.study.fit import BUDGETS
from sterna.model.study.machine import describe_machine
from sterna.model.study.plan import Study
from sterna.model.study.tasks.row import Row
from sterna.model.study.tasks.task import Task

__all__ = ["summarize"]


def summarize(study: Study, folder: Path) -> dict[str, Any]:
    """What is known so far.

    Returns
    -------
    ``rows``: for each its mixers, ``tasks`` (by name, then by budget: the learning rate, and
    ``mean``, ``deviation`` and ``values`` of every figure, of tokens and of CPU seconds; the
    deviation is that of a sample, None for one seed) and ``costs`` by length. ``tasks``:
    settings, budgets and facts. ``sweep``: figures by learning rate (None where the loss was not
    finite), the ``best``, and whether that lies between others (``inside``). ``missing``: cells
    that are not there. ``machine``: where this was called.
    """
    tasks = {task.name: task for _, each in study.entries for task in each}
    cells = {cell.path(folder): cell for cell in (*study.sweep_cells(folder), *study.cells(folder))}
    missing = sum(cell.result(folder) is None for cell in cells.values())
    return {
        "rows": [_row(study, row, each, folder) for row, each in study.entries],
        "tasks": {name: {**task.settings(), "figure": task.figure, "facts": task.facts()}
                  for name, task in tasks.items()},
        "sweep": [
            _sweep(study, row, task, folder)
            for row, each in study.entries if row.name in study.swept for task in each],
        "seeds": study.seeds, "missing": missing,
        # Each cell has one thread, whatever this process has.
        "machine": {name: value for name, value in describe_machine().items()
                    if name != "threads"},
    }


def _sweep(study: Study, row: Row, task: Task, folder: Path) -> dict[str, Any]:
    """The learning rates that were tried for a row."""
    by_lr = {lr: value for lr, value in study.sweep(row, task, folder).items()
             if value is not None}
    best = study.chosen_lr(row, task, folder)
    return {"row": row.name, "task": task.name, "figure": task.figure,
            "by_lr": {f"{lr:g}": None if math.isnan(value) else value
                      for lr, value in by_lr.items()},
            "best": best, "inside": best is not None and min(by_lr) < best < max(by_lr)}


def _row(study: Study, row: Row, tasks: tuple[Task, ...], folder: Path) -> dict[str, Any]:
    costs = study.cost_cell(row, tasks)
    config = row.config(d=costs.costs.d, layers=costs.costs.layers, vocab=256, length=256)
    found: dict[str, Any] = {
        "name": row.name, "mixer": row.mixer, "channel": row.channel, "weights": row.weights,
        "causal": row.is_causal(costs.costs.d), "integer_form": config.has_integer_form,
        "costs": {length: {**each, "state_bytes": 4 * each["state_words"]}
                  for length, each in (costs.result(folder) or {}).items()},
        "tasks": {}}
    for task in tasks:
        found["tasks"][task.name] = {
            budget: _figures(study, row, task, budget, folder) for budget in BUDGETS}
    found["below_unigram"] = _below_unigram(found["tasks"].get("text"), tasks)
    return found


def _below_unigram(text: dict[str, Any] | None, tasks: tuple[Task, ...]) -> bool | None:
    """Whether every model of text that was trained does better than to know the frequencies of
    the bytes; None if there is none."""
    values = [value for budget in (text or {}).values()
              for value in budget.get("bpb", {}).get("values", ())]
    if not values:
        return None
    return max(values) < next(task for task in tasks if task.name == "text").facts()["unigram"]


def _figures(
    study: Study, row: Row, task: Task, budget: str, folder: Path,
) -> dict[str, Any]:
    """Means over the seeds that are there."""
    cells = [study.cell(row, task, budget, seed, folder) for seed in range(study.seeds)]
    results = [each for each in (cell.result(folder) for cell in cells) if each is not None]
    done = [each for each in results if "figures" in each]
    figures: dict[str, Any] = {
        "lr": cells[0].recipe.lr, "seeds": len(done), "diverged": len(results) - len(done)}
    if done:
        for name in done[0]["figures"]:
            figures[name] = _spread([each["figures"][name] for each in done])
        figures["parameters"] = done[0]["parameters"]
        figures["train_tokens"] = _spread([each["tokens"] for each in done])
        figures["train_seconds"] = _spread([each["seconds"] for each in done])
    return figures


def _spread(values: list[float]) -> dict[str, Any]:
    return {"mean": statistics.fmean(values),
            "deviation": statistics.stdev(values) if len(values) > 1 else None,
            "values": values}
