"""What goes into the graphs of a float model and comes out of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sterna.model.stack.language_model import LanguageModel, ModelState

__all__ = ["Example", "StateTensor", "flat", "nested", "shortest_end", "state_tensors"]

_BATCH, _BEFORE, _TIME = 3, 5, 150
"""Of an example: sequences, tokens read before, and tokens, more than a chunk of any mixer."""

_READ = 16
"""Tokens after which the axes that grow have shown it."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of the state of a model.

    Parameters
    ----------
    layer, index
        Which layer it belongs to, and its place there.
    start
        At the start of one text, ``[1, ...]``.
    growing
        The axes that get longer as the text does.
    """

    layer: int
    index: int
    start: Tensor
    growing: tuple[int, ...]

    @property
    def name(self) -> str:
        """``layer0.state0``; the name of the output ends in ``_out``."""
        return f"layer{self.layer}.state{self.index}"

    @property
    def axes(self) -> tuple[str | int, ...]:
        """The length of every axis, or its name if it has none."""
        return tuple(
            "batch" if axis == 0 else f"{self.name}.axis{axis}" if axis in self.growing else size
            for axis, size in enumerate(self.start.shape))

    def to_json(self) -> dict[str, object]:
        """What the metadata of a graph say of it."""
        return {"name": self.name, "dtype": str(self.start.dtype).removeprefix("torch."),
                "axes": list(self.axes), "at_start": ["batch", *self.start.shape[1:]]}


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs to trace a graph with: tokens ``[batch, time]`` and the state before them."""

    tokens: Tensor
    state: tuple[Tensor, ...]


def flat(state: ModelState) -> tuple[Tensor, ...]:
    """The tensors of a state in the order of the layers."""
    return tuple(each for layer in state for each in layer)


def nested(tensors: Sequence[Tensor], like: ModelState) -> ModelState:
    """The state that :func:`flat` took apart."""
    rest = iter(tensors)
    return tuple(tuple(next(rest) for _ in layer) for layer in like)


def shortest_end(model: LanguageModel) -> int | None:
    """Most tokens that every mixer of a model takes, None for any number."""
    ends = [each.mixer.longest for each in model.blocks() if each.mixer.longest is not None]
    return min(ends, default=None)


@torch.no_grad()
def state_tensors(model: LanguageModel) -> tuple[list[StateTensor], Example]:
    """The tensors of the state of a model, and an example to trace it with.

    Raises
    ------
    ValueError
        If a state does not start at zeros, or the sequences that the mixers take are too short.
    """
    end = shortest_end(model)
    read = _READ if end is None else min(_READ, end - 2)
    if read < 2:
        raise ValueError(f"a graph needs mixers that take at least 4 tokens, got {end}")
    tokens = torch.arange(_BATCH * (read + _TIME)).reshape(_BATCH, -1) % model.config.vocab
    states = [model.initial_state(_BATCH)]
    for t in range(read):
        states.append(model.step(tokens[:, t], states[-1])[1])
    states.append(model(tokens[:, :end], states[0])[1])     # some have a row for many tokens
    history = list(zip(*map(flat, states), strict=True))
    places = [(layer, index) for layer, state in enumerate(states[0])
              for index in range(len(state))]
    tensors = []
    for (layer, index), seen in zip(places, history, strict=True):
        if bool(seen[0].any()):
            raise ValueError(f"the state of layer {layer} does not start at zeros")
        growing = tuple(axis for axis in range(1, seen[0].dim())
                        if len({each.shape[axis] for each in seen}) > 1)
        tensors.append(StateTensor(layer, index, seen[0][:1].clone(), growing))
    after = min(_BEFORE, read)
    time = _TIME if end is None else min(_TIME, end - after)
    return tensors, Example(
        tokens[:, after:after + time], tuple(seen[after] for seen in history))
