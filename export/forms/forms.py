"""The forms of a graph: one model, spelled for different runtimes and needs."""

from __future__ import annotations

import onnx

from sterna.export.exact.lookup_graph import build_lookup_graph
from sterna.export.exact.traced import build_graph
from sterna.export.float.graph import build_float
from sterna.export.forms.selftest import record
from sterna.export.graph.metadata import Form, GraphKind, describe
from sterna.export.graph.products import FLOAT, INTEGER, PINNED
from sterna.model.checks import one_of
from sterna.model.quantized import QuantizedModel

__all__ = ["Form", "build"]

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
    if form is Form.TRACED:
        proto = build_graph(model, kind)
    elif form.exact:
        proto = build_lookup_graph(model, kind, _PRODUCTS[form])
    else:
        proto = build_float(model, kind, packed=form is Form.FAST)
    record(proto, model, describe(proto, model, kind, form))
    return proto
