"""The cells of a comparison, each a training run or a measurement with a result file."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import re
import statistics
import time
import timeit
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from sterna.model.files import write_atomically
from sterna.model.processes import deaf_to_ctrl_c, end_with_parent
from sterna.model.torch.stack.block import Block
from sterna.model.torch.stack.language_model import Classifier, LanguageModel
from sterna.model.torch.study.rows import Row, code_hash
from sterna.model.torch.study.tasks import Task
from sterna.model.torch.training.optimizer import adamw, set_learning_rate
from sterna.model.torch.training.recipe import TrainRecipe

__all__ = ["BUDGETS", "Cell", "CostCell", "Costs", "Fit", "Note", "StoppedError", "TrainingCell",
           "count", "fit", "make_cells", "measure_costs", "one_thread"]


BUDGETS = ("tokens", "seconds")
"""Quantities that are equal for all models. Seconds are single-thread CPU time of the process,
which other programs on the machine affect little."""

_CURVE_POINTS = 50


class StoppedError(Exception):
    """Training was stopped early."""


@dataclass(slots=True)
class Fit:
    """Result of a training run: its steps, tokens and CPU seconds, and the loss curve as
    ``[tokens, seconds, nats]``."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, float, float]] = field(default_factory=list)


def fit(
    model: nn.Module, task: Task, budget: str, recipe: TrainRecipe, *, seed: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Fit:
    """Train ``model`` until the budget is used, with a cosine learning-rate schedule over it.
    Raises ``FloatingPointError`` if a loss is not finite, :class:`StoppedError` if ``stopped``
    returns True between two steps."""
    optimizer = adamw(model, recipe)
    done, nats = Fit(), math.nan
    task.sample(0, seed)    # load the data outside the timed part
    start = time.process_time()
    fraction = 0.0
    while fraction < 1.0:
        if stopped():
            raise StoppedError
        set_learning_rate(optimizer, recipe.learning_rate(done.steps, fraction),
                          recipe.decay(fraction))
        loss = task.loss(model, *task.sample(done.steps, seed))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm, foreach=True)
        optimizer.step()
        nats = loss.item()
        done.steps += 1
        if not math.isfinite(nats):
            raise FloatingPointError(f"the loss is not finite at step {done.steps}")
        done.tokens = done.steps * task.batch * task.length
        done.seconds = time.process_time() - start
        fraction = (done.tokens / task.tokens if budget == "tokens"
                    else done.seconds / task.seconds)
        if fraction * _CURVE_POINTS >= len(done.curve) + 1 or fraction >= 1.0:
            done.curve.append((done.tokens, round(done.seconds, 3), round(nats, 4)))
    return done


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread in the block, and float32 products in float32: the same arithmetic for
    ternary and float weights. (``sterna train`` allows bfloat16 products for ternary models where
    they are faster. Float models would not gain from it, or would lose digits.)"""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])


_PIECE = 250
_ROUNDS, _STEPS = 5, 10


@dataclass(frozen=True, slots=True)
class Costs:
    """The sizes of a byte language model at which costs are measured; each of the ``lengths`` is
    the number of the token that is timed and counted."""

    d: int = 64
    layers: int = 4
    lengths: tuple[int, ...] = (128, 1024, 6000)


def measure_costs(row: Row, costs: Costs) -> dict[str, Any]:
    """Count and time the step of a row's model at each length:
    ``{length: {"decode_us": ..., "state_words": ..., ...}}``, the median CPU time of one step for
    one sequence, None if not causal. Mixers of a fixed length are made for it; lengths above that
    of a mixer are left out."""
    found: dict[str, Any] = {}
    causal = row.is_causal(costs.d)
    for length in costs.lengths:
        config = row.config(d=costs.d, layers=costs.layers, vocab=256, length=length)
        model = LanguageModel(config) if causal else Classifier(config, 256, length)
        if any((block.mixer.longest or length) < length for block in model.blocks()):
            continue
        found[str(length)] = {
            "decode_us": _step_microseconds(model, length) if isinstance(model, LanguageModel)
            else None, **count(model, length)}
    return found


def count(model: nn.Module, length: int) -> dict[str, int]:
    """Parameters, words of state, MACs and multiplications of token number ``length`` in all
    blocks; the last three exclude embedding and head, which are the same for all."""
    blocks = [each for each in model.modules() if isinstance(each, Block)]
    parts = [part for block in blocks for part in (block.mixer, block.channel)]
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "state_words": sum(block.mixer.state_words(length) for block in blocks),
        "macs": sum(part.macs(length) for part in parts),
        "multiplies": sum(part.multiplies(length) for part in parts),
    }


@torch.no_grad()
def _step_microseconds(model: LanguageModel, length: int) -> float:
    """The median time of the step that reads token number ``length``."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (length, 1), generator=generator)
    state = model.initial_state(1)
    for piece in tokens[:-1].split(_PIECE):
        state = model.forward_time_major(piece, state)[1]
    seconds = timeit.repeat(lambda: model.step(tokens[-1], state), timer=time.process_time,
                            repeat=_ROUNDS, number=_STEPS)
    return 1e6 * statistics.median(seconds) / _STEPS


