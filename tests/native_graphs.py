"""Small graphs of single operators, as the exact forms contain them, and their tables."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sterna.export.graph.builder import DOMAIN, TensorStore, opset_imports
from sterna.export.graph.products import store_trits
from sterna.export.native.ops import OPS_SOURCES, register_ops, with_ops
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.file import pack_trits
from sterna.model.quantized.integer import rs, saturate, sigmoid


def int2(name: str, values: np.ndarray) -> TensorProto:
    """A 2-bit initialiser."""
    return TensorProto(name=name, data_type=TensorProto.INT2, dims=values.shape,
                       raw_data=pack_trits(values).tobytes())


def projection(name: str, parts: Sequence[Projection]) -> list[TensorProto]:
    """Weight, k, scale and bias of a projection, merged if there are several parts."""
    store = TensorStore()
    store.store_projection(name, parts, store_trits)
    return store.initializers


def gate_table(model: QuantizedModel) -> np.ndarray:
    """Forget gate, candidate and output gate of every z, float64 ``[3 * 2**z_bits]``."""
    profile = model.profile
    z = np.arange(profile.z.min, profile.z.max + 1)
    s = sigmoid(z, model.sigmoid.astype(np.int64), profile)
    c = saturate(rs(z * s, profile.candidate_shift), profile.h)
    return np.concatenate([
        s * 2.0 ** -profile.sigmoid_frac, c, s * 2.0 ** -profile.output_shift])


def silu_table(model: QuantizedModel) -> np.ndarray:
    """``rs(z * sigmoid(z), Ff) * 2^-product_shift`` of every z, float64 ``[2**z_bits]``."""
    profile = model.profile
    z = np.arange(profile.z.min, profile.z.max + 1)
    s = sigmoid(z, model.sigmoid.astype(np.int64), profile)
    return rs(z * s, profile.sigmoid_frac) * 2.0 ** -profile.product_shift


RECIPROCALS = numpy_helper.from_array(np.zeros((1, 1)), "reciprocals")
"""An input of the function bodies that the operators do not read."""


def mlgru_tensors(model: QuantizedModel, layer: int) -> list[TensorProto]:
    """The initialisers of ``MlgruLayer``, in the order of its inputs."""
    at = f"layer{layer}.mlgru"
    return [
        *projection("fcg", [model.projections[f"{at}.{part}"] for part in "fcg"]),
        *projection("out", [model.projections[f"{at}.out"]]),
        numpy_helper.from_array(gate_table(model), "gates"), RECIPROCALS]


def glu_tensors(model: QuantizedModel, layer: int) -> list[TensorProto]:
    """The initialisers of ``GluLayer``, in the order of its inputs."""
    at = f"layer{layer}.glu"
    return [
        *projection("gate_up", [model.projections[f"{at}.{part}"] for part in ("gate", "up")]),
        *projection("down", [model.projections[f"{at}.down"]]),
        numpy_helper.from_array(silu_table(model), "silu"), RECIPROCALS]


def head_tensors(model: QuantizedModel) -> list[TensorProto]:
    """The initialisers of ``Head``, in the order of its inputs."""
    return [*projection("head", [model.projections["head"]]), RECIPROCALS]


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
