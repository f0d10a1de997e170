"""The training recipe: every number that decides what a step does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sterna.model.checks import check_whole, real_number

__all__ = ["TrainRecipe"]


@dataclass(frozen=True, slots=True)
class TrainRecipe:
    """How to train; the defaults are what measurement chose for small models.

    Parameters
    ----------
    lr
        Peak learning rate.
    embedding_lr_factor
        The embedding learns this much faster.
    batch, window
        Windows per step, and bytes predicted per window.
    beta1, beta2
        Of AdamW.
    weight_decay
        Of the ternary matrices; embedding and biases do not decay. It is strong, as it
        keeps the latent weights small compared with a step: codes can still change late in
        training, and without it a small text is soon learnt by heart.
    warmup_steps
        Steps of linear warm-up.
    final_lr_fraction
        The learning rate falls to this part of its peak, along a cosine over the budget.
    clip_norm
        Limit of the gradient's norm.
    carry_state
        Whether a window follows the one before it, with the recurrent state carried
        over; otherwise windows lie anywhere and start from the zero state.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    lr: float = 1e-2
    embedding_lr_factor: float = 3.0
    batch: int = 8
    window: int = 128
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.5
    warmup_steps: int = 50
    final_lr_fraction: float = 0.02
    clip_norm: float = 1.0
    carry_state: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "embedding_lr_factor", "final_lr_fraction", "clip_norm"):
            value = real_number(name, getattr(self, name))
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number, got {value}")
        for name, low in (("batch", 1), ("window", 1), ("warmup_steps", 0)):
            check_whole(name, getattr(self, name), low, (1 << 31) - 1)
        for name in ("beta1", "beta2"):
            if not 0.0 <= real_number(name, getattr(self, name)) < 1.0:
                raise ValueError(f"{name} must be from 0 to below 1, got {getattr(self, name)}")
        decay = real_number("weight_decay", self.weight_decay)
        if not 0.0 <= decay < math.inf:
            raise ValueError(f"weight_decay must be at least 0, got {decay}")

    @classmethod
    def of(cls, weights: str, **given: Any) -> TrainRecipe:
        """The recipe for a kind of weights (``ModelConfig.weights``) with what is ``given``.

        Float weights take smaller steps and little decay; there are no codes to be changed.
        """
        defaults = {"lr": 3e-3, "weight_decay": 0.1} if weights == "float" else {}
        return cls(**{**defaults, **given})

    @property
    def tokens_per_step(self) -> int:
        """Bytes predicted in one step.

        >>> TrainRecipe().tokens_per_step
        1024
        """
        return self.batch * self.window

    def learning_rate(self, step: int, fraction: float) -> float:
        """Learning rate of step ``step`` (from 0) when ``fraction`` of the budget is used."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, fraction)))
        low = self.final_lr_fraction
        return self.lr * warm * (low + (1.0 - low) * cosine)
