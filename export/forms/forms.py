"""The forms of a graph: one model, spelled for different runtimes and needs, and its files."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import onnx

from sterna.export.exact.lookup import build_lookup_graph
from sterna.export.exact.traced import build_graph
from sterna.export.float.graph import build_float
from sterna.export.forms.selftest import record
from sterna.export.graph.metadata import Form, GraphKind, describe
from sterna.export.graph.products import FLOAT, INTEGER, PINNED
from sterna.model.checks import one_of
from sterna.model.files import write_atomically
from sterna.model.quantized import QuantizedModel

__all__ = ["Form", "GraphChoice", "build", "export_onnx", "sequence_path", "serialize"]

_PRODUCTS = {Form.EXACT: INTEGER, Form.EXACT_2BIT: PINNED, Form.WEB: FLOAT}


def build(
    model: QuantizedModel, form: Form | str, kind: GraphKind | str,
) -> onnx.ModelProto:
    """Build one graph of ``model``, with metadata and a test that it carries along.

    Inputs: ``token`` int64 ``[batch]`` or ``tokens`` int64 ``[batch, length]``, and
    ``state`` ``[layers, batch, d]``. Outputs: ``logits`` ``[batch, vocab]`` or ``[batch,
    length, vocab]`` and ``state_out``. Logits and state are int32, in the float forms
    float32 in real units.

    Raises
    ------
    ValueError
        If the form or the kind is unknown, or the model does not fit it.
    """
    form, kind = one_of("form", form, Form), one_of("kind", kind, GraphKind)
    if form is Form.TRACED or (form is Form.EXACT and not model.is_own):
        proto = build_graph(model, kind)
    elif form.exact:
        proto = build_lookup_graph(model, kind, _PRODUCTS[form])
    else:
        proto = build_float(model, kind, packed=form is Form.FAST)
    record(proto, model, describe(proto, model, kind, form))
    return proto


class GraphChoice(Enum):
    """Which graphs to write."""

    STEP = "step"
    SEQUENCE = "sequence"
    BOTH = "both"


def sequence_path(path: str | Path) -> Path:
    """Where the sequence graph goes that belongs to the step graph at ``path``.

    >>> sequence_path("build/m.onnx").name
    'm.sequence.onnx'
    """
    return Path(path).with_suffix(".sequence.onnx")


def export_onnx(
    model: QuantizedModel, path: str | Path, *, form: Form | str = Form.EXACT,
    graphs: GraphChoice | str = GraphChoice.BOTH,
) -> list[Path]:
    """Write the ONNX graphs of ``model`` in one form.

    Parameters
    ----------
    model
        The quantised model.
    path
        Where the step graph goes; it must end in ``.onnx``. The sequence graph goes
        beside it (:func:`sequence_path`).
    form
        How the arithmetic is spelled.
    graphs
        Which of the two to write.

    Returns
    -------
    list of Path
        The files written. The same model gives the same bytes.

    Raises
    ------
    ValueError
        If the name does not end in ``.onnx``, there is no such form or choice of graphs, or
        the model does not fit the form.
    OSError
        If the folder is missing, read-only or full; nothing is then left half-written.
    """
    path = check_graph_name(path)
    form, graphs = one_of("form", form, Form), one_of("graphs", graphs, GraphChoice)
    places = {GraphKind.STEP: path, GraphKind.SEQUENCE: sequence_path(path)}
    if graphs is not GraphChoice.BOTH:
        kind = GraphKind(graphs.value)
        places = {kind: places[kind]}
    # Everything is built before anything is written.
    files = {place: serialize(build(model, form, kind)) for kind, place in places.items()}
    return [write_atomically(place, data) for place, data in files.items()]


def check_graph_name(path: str | Path) -> Path:
    """The name of an ONNX file as a path; ValueError if it does not end in ``.onnx``."""
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"{path}: the name of an ONNX file must end in .onnx")
    return path


def serialize(proto: onnx.ModelProto) -> bytes:
    """Check a graph by onnx's own checker; return its bytes, the same each time."""
    onnx.checker.check_model(proto, full_check=True)
    return bytes(proto.SerializeToString(deterministic=True))
