"""The optimiser of a training run."""

from __future__ import annotations

import torch
from torch import nn

from sterna.model.network.projection import Projection
from sterna.model.training.recipe import TrainRecipe

__all__ = ["adamw"]


def adamw(model: nn.Module, recipe: TrainRecipe) -> torch.optim.AdamW:
    """AdamW in three groups: embeddings, matrices of projections (which decay), and the rest.

    A group has ``lr_factor``, by which the learning rate of a step is to be multiplied.
    """
    embeddings = [each.weight for each in model.modules() if isinstance(each, nn.Embedding)]
    matrices = [each.weight for each in model.modules() if isinstance(each, Projection)]
    grouped = {id(parameter) for parameter in (*embeddings, *matrices)}
    rest = [each for each in model.parameters() if id(each) not in grouped]
    return torch.optim.AdamW(
        [{"params": embeddings, "lr_factor": recipe.embedding_lr_factor, "weight_decay": 0.0},
         {"params": matrices, "lr_factor": 1.0, "weight_decay": recipe.weight_decay},
         {"params": rest, "lr_factor": 1.0, "weight_decay": 0.0}],
        lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), fused=True)
