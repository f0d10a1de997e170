"""Reading digits: a task for mixers that see the whole sequence at once as well."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.config import ModelConfig
from sterna.model.stack.classifier import Classifier
from sterna.model.study.tasks.row import Row
from sterna.model.study.tasks.task import Task

__all__ = ["DigitsTask"]

_PIXELS, _LEVELS, _CLASSES = 64, 17, 10
_TEST = 360


@dataclass(frozen=True, slots=True)
class DigitsTask(Task):
    """The handwritten digits of scikit-learn, 1,797 images of 8 x 8 pixels of 17 levels.

    A sequence is the 64 pixels, row by row; positions are learned. A fifth of the images, by the
    seed, is for judging.
    """

    name: ClassVar[str] = "digits"
    figure: ClassVar[str] = "accuracy"
    more_is_better: ClassVar[bool] = True
    causal: ClassVar[bool] = False
    rates: ClassVar[dict[str, float]] = {"ternary": 1e-2, "float": 3e-3}

    d: int = 64
    layers: int = 2
    batch: int = 16
    tokens: int = 512 * 1024
    seconds: float = 10.0

    @property
    def length(self) -> int:
        """Pixels."""
        return _PIXELS

    def model(self, row: Row, seed: int) -> Classifier:
        """A classifier of levels of grey."""
        config: ModelConfig = row.config(
            d=self.d, layers=self.layers, vocab=_LEVELS, length=self.length)
        return Classifier(config, _CLASSES, self.length, seed=seed)

    def sample(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Images ``[batch, pixels]`` and digits ``[batch]``."""
        images, digits, _, _ = _split(seed)
        chosen = torch.from_numpy(
            np.random.default_rng([seed, step]).integers(0, len(digits), self.batch))
        return images[chosen], digits[chosen]

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of the digit."""
        return F.cross_entropy(model(inputs), targets)

    def measure(self, model: nn.Module, seed: int) -> dict[str, float]:
        """The share of digits that are read right; chance is a tenth."""
        _, _, images, digits = _split(seed)
        return {"accuracy": float((model(images).argmax(-1) == digits).double().mean())}

    def facts(self) -> dict[str, float]:
        """``chance``."""
        return {"chance": 1 / _CLASSES}


@functools.lru_cache(maxsize=1)
def _split(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images ``[count, pixels]`` and digits to learn from, then those to judge by."""
    from sklearn.datasets import load_digits
    found = load_digits()
    images = torch.from_numpy(found.data.astype(np.int64))
    digits = torch.from_numpy(found.target.astype(np.int64))
    order = torch.from_numpy(np.random.default_rng([seed]).permutation(len(digits)))
    test, train = order[:_TEST], order[_TEST:]
    return images[train], digits[train], images[test], digits[test]
