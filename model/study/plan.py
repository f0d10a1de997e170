"""Which cells a comparison has, and in which order they are best made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from sterna.model.config import ModelConfig
from sterna.model.study.cells import Cell, CostCell, TrainingCell
from sterna.model.study.costs import Costs
from sterna.model.study.fit import BUDGETS
from sterna.model.study.recipes import recipe_for, swept_rates
from sterna.model.study.tasks.row import Row
from sterna.model.study.tasks.task import Task

__all__ = ["MOST_RATES", "Study"]

MOST_RATES = 7
"""Learning rates of a sweep at most, wherever its best is."""


@dataclass(frozen=True)
class Study:
    """Rows compared on tasks.

    Parameters
    ----------
    entries
        Each row with the tasks that it takes part in.
    seeds
        Number of seeds, from 0.
    swept
        Names of the rows whose learning rate is chosen for each task, by the first seed at equal
        tokens; all others have the one of their recipe. Rates beside the recipe's are tried, and
        further ones while the best is the lowest or the highest of them.
    lr
        A learning rate for all rows, instead.
    costs
        Sizes at which costs are measured.
    """

    entries: tuple[tuple[Row, tuple[Task, ...]], ...]
    seeds: int = 3
    swept: tuple[str, ...] = ()
    lr: float | None = None
    costs: Costs = field(default_factory=Costs)

    def check(self) -> None:
        """Make every model and read every text once, so that nothing is refused after minutes.

        Raises
        ------
        ValueError
            If a mixer is not there or not for a task, with the reason.
        """
        for task in dict.fromkeys(task for _, tasks in self.entries for task in tasks):
            task.sample(0, 0)
        for row, tasks in self.entries:
            for task in tasks:
                task.model(row, 0)

    def configs(self) -> list[tuple[Row, ModelConfig]]:
        """The shape at which the costs of each row are measured."""
        return [(row, row.config(d=self.costs.d, layers=self.costs.layers, vocab=256,
                                 length=max(self.costs.lengths))) for row, _ in self.entries]

    def sweep_cells(self, folder: Path) -> list[Cell]:
        """The cells that have to be there before the others are known. When those in ``folder``
        are more, there may be others."""
        return [self._training(row, task, "tokens", 0, lr)
                for row, tasks in self.entries if row.name in self.swept
                for task in tasks for lr in self.sweep(row, task, folder)]

    def cells(self, folder: Path) -> list[Cell]:
        """All other cells, when those of the sweep are in ``folder``: seed after seed, so that a
        comparison that is cut short has every row."""
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
        """What a row costs: if it is not causal, at the length of its tasks."""
        costs = self.costs
        if not row.is_causal(costs.d):
            costs = replace(costs, lengths=tuple(sorted({task.length for task in tasks})))
        return CostCell(row, costs)

    def chosen_lr(self, row: Row, task: Task, folder: Path) -> float | None:
        """The learning rate that was best in the sweep, or None for that of the recipe."""
        if row.name not in self.swept:
            return self.lr
        return _best(self.sweep(row, task, folder), task, row)

    def sweep(self, row: Row, task: Task, folder: Path) -> dict[float, float | None]:
        """The figure of the task by learning rate, rising: NaN where the loss was not finite, None
        where a cell is not there yet."""
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
    """The learning rate with the best figure, of equals the nearest to the recipe's; None if none
    is there. Where no loss was finite it is the lowest."""
    there = {lr: value for lr, value in by_lr.items() if value is not None}
    if not there:
        return None
    usual, sign = recipe_for(row.weights, task).lr, 1 if task.more_is_better else -1

    def rank(lr: float) -> tuple[float, float]:
        if math.isnan(there[lr]):
            return -math.inf, -lr
        return sign * there[lr], -abs(math.log(lr / usual))

    return max(there, key=rank)
