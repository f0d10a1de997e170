"""What a task is: sequences to learn from, a loss, and what is measured in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from sterna.model.stack.language_model import LanguageModel
from sterna.model.study.tasks.row import Row

__all__ = ["Task"]


class Task(ABC):
    """Something that models are trained for, and judged by.

    The tasks are frozen dataclasses: their fields are all that their figures depend on.
    """

    name: ClassVar[str]
    figure: ClassVar[str]
    """The one of :meth:`measure` that a model is judged by."""
    more_is_better: ClassVar[bool]
    causal: ClassVar[bool]
    """Whether only causal mixers can do it."""
    rates: ClassVar[dict[str, float]]
    """The learning rate of models by their weights, where no other is asked for."""

    d: int
    layers: int
    batch: int
    tokens: int
    """Tokens that a model may see, in the budget that is equal in tokens."""
    seconds: float
    """Seconds of CPU time to train for, in the one that is equal in seconds."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens of a sequence."""

    @abstractmethod
    def model(self, row: Row, seed: int) -> nn.Module:
        """A fresh model.

        Raises
        ------
        ValueError
            If a mixer of the row is not for this task, with the reason.
        """

    def language_model(self, row: Row, vocab: int, seed: int) -> LanguageModel:
        """A language model of the task's size that can read its sequences."""
        model = LanguageModel(
            row.config(d=self.d, layers=self.layers, vocab=vocab, length=self.length), seed=seed)
        for block in model.blocks():
            block.mixer.check_length(self.length)
        return model

    @abstractmethod
    def sample(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step, of the order that belongs to a seed."""

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss in nats."""

    @abstractmethod
    def measure(self, model: nn.Module, seed: int) -> dict[str, float]:
        """Figures of a trained model, on what it was not trained on."""

    def facts(self) -> dict[str, float]:
        """Figures of the task itself, to read those of the models by."""
        return {}

    def settings(self) -> dict[str, Any]:
        """All that the figures depend on, as plain data."""
        # Every task is a dataclass; this class of them all is none.
        return {"task": self.name, **asdict(self)}      # type: ignore[call-overload]

    def scaled(self, factor: float) -> Task:
        """The same task with ``factor`` times the budgets."""
        return replace(                                 # type: ignore[type-var]  # the same
            self, tokens=max(1, round(factor * self.tokens)), seconds=factor * self.seconds)
