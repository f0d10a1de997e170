"""Graphs for the compiled operator, models that run on it, and faulty sources."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from sterna.export.native.ops import OPS_SOURCES, register_ops, with_ops
from sterna.model.profile import mantissa_and_shift, sigmoid_table
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.hgrn_bit import HgrnBitShape, Widths, hgrn_bit
from sterna.model.quantized.records import Embedding, Project


def random_hgrn_bit(
    shape: HgrnBitShape, widths: Widths, seed: int = 0, gain: float = 1.5,
) -> QuantizedModel:
    """A random model of the architecture of the published checkpoints; ``gain`` as in
    :func:`sterna.random_model`."""
    rng = np.random.default_rng(seed)
    gains: dict[str, np.ndarray] = defaultdict(lambda: rng.uniform(0.2, 1.0, shape.d))
    for layer in range(shape.layers):
        gains[f"layer{layer}.glu.down.w"] = rng.uniform(0.2, 1.0, shape.dff)
    made = hgrn_bit(shape, widths, gains, defaultdict(lambda: 3.0))
    projections = {}
    for record in made.records:
        if isinstance(record, Project):
            k, shift = mantissa_and_shift(
                made.scales[record.name] / record.columns**0.5 * gain, widths.mantissa_bits,
                widths.scale_bits)
            bias = rng.integers(-9, 10, record.rows, dtype=np.int32)
            weight = rng.integers(-1, 2, (record.rows, record.columns), dtype=np.int8)
            projections[record.name] = Projection(weight, bias, k, shift)
    first = made.records[0]
    assert isinstance(first, Embedding)
    embedding = rng.integers(first.output.min, first.output.max + 1, (first.vocab, first.width))
    table = sigmoid_table(widths.table, widths.sigmoid_frac, widths.sigmoid_segments)
    return QuantizedModel(
        tuple(made.records), widths.name, projections, embedding.astype(np.int32),
        np.array(table, dtype=np.int32), vectors=made.vectors)


def session(proto: onnx.ModelProto, library: Path) -> Any:
    """A session of two threads on the operators of ``library``."""
    return session_of(with_ops(proto), library)


def session_of(proto: onnx.ModelProto, library: Path) -> Any:
    """The same of a graph that :func:`with_ops` made already."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
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
