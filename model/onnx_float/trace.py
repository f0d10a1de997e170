"""The two graphs of a float model as modules, and tracing them with axes of any length."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.export import _trace
from torch.fx.experimental import _config

from sterna.model.network.mixer import State, TokenMixer
from sterna.model.onnx_float.interface import (
    Example,
    StateTensor,
    flat,
    nested,
    shortest_end,
)
from sterna.model.pattern import Choice
from sterna.model.stack.language_model import LanguageModel

__all__ = ["ExportError", "SequenceGraph", "StepGraph", "quietly", "trace_sequence", "trace_step"]

_ANY = torch.export.Dim.DYNAMIC
_MANY, _FEW = 1 << 30, 4
"""As good as any number of tokens; tokens to find loops with, which are unrolled."""


class ExportError(ValueError):
    """A mixer does something that a graph cannot; the message says which mixer and what."""


class StepGraph(nn.Module):
    """One token for each sequence of a batch."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model, self.form = model, model.initial_state(1)

    def forward(
        self, tokens: Tensor, state: tuple[Tensor, ...],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Map ``tokens [batch]`` to logits ``[batch, vocab]``."""
        logits, after = self.model.step(tokens, nested(state, self.form))
        return logits, flat(after)


class SequenceGraph(StepGraph):
    """A row of tokens for each sequence of a batch."""

    def forward(
        self, tokens: Tensor, state: tuple[Tensor, ...],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Map ``tokens [batch, time]`` to logits ``[batch, time, vocab]``."""
        logits, after = self.model(tokens, nested(state, self.form))
        return logits, flat(after)


class _Scanned(nn.Module):
    """A mixer whose ``forward`` is its ``step``, in a loop that a graph keeps as a loop."""

    def __init__(self, mixer: TokenMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        def turn(before: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
            y, after = self.mixer.step(x, tuple(before))
            return [each.clone() for each in after], y.clone()

        after, y = scan(turn, list(state), x)
        return y, tuple(after)


def trace_step(
    model: LanguageModel, tensors: Sequence[StateTensor], example: Example,
) -> torch.export.ExportedProgram:
    """The step graph, for any batch.

    Raises
    ------
    ExportError
        If it cannot be traced.
    """
    model = _frozen(model)
    try:
        return _traced(StepGraph(model), (example.tokens[:, 0], example.state),
                       ({0: _ANY}, _any_length(tensors)), shortest_end(model))
    except Exception as error:
        raise ExportError(
            f"torch.export cannot trace a step of {model.config.mixer}: {_reason(error)}"
        ) from error


def trace_sequence(
    model: LanguageModel, tensors: Sequence[StateTensor], example: Example,
) -> tuple[torch.export.ExportedProgram, list[int]]:
    """The sequence graph, for any batch and number of tokens, and the layers that loop.

    A mixer that cannot be traced for any number of tokens, because it loops over them in Python
    for example, becomes a loop over its step, if its state does not grow.

    Raises
    ------
    ExportError
        If it cannot be traced.
    """
    model = _frozen(model)
    end, whole = shortest_end(model), SequenceGraph(model)
    looped = _put_loops(model, tensors, example)
    try:
        return _traced(whole, (example.tokens, example.state),
                       ({0: _ANY, 1: _ANY}, _any_length(tensors)), end), looped
    except Exception as error:
        raise ExportError(
            f"torch.export cannot trace {model.config.mixer}: {_reason(error)}") from error


def _put_loops(
    model: LanguageModel, tensors: Sequence[StateTensor], example: Example,
) -> list[int]:
    """Replace the mixers that cannot be traced for any number of tokens; return their layers."""
    states = nested(example.state, model.initial_state(1))
    x = model.embedding(example.tokens[:, :_FEW].t())
    reasons: dict[Choice, Exception | None] = {}
    looped = []
    for layer, (block, (choice, _)) in enumerate(
            zip(model.blocks(), model.config.mixers(), strict=True)):
        mine = [each for each in tensors if each.layer == layer]
        if choice not in reasons:
            try:
                _traced(block.mixer, (x, states[layer]),
                        ({0: _ANY, 1: _ANY}, _any_length(mine)), block.mixer.longest)
                reasons[choice] = None
            except Exception as error:
                reasons[choice] = error
        reason = reasons[choice]
        if reason is None:
            continue
        if any(each.growing for each in mine):
            raise ExportError(
                f"{choice} cannot be traced for any number of tokens ({_reason(reason)}), and a "
                f"loop over its step needs a state that does not grow: only the step graph can be "
                f"had") from reason
        block.mixer = _Scanned(block.mixer)     # type: ignore[assignment]  # called as one
        looped.append(layer)
    return looped


def _traced(
    module: nn.Module, args: tuple[Any, ...], axes: Any, end: int | None,
) -> torch.export.ExportedProgram:
    """Trace a module whose free axes may have any length, or if there is an ``end`` up to that."""
    # As torch.onnx.export does, so that axes of length 0 and 1 are nothing special.
    alike = _config.patch(backed_size_oblivious=True)   # type: ignore[attr-defined]  # dynamic
    with quietly(), torch.no_grad(), alike:
        program = torch.export.export(module, args, dynamic_shapes=axes, strict=False)
    for allowed in program.range_constraints.values():
        # A branch on the length of a sequence is taken as for the example.
        branches = [f"{side} than {limit}" for side, limit, there in (
            ("fewer", allowed.lower, allowed.lower > 2),
            ("more", allowed.upper, allowed.upper < (_MANY if end is None else end - 1))) if there]
        if branches:
            raise ExportError(f"it does something else for {' and for '.join(branches)} tokens")
    return program


def _any_length(tensors: Sequence[StateTensor]) -> tuple[dict[int, Any], ...]:
    return tuple({0: _ANY, **dict.fromkeys(each.growing, _ANY)} for each in tensors)


def _frozen(model: LanguageModel) -> LanguageModel:
    """A copy without gradients: a loop in a graph has none."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def _reason(error: Exception) -> str:
    if isinstance(error, ExportError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@contextmanager
def quietly() -> Iterator[None]:
    """Without what torch's exporter says of itself: deprecations, packages that it misses."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    vars(_trace)["print"] = lambda *_, **__: None   # of the graph that it could not end
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        vars(_trace).pop("print", None)
