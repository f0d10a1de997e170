"""Training a model for a task within a budget of tokens or of CPU time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from sterna.model.study.tasks.task import Task
from sterna.model.training.optimizer import adamw, set_learning_rate
from sterna.model.training.recipe import TrainRecipe

__all__ = ["BUDGETS", "Fit", "StoppedError", "fit", "one_thread"]

BUDGETS = ("tokens", "seconds")
"""What is equal for all models. Seconds are CPU time of the process, in one thread: what else
the machine does then counts little."""

_CURVE_POINTS = 50


class StoppedError(Exception):
    """Training was to stop before its end."""


@dataclass(slots=True)
class Fit:
    """How a training run went: its steps, tokens and CPU seconds, and the loss by the way as
    ``[tokens, seconds, nats]``."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, float, float]] = field(default_factory=list)


def fit(
    model: nn.Module, task: Task, budget: str, recipe: TrainRecipe, *, seed: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Fit:
    """Train ``model`` until the budget is used; the learning rate follows it along a cosine.

    Raises
    ------
    FloatingPointError
        If the loss stops being finite.
    StoppedError
        If ``stopped`` said so between two steps.
    """
    optimizer = adamw(model, recipe)
    done, nats = Fit(), math.nan
    task.sample(0, seed)    # reads the data, which is no training
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
    """Compute with one thread of torch in the block, and products of float32 in float32: the same
    arithmetic for ternary and float weights.

    (``sterna train`` lets products of ternary models take bfloat16 where a processor is faster so.
    Float models would not gain by it, or lose digits.)
    """
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
