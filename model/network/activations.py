"""Functions of one number by name, for layers that let their user choose."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ACTIVATIONS", "Activation", "activation_named"]

Activation: TypeAlias = Callable[[Tensor], Tensor]


def _linear(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "linear": _linear, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": F.relu,
    "gelu": F.gelu, "silu": F.silu, "selu": F.selu,
}
"""The functions by the names that Keras uses; ``gelu`` is the exact one."""


def activation_named(name: str) -> Activation:
    """The function called ``name``.

    Raises
    ------
    ValueError
        If there is none.

    >>> activation_named("relu")(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    if name not in ACTIVATIONS:
        near = difflib.get_close_matches(name, ACTIVATIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(ACTIVATIONS)}"
        raise ValueError(f"no activation is called {name!r}; {hint}")
    return ACTIVATIONS[name]
