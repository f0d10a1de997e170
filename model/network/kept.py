"""What is made from weights, kept while a model is evaluated and they stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["KeepsCodes", "Kept"]

_Made = TypeVar("_Made")

_steps = [0]
"""Optimiser steps that this process has done."""


def _count_step(*_: Any) -> None:
    if not torch.compiler.is_compiling():
        _steps[0] += 1


# Fused optimisers write to parameters without a record in their version counters.
register_optimizer_step_post_hook(_count_step)


class Kept(Generic[_Made]):
    """A value made from parameters, made anew as soon as one of them is seen to have changed.

    Seen are steps of any optimiser of torch, operations in place such as ``load_state_dict``,
    another tensor by ``.data =`` or as a new parameter, another type or device. **Not** seen is
    what torch keeps no record of: ``parameter.data.mul_(2)``, writing to the memory through NumPy,
    a compiled ``optimizer.step``. Copies and pickles of it are empty.
    """

    def __init__(self) -> None:
        self._made: _Made | None = None
        self._sources: tuple[tuple[Tensor, int], ...] = ()
        self._step = 0

    def get(self, parameters: Sequence[Tensor], make: Callable[[], _Made]) -> _Made:
        """What ``make()`` gives for the parameters as they are."""
        if self._made is None or not self._same(parameters):
            self._made, self._step = make(), _steps[0]
            # A detached tensor holds the memory, so its address cannot come back as another's.
            self._sources = tuple((each.detach(), each._version) for each in parameters)
        return self._made

    def clear(self) -> None:
        """Forget the value."""
        self._made, self._sources = None, ()

    def _same(self, parameters: Sequence[Tensor]) -> bool:
        return self._step == _steps[0] and len(parameters) == len(self._sources) and all(
            version == each._version and source.dtype is each.dtype
            and source.device == each.device and source.is_set_to(each)
            for each, (source, version) in zip(parameters, self._sources, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class KeepsCodes(nn.Module):
    """A module that keeps the codes of its ternary weights while it is evaluated.

    That is after ``eval()``, without gradients; they take as much memory as weights in float32.
    ``train()``, ``eval()`` and a move to another type or device drop them, so a loop that calls
    these around its evaluation is safe with whatever happens to weights in between.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept: Kept[Any] = Kept()

    def keeps(self, parameters: Sequence[Tensor]) -> bool:
        """Whether codes are to be kept now: not when a graph is traced, nor of tensors that are
        made for every call, as those of a parametrisation."""
        return not (self.training or torch.is_grad_enabled() or torch.compiler.is_compiling()) and (
            all(type(each) is nn.Parameter and not (each.is_meta or each.is_inference())
                for each in parameters))

    def train(self, mode: bool = True) -> Any:
        """As in torch; forgets the codes."""
        self.kept.clear()
        return super().train(mode)

    def _apply(self, *arguments: Any, **options: Any) -> Any:
        self.kept.clear()
        return super()._apply(*arguments, **options)
