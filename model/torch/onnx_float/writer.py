"""The two ONNX graphs of a float model: inputs and outputs, tracing with axes of any length, and
writing the files."""

from __future__ import annotations

import copy
import json
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.export import _trace
from torch.fx.experimental import _config

from sterna.model.files import write_atomically
from sterna.model.pattern import Choice
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.onnx_float.operators import (
    has_linear_attention,
    recurrences_for_graphs,
    translations,
)
from sterna.model.torch.stack.language_model import LanguageModel, ModelState

__all__ = ["FLOAT_FORMAT", "GRAPHS", "ExportError", "export_float", "flat", "float_graph",
           "quietly", "state_tensors", "trace"]

FLOAT_FORMAT = "sterna float onnx"
"""Format name in the metadata of such a graph."""
GRAPHS = ("step", "sequence")
"""The graphs of a model, by file name."""


_BATCH, _BEFORE, _TIME = 3, 5, 150
"""Sizes of an example: sequences, preceding tokens, and tokens, more than a chunk of any mixer."""

_READ = 16
"""Tokens after which growing axes can be identified."""


def export_float(
    model: LanguageModel, folder: str | Path, *, graphs: Sequence[str] = GRAPHS,
    use_linear_attention: bool = False,
) -> list[Path]:
    """Write ``step.onnx`` and ``sequence.onnx``, or only those of ``graphs``, of a float model of
    any causal mixers, ternary or float; return the files.

    With ``use_linear_attention`` recurrences use onnxruntime's operator ``LinearAttention`` where
    possible, instead of ``Scan`` or a sum in chunks. Such a graph runs in onnxruntime only.

    Raises ValueError if there is no such graph, a mixer cannot be exported, or onnxruntime does not
    have the operator; OSError if the folder cannot be written; no partial file is left.
    """
    folder = Path(folder)
    # Everything is built before anything is written.
    protos = [float_graph(model, kind, use_linear_attention=use_linear_attention)
              for kind in graphs]
    folder.mkdir(parents=True, exist_ok=True)
    return [write_atomically(folder / f"{kind}.onnx", proto.SerializeToString())
            for kind, proto in zip(graphs, protos, strict=True)]


def float_graph(
    model: LanguageModel, kind: str, *, use_linear_attention: bool = False,
) -> onnx.ModelProto:
    """One of the graphs; parameters and errors as for :func:`export_float`."""
    if kind not in GRAPHS:
        raise ValueError(f"a graph is one of {', '.join(GRAPHS)}, got {kind!r}")
    if use_linear_attention and not has_linear_attention():
        raise ValueError("this onnxruntime does not have the operator LinearAttention: leave "
                         "--linear-attention out")
    table = translations()      # first, as it needs an extra package
    tensors, tokens, state = state_tensors(model)
    with recurrences_for_graphs(use_linear_attention=use_linear_attention):
        program, looped = trace(model, kind, tensors, tokens, state)
    proto = _translated(program, tensors, table)
    _name_axes(proto.graph, tensors)
    _describe(proto, model, kind, tensors, looped)
    onnx.checker.check_model(proto, full_check=False)
    return proto


