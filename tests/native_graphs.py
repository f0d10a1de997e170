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

from sterna.export.native.graph import DOMAIN, layer_tables, profile_numbers
from sterna.export.native.ops import OPS_SOURCES, register_ops
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.file import pack_trits


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
    """What a layer looks up by z: the gates, or the SiLU."""
    gates, silu = layer_tables(model.profile, model.sigmoid.astype(np.int64))
    return gates if operator == "MlgruLayer" else silu


def layer_tensors(model: QuantizedModel, operator: str, layer: int = 0) -> dict[str, TensorProto]:
    """The initialisers of an operator, in the order of its inputs."""
    at = "" if operator == "Head" else f"layer{layer}.{operator.removesuffix('Layer').lower()}"
    tensors = []
    for group, parts in _PARTS[operator].items():
        own = [model.projections[f"{at}.{part}" if at else part] for part in parts]
        tensors += [int2(f"{group}.weight", np.concatenate([each.weight for each in own]).T), *(
            numpy_helper.from_array(np.array(values), f"{group}.{part}") for part, values in (
                ("k", [float(each.k) for each in own]),
                ("scale", [2.0 ** -each.shift for each in own]),
                ("bias", np.concatenate([each.bias for each in own]).astype(np.int32))))]
    table = {"MlgruLayer": "gates", "GluLayer": "silu"}.get(operator)
    if table:
        tensors.append(numpy_helper.from_array(layer_table(model, operator), table))
    # An input that the operators do not read.
    tensors.append(numpy_helper.from_array(np.zeros((1, 1)), "reciprocals"))
    return {each.name: each for each in tensors}


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
        opset_imports=[helper.make_opsetid("", 25), helper.make_opsetid(DOMAIN, 1)],
        ir_version=13)


def session(proto: onnx.ModelProto, library: Any = None) -> Any:
    """A session of one thread, with the operators of ``library`` unless it is None."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if library is not None:
        register_ops(options, library)
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def planted_sources(folder: Path, name: str, right: str, wrong: str) -> Path:
    """A copy of the operators' sources with one text replaced in one file, for `build_ops`."""
    shutil.copytree(OPS_SOURCES, folder)
    text = (folder / name).read_text()
    assert right in text
    (folder / name).write_text(text.replace(right, wrong))
    return folder
