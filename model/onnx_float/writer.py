"""Writing the ONNX graphs of a float model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import onnx
import torch

from sterna.model.files import write_atomically
from sterna.model.onnx_float.operators import (
    Translations,
    has_linear_attention,
    recurrences_for_graphs,
    translations,
)
from sterna.model.onnx_float.trace import (
    ExportError,
    StateTensor,
    quietly,
    shortest_end,
    state_tensors,
    trace_sequence,
    trace_step,
)
from sterna.model.stack.language_model import LanguageModel

__all__ = ["FLOAT_FORMAT", "GRAPHS", "export_float", "float_graph"]

FLOAT_FORMAT = "sterna float onnx"
"""What the metadata of such a graph say that it is."""
GRAPHS = ("step", "sequence")
"""The graphs of a model, by the names of their files."""


def export_float(
    model: LanguageModel, folder: str | Path, *, graphs: Sequence[str] = GRAPHS,
    use_linear_attention: bool = False,
) -> list[Path]:
    """Write ``step.onnx`` and ``sequence.onnx`` of a float model of any causal mixers.

    Parameters
    ----------
    model
        The model; its projections may be ternary or float.
    folder
        Where the files go; it is made if it does not exist.
    graphs
        Which of :data:`GRAPHS` to write.
    use_linear_attention
        Whether recurrences that onnxruntime's operator ``LinearAttention`` can compute use it, in
        place of ``Scan`` or of a sum in chunks. Such a graph runs in onnxruntime only.

    Returns
    -------
    list of Path
        The files, in the order of ``graphs``.

    Raises
    ------
    ValueError
        If there is no such graph, a mixer cannot be exported, or onnxruntime does not have the
        operator.
    OSError
        If the folder cannot be written; nothing is then left half-written.
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
    table = translations()      # before the work: it needs a package of its own
    tensors, example = state_tensors(model)
    looped: list[int] = []
    with recurrences_for_graphs(use_linear_attention=use_linear_attention):
        if kind == "step":
            program = trace_step(model, tensors, example)
        else:
            program, looped = trace_sequence(model, tensors, example)
    proto = _translated(program, tensors, table)
    _name_axes(proto.graph, tensors)
    _describe(proto, model, kind, tensors, looped)
    onnx.checker.check_model(proto, full_check=False)
    return proto


def _translated(
    program: torch.export.ExportedProgram, tensors: Sequence[StateTensor], table: Translations,
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
        # Shapes of inner values, traces of the sources: where and how it was made.
        del graph.value_info[:], graph.metadata_props[:]
        for node in graph.node:
            del node.metadata_props[:]
        for value in (*graph.input, *graph.output, *graph.initializer):
            del value.metadata_props[:]
    del proto.metadata_props[:]
    return proto


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _name_axes(graph: onnx.GraphProto, tensors: Sequence[StateTensor]) -> None:
    """Give the free axes of inputs names that say what they are, and those of outputs by them."""
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
        "sterna.longest": json.dumps(shortest_end(model)),
    }
    if kind == "sequence":
        properties["sterna.layers_in_a_loop"] = json.dumps(list(looped))
    onnx.helper.set_model_props(proto, properties)
