"""How models are trained in a comparison: a recipe for each kind of weights."""

from __future__ import annotations

from dataclasses import replace

from sterna.model.study.tasks.task import Task
from sterna.model.training.recipe import TrainRecipe

__all__ = ["SWEPT", "recipe_for"]

_RECIPES = {
    "ternary": TrainRecipe(),
    "float": TrainRecipe(lr=3e-3, embedding_lr_factor=1.0, weight_decay=0.1),
}
SWEPT = {"ternary": (5e-3, 1e-2, 2e-2), "float": (1.5e-3, 3e-3, 6e-3)}
"""The learning rates that a sweep tries; the one in the middle is the recipe's."""


def recipe_for(weights: str, task: Task, lr: float | None = None) -> TrainRecipe:
    """The recipe of models with ``weights``, with another learning rate if one is given."""
    recipe = replace(_RECIPES[weights], batch=task.batch, window=task.length)
    return recipe if lr is None else replace(recipe, lr=lr)
