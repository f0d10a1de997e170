"""The forms of a graph, one model for different runtimes and needs, and its file."""

from __future__ import annotations

from pathlib import Path

import onnx

from sterna.export.forms.selftest import record
from sterna.export.graph.exact import build_exact
from sterna.export.graph.fast import build_fast
from sterna.export.graph.metadata import Form, describe
from sterna.model.checks import one_of
from sterna.model.files import write_atomically
from sterna.model.quantized import QuantizedModel

__all__ = ["Form", "build", "check_graph_name", "export_onnx", "serialize"]


def build(
    model: QuantizedModel, form: Form | str = Form.EXACT, *, one_token: bool = False,
) -> onnx.ModelProto:
    """Build the graph of ``model``, with metadata and a self-test.

    Inputs: ``tokens`` int64 ``[batch, length]``; ``state`` ``[layers, batch, d]``, zeros at the
    start of a text; ``logits_from`` int64 ``[1]``, the first token of the call to give logits for,
    negative from its end. Outputs: ``logits`` ``[batch, tokens wanted, vocab]`` and ``state_out``.
    Logits and state are int32, in the form ``fast`` float32 in real units. With ``one_token`` the
    length is 1, and the graph has no ``logits_from`` and no loop.

    A network takes ``frames`` int32 ``[batch, length, channels]`` and ``results_from``, and gives
    ``results`` int32.

    Raises
    ------
    ValueError
        If the form is unknown or does not support the model.
    """
    form = one_of("form", form, Form)
    if model.is_network and form is not Form.EXACT:
        raise ValueError(
            f"the form {form} is for language models, and this is a network over {model.entry}: "
            f"take exact")
    if form.exact:
        proto = build_exact(model, one_token=one_token)
    else:
        proto = build_fast(model, one_token=one_token)
    record(proto, model, describe(proto, model, form, one_token))
    return proto


def export_onnx(
    model: QuantizedModel, path: str | Path, *, form: Form | str = Form.EXACT,
    one_token: bool = False,
) -> Path:
    """Write the ONNX graph of ``model`` in one form, as from :func:`build`.

    Returns the path; the same model gives the same bytes.

    Raises
    ------
    ValueError
        If the name does not end in ``.onnx``, or the form is unknown or does not support the model.
    OSError
        If the folder is missing, read-only or full; nothing is then left half-written.
    """
    path = check_graph_name(path)
    return write_atomically(path, serialize(build(model, form, one_token=one_token)))


def check_graph_name(path: str | Path) -> Path:
    """The name of an ONNX file as a path; ValueError if it does not end in ``.onnx``."""
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"{path}: the name of an ONNX file must end in .onnx")
    return path


def serialize(proto: onnx.ModelProto) -> bytes:
    """Check a graph with onnx's checker; return its bytes, which are reproducible."""
    onnx.checker.check_model(proto, full_check=True)
    return bytes(proto.SerializeToString(deterministic=True))
