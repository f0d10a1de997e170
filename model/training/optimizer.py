"""The optimiser of a training run, and the average of the weights that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sterna.model.network.bitlinear import BitLinear
from sterna.model.network.projection import Projection
from sterna.model.training.distributed import like
from sterna.model.training.recipe import TrainRecipe

__all__ = ["WeightAverage", "adamw", "restore_adamw", "set_learning_rate"]

_MOMENTS = ("exp_avg", "exp_avg_sq")


def adamw(model: nn.Module, recipe: TrainRecipe) -> torch.optim.AdamW:
    """AdamW in four groups: embeddings, matrices of projections (which decay), their gains, and the
    rest; a group has ``lr_factor``, by which the learning rate of a step is to be multiplied."""
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
    """Give every group of :func:`adamw` its share of the learning rate of the next step, and the
    weight decay to the one that decays."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]
        if group["decays"]:
            group["weight_decay"] = weight_decay


def restore_adamw(optimizer: torch.optim.AdamW, moments: dict[int, Any]) -> None:
    """Take over the moments of ``optimizer.state_dict()`` of the same model, whole or laid out as
    the parameters are; the settings stay those of the recipe."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"param_groups": groups, "state": {
        number: {name: like(each, parameters[number]) if name in _MOMENTS else each
                 for name, each in of_one.items()} for number, of_one in moments.items()}})


class WeightAverage:
    """``average += (1 - decay) * (weights - average)`` after every step (Polyak averaging),
    beginning with the weights of the model, which are soon forgotten: the decay of step ``t`` is at
    most ``(1 + t) / (10 + t)``. Codes are made of the average."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters, self._decay = dict(model.named_parameters()), decay
        self.weights = {name: each.detach().clone() for name, each in self._parameters.items()}
        """The average, by the names of the parameters."""

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Take in the weights after step ``step`` (from 0)."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(
            list(self.weights.values()), list(self._parameters.values()), 1.0 - decay)

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Go on from ``weights``, by the same names."""
        for name, each in self.weights.items():
            each.copy_(weights[name])

    def exchange(self) -> None:
        """Give the model the average, and take its weights; again, and both are as before."""
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