_FORMAT = 3
_LONGEST = 200
"""Most characters of a title in a file name, which may have 255: patterns can be long."""


class Cell(ABC):
    """A measurement of a row. Its file name contains a hash of everything it depends on, so results
    of other settings, or of another version of a mixer, are never mistaken for it."""

    row: Row

    @property
    @abstractmethod
    def title(self) -> str:
        """A description in words."""

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
        """The file of its result."""
        text = json.dumps({"format": _FORMAT, "code": code_hash(self.row), **self.settings()},
                          sort_keys=True)
        name = re.sub(r"[^\w=.*+]+", "-", self.title, flags=re.ASCII).strip("-")
        return folder / f"{name[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"

    def result(self, folder: Path) -> dict[str, Any] | None:
        """The result, None if its file is missing or damaged."""
        try:
            found = json.loads(self.path(folder).read_text())["result"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return found if isinstance(found, dict) else None

    def run(self, folder: Path, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Make and write the result."""
        with one_thread():
            result = self.make(stopped)
        write_atomically(self.path(folder), json.dumps({
            "title": self.title, "settings": self.settings(), "code": code_hash(self.row),
            "torch": torch.__version__, "result": result}, indent=1) + "\n")
        return result


@dataclass(frozen=True)
class TrainingCell(Cell):
    """A model trained for a task: one budget, one seed, one recipe."""

    row: Row
    task: Task
    budget: str
    seed: int
    recipe: TrainRecipe

    @property
    def title(self) -> str:
        return (f"{self.row.name}, {self.task.name}, equal {self.budget}, seed {self.seed}, "
                f"lr {self.recipe.lr:g}")

    def settings(self) -> dict[str, Any]:
        """Row, task, recipe; of the budgets only the one in use."""
        task = self.task.settings()
        del task["seconds" if self.budget == "tokens" else "tokens"]
        return {"row": asdict(self.row), "task": task, "budget": self.budget, "seed": self.seed,
                "recipe": asdict(self.recipe)}

    def make(self, stopped: Callable[[], bool]) -> dict[str, Any]:
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
        if "diverged" in result:
            return f"{self.title}: {result['diverged']}"
        figures = ", ".join(f"{name} {value:.4f}" for name, value in result["figures"].items())
        return (f"{self.title}: {figures} ({result['tokens']:,} tokens in "
                f"{result['seconds']:.0f} s of CPU time)")


@dataclass(frozen=True)
class CostCell(Cell):
    """Costs of the model of a row, trained or not."""

    row: Row
    costs: Costs

    @property
    def title(self) -> str:
        return f"{self.row.name}, cost"

    def settings(self) -> dict[str, Any]:
        return {"row": asdict(self.row), "costs": asdict(self.costs)}

    def make(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        return measure_costs(self.row, self.costs)

    def summary(self, result: dict[str, Any]) -> str:
        return self.title


Note: TypeAlias = Callable[[Cell, dict[str, Any] | None, str], None]
"""Called for every finished cell: its result, or None and the error."""

_stop: Event | None = None


def make_cells(cells: Sequence[Cell], folder: Path, jobs: int, note: Note) -> None:
    """Make the cells that ``folder`` lacks, ``jobs`` at a time.

    A failing cell does not stop the others. Ctrl-C stops all of them within a step; written results
    remain, and the next call makes the rest. Raises ``OSError`` if a result cannot be written or a
    process was killed from outside.
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
        with deaf_to_ctrl_c():     # else Ctrl-C during imports prints a traceback
            running: dict[Future[Any], Cell] = {
                pool.submit(_attempt, cell, folder): cell for cell in left}
        while running:
            for each in wait(running, return_when=FIRST_COMPLETED).done:
                note(running.pop(each), *each.result())
    except BrokenProcessPool as error:
        raise OSError("a process that made cells was killed from outside, perhaps for lack of "
                      "memory; the results so far stay, and the same command with fewer --jobs "
                      "continues") from error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _begin(stop: Event) -> None:
    global _stop
    _stop = stop
    end_with_parent()


def _attempt(cell: Cell, folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The result of a cell, or the error: a user's mixer may raise anything."""
    try:
        return cell.run(folder, lambda: _stop is not None and _stop.is_set()), ""
    except StoppedError:
        return None, "stopped"
    except OSError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        return None, f"{type(error).__name__}: {said}"
