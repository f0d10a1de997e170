"""Small graphs of single operators, as the exact forms contain them, and their tables."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from sterna.export.graph.builder import DOMAIN, TensorStore, opset_imports
from sterna.export.graph.metadata import profile_numbers
from sterna.export.graph.products import store_trits
from sterna.export.native.ops import OPS_SOURCES, register_ops, with_ops
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.file import pack_trits
from sterna.model.quantized.integer import rs, saturate, sigmoid


def int2(name: str, values: np.ndarray) -> TensorProto:
    """A 2-bit initialiser."""
    return TensorProto(name=name, data_type=TensorProto.INT2, dims=values.shape,
                       raw_data=pack_trits(values).tobytes())


PORTS = {"MlgruLayer": (["x", "h"], ["y", "h_next"]), "GluLayer": (["x"], ["y"]),
         "Head": (["x"], ["logits"])}
"""Inputs and outputs of the operators, beside what is stored."""
_PARTS = {
    "MlgruLayer": {"fcg": ("f", "c", "g"), "out": ("out",)},
    "GluLayer": {"gate_up": ("gate", "up"), "down": ("down",)}, "Head": {"head": ("head",)}}


def layer_table(model: QuantizedModel, operator: str) -> np.ndarray:
    """What a layer looks up by z, float64: forget gate, candidate and output gate; or the SiLU."""
    profile = model.profile
    z = np.arange(profile.z.min, profile.z.max + 1)
    s = sigmoid(z, model.sigmoid.astype(np.int64), profile.z.min, profile.sigmoid_step_bits)
    if operator == "MlgruLayer":
        c = saturate(rs(z * s, profile.candidate_shift), profile.h)
        return np.concatenate([
            s * 2.0 ** -profile.sigmoid_frac, c, s * 2.0 ** -profile.output_shift])
    return rs(z * s, profile.sigmoid_frac) * 2.0 ** -profile.product_shift


def layer_tensors(model: QuantizedModel, operator: str, layer: int = 0) -> dict[str, TensorProto]:
    """The initialisers of an operator, in the order of its inputs."""
    at = "" if operator == "Head" else f"layer{layer}.{operator.removesuffix('Layer').lower()}"
    store = TensorStore()
    for group, parts in _PARTS[operator].items():
        store.store_projection(group, [
            model.projections[f"{at}.{part}" if at else part] for part in parts], store_trits)
    table = {"MlgruLayer": "gates", "GluLayer": "silu"}.get(operator)
    if table:
        store.store(table, layer_table(model, operator))
    # An input of the function bodies that the operators do not read.
    store.store("reciprocals", np.zeros((1, 1)))
    return {each.name: each for each in store.initializers}


def layer_graph(
    model: QuantizedModel, operator: str, layer: int = 0,
    numbers: Mapping[str, float] | None = None, **changed: TensorProto,
) -> onnx.ModelProto:
    """A model of one operator; ``numbers`` in place of its profile's, and tensors by name."""
    return graph(
        operator, *PORTS[operator],
        list((layer_tensors(model, operator, layer) | changed).values()),
        profile_numbers(model.profile) if numbers is None else numbers)


def graph(
    operator: str, inputs: Sequence[str], outputs: Sequence[str],
    tensors: Sequence[TensorProto], attributes: Mapping[str, float] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of one node; its inputs and outputs are float64 of any shape."""
    node = helper.make_node(
        operator, [*inputs, *(each.name for each in tensors)], list(outputs), domain=DOMAIN,
        **(attributes or {}))

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.DOUBLE, None)

    return helper.make_model(
        helper.make_graph([node], operator, [info(name) for name in inputs],
                          [info(name) for name in outputs], list(tensors)),
        functions=list(functions), opset_imports=opset_imports(), ir_version=13)


def session(proto: onnx.ModelProto, library: Any = None) -> Any:
    """A session of one thread, with the operators of ``library`` unless it is None."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if library is not None:
        register_ops(options, library)
        proto = with_ops(proto)
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def planted_sources(folder: Path, name: str, right: str, wrong: str) -> Path:
    """A copy of the operators' sources with one text replaced in one file, for `build_ops`."""
    shutil.copytree(OPS_SOURCES, folder)
    text = (folder / name).read_text()
    assert right in text
    (folder / name).write_text(text.replace(right, wrong))
    return folder