def _translated(
    program: torch.export.ExportedProgram, tensors: Sequence[StateTensor], table: dict[Any, Any],
) -> onnx.ModelProto:
    names = [each.name for each in tensors]
    try:
        with quietly(), torch.no_grad():
            found = torch.onnx.export(
                program, dynamo=True, verbose=False, custom_translation_table=table,
                input_names=["tokens", *names],
                output_names=["logits", *(f"{name}_out" for name in names)])
    except torch.onnx.OnnxExporterError as error:
        last = str(error.__cause__ or error).strip().splitlines()[0]
        raise ExportError(f"a mixer uses what ONNX does not have: {last}") from error
    assert found is not None
    proto = found.model_proto
    for graph in _graphs(proto.graph):
        # Inner shapes and source traces: how and where the graph was made.
        del graph.value_info[:], graph.metadata_props[:]
        for node in graph.node:
            del node.metadata_props[:]
        for value in (*graph.input, *graph.output, *graph.initializer):
            del value.metadata_props[:]
    del proto.metadata_props[:]
    return proto


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _name_axes(graph: onnx.GraphProto, tensors: Sequence[StateTensor]) -> None:
    """Give the free axes of inputs meaningful names, and name those of outputs accordingly."""
    names: dict[str, str] = {}
    for value, axes in zip(
            graph.input, (("batch", "time"), *(each.axes for each in tensors)), strict=True):
        for dim, axis in zip(value.type.tensor_type.shape.dim, axes, strict=False):
            if dim.dim_param:
                names.setdefault(dim.dim_param, str(axis))
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(
                    r"[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), dim.dim_param)


def _describe(
    proto: onnx.ModelProto, model: LanguageModel, kind: str, tensors: Sequence[StateTensor],
    looped: Sequence[int],
) -> None:
    proto.producer_name, proto.producer_version = "sterna", version("sterna")
    proto.doc_string = (
        f"Language model, {kind} graph, in float32: it follows the float model of a checkpoint, "
        f"and is not one of the integer graphs.")
    properties = {
        "sterna.format": FLOAT_FORMAT,
        "sterna.version": version("sterna"),
        "sterna.torch_version": str(torch.__version__),
        "sterna.graph": kind,
        "sterna.arithmetic": "float32, of a float model: not the integers of a quantised one",
        "sterna.config": json.dumps(model.config.to_json(), sort_keys=True),
        "sterna.states": json.dumps([each.to_json() for each in tensors]),
        "sterna.longest": json.dumps(model.longest),
    }
    if kind == "sequence":
        properties["sterna.layers_in_a_loop"] = json.dumps(list(looped))
    onnx.helper.set_model_props(proto, properties)


# Inputs and outputs


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of the state of a model: its layer and position there, its initial value for one
    text, ``[1, ...]``, and the axes that grow with the text."""

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
        """The length of every axis, or its name if it has no fixed length."""
        return tuple(
            "batch" if axis == 0 else f"{self.name}.axis{axis}" if axis in self.growing else size
            for axis, size in enumerate(self.start.shape))

    def to_json(self) -> dict[str, object]:
        """Its description in the metadata of a graph."""
        return {"name": self.name, "dtype": str(self.start.dtype).removeprefix("torch."),
                "axes": list(self.axes), "at_start": ["batch", *self.start.shape[1:]]}


def flat(state: ModelState) -> tuple[Tensor, ...]:
    """The tensors of a state in layer order."""
    return tuple(each for layer in state for each in layer)


def _nested(tensors: Sequence[Tensor], like: ModelState) -> ModelState:
    """Inverse of :func:`flat`."""
    rest = iter(tensors)
    return tuple(tuple(next(rest) for _ in layer) for layer in like)


@torch.no_grad()
def state_tensors(
    model: LanguageModel,
) -> tuple[list[StateTensor], Tensor, tuple[Tensor, ...]]:
    """The tensors of the state of a model, and an example to trace it with: tokens
    ``[batch, time]`` and the state before them."""
    end = model.longest
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
    return tensors, tokens[:, after:after + time], tuple(seen[after] for seen in history)


_ANY = torch.export.Dim.DYNAMIC
_MANY, _FEW = 1 << 30, 4
"""Practically any number of tokens; tokens for finding loops, which are unrolled."""


class ExportError(ValueError):
    """A mixer cannot be expressed as a graph; the message says which and why."""


class _Graph(nn.Module):
    """Tokens ``[batch]`` to logits ``[batch, vocab]``, by a step; or ``[batch, time]`` to
    ``[batch, time, vocab]``."""

    def __init__(self, model: LanguageModel, kind: str) -> None:
        super().__init__()
        self.model, self.form, self.by_step = model, model.initial_state(1), kind == "step"

    def forward(
        self, tokens: Tensor, state: tuple[Tensor, ...],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        run = self.model.step if self.by_step else self.model
        logits, after = run(tokens, _nested(state, self.form))
        return logits, flat(after)


class _Scanned(nn.Module):
    """A mixer with its ``step`` in a loop as ``forward``, kept as a loop in the graph."""

    def __init__(self, mixer: TokenMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        def turn(before: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
            y, after = self.mixer.step(x, tuple(before))
            return [each.clone() for each in after], y.clone()

        after, y = scan(turn, list(state), x)
        return y, tuple(after)


def trace(
    model: LanguageModel, kind: str, tensors: Sequence[StateTensor], tokens: Tensor,
    state: tuple[Tensor, ...],
) -> tuple[torch.export.ExportedProgram, list[int]]:
    """One of :data:`GRAPHS`, for any batch and number of tokens, and the layers that loop.

    A mixer that cannot be traced for any number of tokens, for example because it loops over them
    in Python, becomes a loop over its step if its state does not grow.
    """
    # Without gradients: a loop in a graph has none.
    model = copy.deepcopy(model).eval().requires_grad_(False)
    end, graph = model.longest, _Graph(model, kind)
    axes, looped = {0: _ANY, 1: _ANY}, []
    if graph.by_step:
        tokens, axes = tokens[:, 0], {0: _ANY}
    else:
        looped = _put_loops(model, tensors, tokens, state)
    try:
        return _traced(
            graph, (tokens, state), (axes, _any_length(tensors)), end), looped
    except Exception as error:
        what = "a step of " if graph.by_step else ""
        raise ExportError(
            f"torch.export cannot trace {what}{model.config.mixer}: {_reason(error)}") from error


def _put_loops(
    model: LanguageModel, tensors: Sequence[StateTensor], tokens: Tensor,
    state: tuple[Tensor, ...],
) -> list[int]:
    """Replace the mixers that cannot be traced for any number of tokens; return their layers."""
    states = _nested(state, model.initial_state(1))
    x = model.embedding(tokens[:, :_FEW].t())
    reasons: dict[Choice, Exception | None] = {}
    looped = []
    for layer, (block, (choice, _)) in enumerate(
            zip(model.blocks(), model.config.mixers(), strict=True)):
        own = [each for each in tensors if each.layer == layer]
        if choice not in reasons:
            try:
                _traced(block.mixer, (x, states[layer]),
                        ({0: _ANY, 1: _ANY}, _any_length(own)), block.mixer.longest)
                reasons[choice] = None
            except Exception as error:
                reasons[choice] = error
        reason = reasons[choice]
        if reason is None:
            continue
        if any(each.growing for each in own):
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
    """Trace a module with free axes of any length, or of at most ``end`` if given."""
    # As torch.onnx.export does, so that axes of length 0 and 1 are not special.
    alike = _config.patch(backed_size_oblivious=True)   # type: ignore[attr-defined]  # dynamic
    with quietly(), torch.no_grad(), alike:
        program = torch.export.export(module, args, dynamic_shapes=axes, strict=False)
    for allowed in program.range_constraints.values():
        # A branch on the sequence length is fixed by the example.
        branches = [f"{side} than {limit}" for side, limit, there in (
            ("fewer", allowed.lower, allowed.lower > 2),
            ("more", allowed.upper, allowed.upper < (_MANY if end is None else end - 1))) if there]
        if branches:
            raise ExportError(f"it does something else for {' and for '.join(branches)} tokens")
    return program


def _any_length(tensors: Sequence[StateTensor]) -> tuple[dict[int, Any], ...]:
    return tuple({0: _ANY, **dict.fromkeys(each.growing, _ANY)} for each in tensors)


def _reason(error: Exception) -> str:
    if isinstance(error, ExportError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress messages of torch's exporter: deprecations, missing packages."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    vars(_trace)["print"] = lambda *_, **__: None   # the unfinished graph
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        vars(_trace).pop("print", None)
