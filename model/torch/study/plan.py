"""A comparison of rows on tasks: its cells, their best order, and its figures."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sterna.model.config import ModelConfig
from sterna.model.pattern import parse_pattern
from sterna.model.torch.network.registry import TOKEN_MIXERS
from sterna.model.torch.study.cells import BUDGETS, Cell, CostCell, Costs, TrainingCell
from sterna.model.torch.study.contract import ContractError, check_choice
from sterna.model.torch.study.rows import Row, find_row
from sterna.model.torch.study.tasks import Task, recipe_for, swept_rates

__all__ = ["MOST_RATES", "QUICK", "SWEPT_ROWS", "Study", "default_entries",
           "describe_machine", "entries_of", "summarize"]


SWEPT_ROWS = ("mlgru", "hybrid", "transformer", "encoder")
"""Rows with a swept learning rate: those that the others are compared with."""
QUICK = ("mlgru", "hybrid", "transformer", "attention")
"""Rows of the short comparison, the first of the full one."""

_LEFT_OUT = ("ring",)       # in one process it equals attention
_BESIDE = ("mlgru", "attention(causal=false)", "encoder")
"""Rows that also do the tasks of non-causal mixers, for comparison."""


def default_entries(
    tasks: Sequence[Task], *, quick: bool = False,
) -> tuple[tuple[Row, tuple[Task, ...]], ...]:
    """Every registered mixer with the tasks that it is made for, and the named rows."""
    names = [*QUICK, *(name for name in TOKEN_MIXERS.names()
                       if name not in (*QUICK, *_LEFT_OUT)), *_BESIDE]
    found = []
    for name in QUICK if quick else dict.fromkeys(names):
        row = find_row(name)
        causal = row.is_causal(tasks[0].d)
        possible = tuple(task for task in tasks if task.causal == causal
                     or (not task.causal and name in _BESIDE))
        if possible:
            found.append((row, possible))
    return tuple(found)


def entries_of(
    rows: Sequence[Row], tasks: Sequence[Task], *, asked: bool,
) -> tuple[tuple[Row, tuple[Task, ...]], ...]:
    """The given rows with all tasks if these were ``asked`` for, else with those suited to them."""
    return tuple(
        (row, tuple(task for task in tasks if asked or task.causal == row.is_causal(task.d)))
        for row in rows)


MOST_RATES = 7
"""Most learning rates of a sweep, wherever its best is."""


@dataclass(frozen=True)
class Study:
    """Rows compared on tasks: each row with the tasks that it takes part in.

    The learning rate of the rows named in ``swept`` is chosen per task, by the first seed at equal
    tokens; all others use that of their recipe, or ``lr``. A sweep tries rates around the recipe's,
    and further ones while the best is the lowest or the highest.
    """

    entries: tuple[tuple[Row, tuple[Task, ...]], ...]
    seeds: int = 3
    swept: tuple[str, ...] = ()
    lr: float | None = None
    costs: Costs = field(default_factory=Costs)

    def check(self) -> None:
        """Make every model, check every mixer and read every text once, to fail early: raises
        ``ValueError`` if a mixer is unknown, not made for a task, or breaks its contract."""
        for task in dict.fromkeys(task for _, tasks in self.entries for task in tasks):
            task.sample(0, 0)
        for row, tasks in self.entries:
            for task in tasks:
                task.model(row, 0)
        for choice in dict.fromkeys(choice for row, _ in self.entries
                                    for choice in parse_pattern(row.mixer)):
            try:
                check_choice(choice, self.costs.d)
            except ContractError:
                raise
            except Exception:   # its cells report a failing mixer, without stopping others
                continue

    def configs(self) -> list[tuple[Row, ModelConfig]]:
        """The shape at which the costs of each row are measured."""
        return [(row, row.config(d=self.costs.d, layers=self.costs.layers, vocab=256,
                                 length=max(self.costs.lengths))) for row, _ in self.entries]

    def sweep_cells(self, folder: Path) -> list[Cell]:
        """The cells that determine the others; more results in ``folder`` may require further
        ones."""
        return [self._training(row, task, "tokens", 0, lr)
                for row, tasks in self.entries if row.name in self.swept
                for task in tasks for lr in self.sweep(row, task, folder)]

    def cells(self, folder: Path) -> list[Cell]:
        """All other cells, once those of the sweep are in ``folder``: seed by seed, so that an
        interrupted comparison has every row."""
        found: list[Cell] = []
        for seed in range(self.seeds):
            found += [self.cell(row, task, budget, seed, folder)
                      for row, tasks in self.entries for task in tasks for budget in BUDGETS]
            if seed == 0:
                found += [self.cost_cell(row, tasks) for row, tasks in self.entries]
        return found

    def cell(self, row: Row, task: Task, budget: str, seed: int, folder: Path) -> TrainingCell:
        """The cell of a row in the table."""
        return self._training(row, task, budget, seed, self.chosen_lr(row, task, folder))

    def cost_cell(self, row: Row, tasks: tuple[Task, ...]) -> CostCell:
        """The costs of a row, at the length of its tasks if it is not causal."""
        costs = self.costs
        if not row.is_causal(costs.d):
            costs = replace(costs, lengths=tuple(sorted({task.length for task in tasks})))
        return CostCell(row, costs)

    def chosen_lr(self, row: Row, task: Task, folder: Path) -> float | None:
        """The best learning rate of the sweep, or None for that of the recipe."""
        if row.name not in self.swept:
            return self.lr
        return _best(self.sweep(row, task, folder), task, row)

    def sweep(self, row: Row, task: Task, folder: Path) -> dict[float, float | None]:
        """The figure of the task by learning rate, rising: NaN where the loss was not finite, None
        where a cell is missing."""
        rates = list(swept_rates(row.weights, task))
        while True:
            found = {lr: self._figure(row, task, lr, folder) for lr in rates}
            best = _best(found, task, row)
            if None in found.values() or len(rates) == MOST_RATES or best not in (
                    rates[0], rates[-1]):
                return found
            if best == rates[0]:
                rates.insert(0, rates[0] / 2)
            else:
                rates.append(2 * rates[-1])

    def _figure(self, row: Row, task: Task, lr: float, folder: Path) -> float | None:
        result = self._training(row, task, "tokens", 0, lr).result(folder)
        if result is None:
            return None
        return float(result["figures"][task.figure]) if "figures" in result else math.nan

    def _training(
        self, row: Row, task: Task, budget: str, seed: int, lr: float | None,
    ) -> TrainingCell:
        return TrainingCell(row, task, budget, seed, recipe_for(row.weights, task, lr))


def _best(by_lr: dict[float, float | None], task: Task, row: Row) -> float | None:
    """The learning rate with the best figure, of equals the nearest to the recipe's; the lowest if
    no loss was finite, None if there is none."""
    there = {lr: value for lr, value in by_lr.items() if value is not None}
    if not there:
        return None
    usual, sign = recipe_for(row.weights, task).lr, 1 if task.more_is_better else -1

    def rank(lr: float) -> tuple[float, float]:
        if math.isnan(there[lr]):
            return -math.inf, -lr
        return sign * there[lr], -abs(math.log(lr / usual))

    return max(there, key=rank)


def summarize(study: Study, folder: Path) -> dict[str, Any]:
    """The results so far, as plain data: means and deviations over the seeds.

    ``rows``: for each its mixers, ``tasks`` (by name, then by budget: the learning rate, and
    ``mean``, ``deviation`` and ``values`` of every figure, of tokens and of CPU seconds; the
    deviation is that of a sample, None for one seed) and ``costs`` by length. ``tasks``: settings,
    budgets and facts. ``sweep``: figures by learning rate (None where the loss was not finite), the
    ``best``, and whether that lies between others (``inside``). ``missing``: cells without a
    result. ``machine``: where this was called.
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
        "machine": describe_machine(),
    }


def _sweep(study: Study, row: Row, task: Task, folder: Path) -> dict[str, Any]:
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
    """Whether every trained model of text beats the byte frequencies; None if there is none."""
    values = [value for budget in (text or {}).values()
              for value in budget.get("bpb", {}).get("values", ())]
    if not values:
        return None
    return max(values) < next(task for task in tasks if task.name == "text").facts()["unigram"]


def _figures(
    study: Study, row: Row, task: Task, budget: str, folder: Path,
) -> dict[str, Any]:
    """Means over the seeds that have results."""
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


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory, versions and date; nothing that names the machine."""
    found: dict[str, Any] = {
        "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}"}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                found["processor"] = value.strip()
                break
        found["memory_gb"] = round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (OSError, ValueError, AttributeError):
        pass    # not Linux: use only what Python knows
    return found | {"torch": version("torch"), "sterna": version("sterna"),
                    "date": datetime.now(UTC).date().isoformat()}
