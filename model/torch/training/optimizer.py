"""The optimiser of a training run, and the average of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sterna.model.torch.network.bitlinear import BitLinear
from sterna.model.torch.network.projection import Projection
from sterna.model.torch.training.distributed import like
from sterna.model.torch.training.recipe import TrainRecipe

__all__ = ["WeightAverage", "adamw", "restore_adamw", "set_learning_rate"]

_MOMENTS = ("exp_avg", "exp_avg_sq")


def adamw(model: nn.Module, recipe: TrainRecipe) -> torch.optim.AdamW:
    """AdamW in four groups: embeddings, projection matrices (the only ones with weight decay),
    their gains, and the rest; each group has ``lr_factor``, which scales the learning rate."""
    embeddings = [each.weight for each in model.modules() if isinstance(each, nn.Embedding)]
    matrices = [each.weight for each in model.modules() if isinstance(each, Projection)]
    gains = [each.gain for each in model.modules()
             if isinstance(each, BitLinear) and each.gain is not None]
    grouped = {id(parameter) for parameter in (*embeddings, *matrices, *gains)}
    rest = [each for each in model.parameters() if id(each) not in grouped]
    return torch.optim.AdamW(
        [{"params": embeddings, "lr_factor": recipe.embedding_lr_factor, "weight_decay": 0.0,
          "decays": False},
         {"params": matrices, "lr_factor": 1.0, "weight_decay": recipe.weight_decay,
          "decays": True},
         {"params": gains, "lr_factor": recipe.gain_lr_factor, "weight_decay": 0.0,
          "decays": False},
         {"params": rest, "lr_factor": 1.0, "weight_decay": 0.0, "decays": False}],
        lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), fused=True)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, lr: float, weight_decay: float,
) -> None:
    """Set the scaled learning rate of every group of :func:`adamw` for the next step, and the
    weight decay of the one that decays."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]
        if group["decays"]:
            group["weight_decay"] = weight_decay


def restore_adamw(optimizer: torch.optim.AdamW, moments: dict[int, Any]) -> None:
    """Load the moments of ``optimizer.state_dict()`` of the same model, whole or distributed like
    the parameters; the settings stay those of the recipe."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"param_groups": groups, "state": {
        number: {name: like(each, parameters[number]) if name in _MOMENTS else each
                 for name, each in of_one.items()} for number, of_one in moments.items()}})


class WeightAverage:
    """``average += (1 - decay) * (weights - average)`` after every step (Polyak averaging). The
    initial weights are soon forgotten: the decay of step ``t`` is at most
    ``(1 + t) / (10 + t)``. Codes are made from the average."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters, self._decay = dict(model.named_parameters()), decay
        self.weights = {name: each.detach().clone() for name, each in self._parameters.items()}
        """The average, by parameter name."""

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Update the average with the weights after step ``step`` (from 0)."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(
            list(self.weights.values()), list(self._parameters.values()), 1.0 - decay)

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Continue from ``weights``, by the same names."""
        for name, each in self.weights.items():
            each.copy_(weights[name])

    def exchange(self) -> None:
        """Swap the weights of the model and the average; a second call undoes it."""
        for name, parameter in self._parameters.items():
            parameter.data, self.weights[name] = self.weights[name], parameter.data

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the model has the average."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()
