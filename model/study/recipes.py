"""How models are trained in a comparison: the recipe of their weights, the rate of the task."""

from __future__ import annotations

from sterna.model.study.tasks.task import Task
from sterna.model.training.recipe import TrainRecipe

__all__ = ["recipe_for", "swept_rates"]

_FACTORS = (0.5, 1.0, 2.0)


def recipe_for(weights: str, task: Task, lr: float | None = None) -> TrainRecipe:
    """The recipe of models with ``weights`` for a task, with another learning rate if given.

    It is the plain one, which the figures of the comparison are of: what ``sterna train`` has
    beyond it by default is for long runs on a small text.
    """
    plain = {"ternary": {"weight_decay": 0.5}}.get(weights, {})
    return TrainRecipe.of(weights, lr=task.rates[weights] if lr is None else lr, **plain,
                          batch=task.batch, window=task.length, float_start=0.0, general_share=0.0)


def swept_rates(weights: str, task: Task) -> tuple[float, ...]:
    """The learning rates that a sweep begins with; the one in the middle is the task's."""
    return tuple(factor * task.rates[weights] for factor in _FACTORS)
