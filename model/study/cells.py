"""The cells of a comparison, each a training run or a measurement, with a file of its own."""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sterna.model.files import write_atomically
from sterna.model.study.costs import Costs, measure_costs
from sterna.model.study.fit import fit, one_thread
from sterna.model.study.tasks.row import Row, code_hash
from sterna.model.study.tasks.task import Task
from sterna.model.training.recipe import TrainRecipe

__all__ = ["Cell", "CostCell", "TrainingCell"]

_FORMAT = 2
_LONGEST = 200
"""Characters of a title in the name of a file, which may have 255: patterns can be long."""


class Cell(ABC):
    """Something to be measured of a row. What it depends on is hashed into the name of its file,
    so that results of other settings, or of another form of a mixer, are never taken for it."""

    row: Row

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is, in words."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All that the result depends on, as plain data."""

    @abstractmethod
    def make(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """The result."""

    @abstractmethod
    def summary(self, result: dict[str, Any]) -> str:
        """The result in a line."""

    def path(self, folder: Path) -> Path:
        """Where its result is."""
        text = json.dumps({"format": _FORMAT, "code": code_hash(self.row), **self.settings()},
                          sort_keys=True)
        name = re.sub(r"[^\w=.*+]+", "-", self.title, flags=re.ASCII).strip("-")
        return folder / f"{name[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"

    def result(self, folder: Path) -> dict[str, Any] | None:
        """The result, if it is there and whole."""
        try:
            found = json.loads(self.path(folder).read_text())["result"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return found if isinstance(found, dict) else None

    def run(self, folder: Path, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Make the result, and write it."""
        with one_thread():
            result = self.make(stopped)
        write_atomically(self.path(folder), json.dumps({
            "title": self.title, "settings": self.settings(), "code": code_hash(self.row),
            "torch": torch.__version__, "result": result}, indent=1) + "\n")
        return result


@dataclass(frozen=True)
class TrainingCell(Cell):
    """A model trained for a task: one of the budgets, one seed, one recipe."""

    row: Row
    task: Task
    budget: str
    seed: int
    recipe: TrainRecipe

    @property
    def title(self) -> str:
        """What is trained for what."""
        return (f"{self.row.name}, {self.task.name}, equal {self.budget}, seed {self.seed}, "
                f"lr {self.recipe.lr:g}")

    def settings(self) -> dict[str, Any]:
        """Row, task, recipe; of the budgets only the one that counts."""
        task = self.task.settings()
        del task["seconds" if self.budget == "tokens" else "tokens"]
        return {"row": asdict(self.row), "task": task, "budget": self.budget, "seed": self.seed,
                "recipe": asdict(self.recipe)}

    def make(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Train, and measure; a loss or figures that are not finite are a result, too."""
        model = self.task.model(self.row, self.seed)
        result = {"parameters": sum(each.numel() for each in model.parameters())}
        try:
            done = fit(model, self.task, self.budget, self.recipe, seed=self.seed, stopped=stopped)
        except FloatingPointError as error:
            return {**result, "diverged": str(error)}
        with torch.no_grad():
            figures = self.task.measure(model, self.seed)
        if not all(map(math.isfinite, figures.values())):
            return {**result, "diverged": f"the figures are not finite after step {done.steps}"}
        return {**result, **asdict(done), "figures": figures}

    def summary(self, result: dict[str, Any]) -> str:
        """The figures."""
        if "diverged" in result:
            return f"{self.title}: {result['diverged']}"
        figures = ", ".join(f"{name} {value:.4f}" for name, value in result["figures"].items())
        return (f"{self.title}: {figures} ({result['tokens']:,} tokens in "
                f"{result['seconds']:.0f} s of CPU time)")


@dataclass(frozen=True)
class CostCell(Cell):
    """What the model of a row costs, trained or not."""

    row: Row
    costs: Costs

    @property
    def title(self) -> str:
        """What is measured."""
        return f"{self.row.name}, cost"

    def settings(self) -> dict[str, Any]:
        """Row and sizes."""
        return {"row": asdict(self.row), "costs": asdict(self.costs)}

    def make(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Count, and time the step."""
        return measure_costs(self.row, self.costs)

    def summary(self, result: dict[str, Any]) -> str:
        """That it is done."""
        return self.title
