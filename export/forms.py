"""The forms of a graph: one model, spelled for different runtimes and needs."""

from __future__ import annotations

from enum import Enum

import onnx
from onnx import helper

from sterna.export.float_graph import build_float
from sterna.export.lean import build_lean
from sterna.export.metadata import GraphInfo, GraphKind
from sterna.export.products import FLOAT, INTEGER, PINNED
from sterna.export.selftest import record
from sterna.export.traced import build_graph
from sterna.model.quantized import QuantizedModel

__all__ = ["Form", "build"]

_PRODUCTS = {"exact": INTEGER, "exact-2bit": PINNED, "web": FLOAT}


class Form(Enum):
    """How the arithmetic of a graph is spelled."""

    EXACT = "exact"
    """Equal to the integer reference on any runtime: 8-bit integer products."""
    EXACT_2BIT = "exact-2bit"
    """Equal to it where onnxruntime's 2-bit kernels do what they do on x86; tested at load."""
    FAST = "fast"
    """Float with 2-bit products: close to the reference, and the fastest without a library."""
    WEB = "web"
    """Equal to it, with products in float32: the fastest exact one under WebAssembly."""
    TRACED = "traced"
    """Equal to it, with every tensor of the reference as a value of the same name."""
    FLOAT32 = "float32"
    """Float with dense matrices: what the other forms are measured against."""

    @property
    def exact(self) -> bool:
        """Whether logits and state are the integers of the reference."""
        return self not in (Form.FAST, Form.FLOAT32)


def build(model: QuantizedModel, form: Form | str, kind: GraphKind) -> onnx.ModelProto:
    """Build one graph of ``model``, with metadata and a test that it carries along.

    Inputs: ``token`` int64 ``[batch]`` or ``tokens`` int64 ``[batch, length]``, and
    ``state`` ``[layers, batch, d]``. Outputs: ``logits`` ``[batch, vocab]`` or ``[batch,
    length, vocab]`` and ``state_out``. Logits and state are int32, in the float forms
    float32 in real units.

    Raises
    ------
    ValueError
        If the form is unknown, or the model does not fit it.
    """
    form = Form(form)
    if form is Form.TRACED:
        proto = build_graph(model, kind)
    elif form.exact:
        proto = build_lean(model, kind, _PRODUCTS[form.value])
    else:
        proto = build_float(model, kind, packed=form is Form.FAST)
    info = GraphInfo.of(model, kind, form.value)
    proto.producer_version = info.sterna_version
    proto.doc_string = (
        f"MatMul-free language model, {kind.value} graph, form {form.value}: "
        + ("equal bit for bit to" if form.exact else "an approximation of")
        + f" Sterna's integer reference (profile {model.profile.name}).")
    helper.set_model_props(proto, info.to_properties())
    record(proto, model, info)
    return proto
