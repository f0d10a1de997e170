"""The two graphs of a float model: what goes in and comes out, and tracing any length of axes."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.export import _trace
from torch.fx.experimental import _config

from sterna.model.network.mixer import State, TokenMixer
from sterna.model.pattern import Choice
from sterna.model.stack.language_model import LanguageModel, ModelState

__all__ = ["Example", "ExportError", "SequenceGraph", "StateTensor", "StepGraph", "flat",
           "quietly", "shortest_end", "state_tensors", "trace_sequence", "trace_step"]


_BATCH, _BEFORE, _TIME = 3, 5, 150
"""Of an example: sequences, tokens read before, and tokens, more than a chunk of any mixer."""

_READ = 16
"""Tokens after which the axes that grow have shown it."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of the state of a model: its layer and its place there, what it is at the start of
    one text, ``[1, ...]``, and the axes that get longer as the text does."""

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


def _nested(tensors: Sequence[Tensor], like: ModelState) -> ModelState:
    """The state that :func:`flat` took apart."""
    rest = iter(tensors)
    return tuple(tuple(next(rest) for _ in layer) for layer in like)


def shortest_end(model: LanguageModel) -> int | None:
    """Most tokens that every mixer of a model takes, None for any number."""
    ends = [each.mixer.longest for each in model.blocks() if each.mixer.longest is not None]
    return min(ends, default=None)


@torch.no_grad()
def state_tensors(model: LanguageModel) -> tuple[list[StateTensor], Example]:
    """The tensors of the state of a model, and an example to trace it with."""
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
        logits, after = self.model.step(tokens, _nested(state, self.form))
        return logits, flat(after)


class SequenceGraph(StepGraph):
    """A row of tokens for each sequence of a batch."""

    def forward(
        self, tokens: Tensor, state: tuple[Tensor, ...],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Map ``tokens [batch, time]`` to logits ``[batch, time, vocab]``."""
        logits, after = self.model(tokens, _nested(state, self.form))
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
    """The step graph, for any batch."""
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
    states = _nested(example.state, model.initial_state(1))
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
