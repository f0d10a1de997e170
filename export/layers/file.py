"""The ONNX file of one layer: writing it, its metadata, and its self-test.

The test is a few vectors from a formula, so that they take no space in the file, and the SHA-256
of the integers that the reference gives for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from sterna.export.forms.forms import check_graph_name, serialize
from sterna.export.forms.selftest import (
    FORMULA,
    SELF_TEST,
    check_checksum,
    check_integers,
    digest_of,
    formula_values,
    get_property,
    running_test,
    seal,
    set_property,
)
from sterna.export.graph.file import OnnxFile
from sterna.export.graph.metadata import LAYER_FORMAT, OnnxFileError
from sterna.export.layers.graph import build_layer, build_matrix
from sterna.export.runtime.runtime import open_session
from sterna.model.files import check_path, write_atomically
from sterna.model.layers import Layer, MatrixLayer
from sterna.model.layers.layer import LayerOrWeights, layer_of, matrix_layer_of
from sterna.model.layers.matrix import ACT_BITS, Ternary
from sterna.model.profile import FixedPoint, NumericProfile

__all__ = ["LAYER_FORMAT_VERSION", "check_layer", "describe_layer", "export_layer",
           "export_matrix"]

LAYER_FORMAT_VERSION = 1
_BATCH, _STEPS = 2, 4
"""Vectors in parallel, and in sequence if there is a recurrence."""


def export_matrix(
    weights: MatrixLayer | Ternary, path: str | Path, *, output: FixedPoint | None = None,
) -> Path:
    """Write a ternary matrix as an ONNX graph: 8-bit activations in, exact integers out.

    Input ``acts`` int8 ``[batch, columns]``. Output ``sums`` int32 ``[batch, rows]``, or with
    an output format ``y`` int32 ``[batch, rows]``: ``sum * scale + bias`` in that format,
    rounded half up and saturated.

    Parameters
    ----------
    weights
        -1, 0 and 1, ``[rows, columns]``; with a scale or a bias a ``TernaryMatrix``; or a
        ``MatrixLayer``.
    path
        The file; it must end in ``.onnx``.
    output
        Format of the results, 2 to 23 bits; None for the sums.

    Returns
    -------
    The path. The same weights give the same bytes.

    Raises
    ------
    ValueError
        If the weights are not ternary, a scale or a bias has no output format, the scale
        cannot be represented, or the matrix has more than 8,421,504 columns, the proven limit
        of the 32-bit accumulator of ``MatMulInteger``.
    OSError
        If the file cannot be written; nothing is then left half-written.
    """
    return _write(matrix_layer_of(weights, output), path)


def export_layer(
    layer_or_weights: LayerOrWeights, path: str | Path, *,
    profile: NumericProfile | str | None = None, output: FixedPoint | None = None,
) -> Path:
    """Write a layer as an ONNX graph that computes its integers.

    Input ``x`` int32 ``[batch, columns]``, and ``state0``, ``state1`` ... int32 ``[batch, d]``,
    one for each MLGRU inside, zeros at the start. Output ``y`` int32 ``[batch, rows]``, and
    ``state0_out`` ... for the next call. A call advances every sequence by one vector.

    Parameters
    ----------
    layer_or_weights
        A layer of :mod:`sterna.model.layers`, or the weights of a BitLinear.
    path
        The file; it must end in ``.onnx``.
    profile
        Numeric formats of a BitLinear from weights, or their name, None for S16; not for a layer,
        which has its own.
    output
        Format of its results, 2 to 23 bits; None for ``profile.z``.

    Returns
    -------
    The path. The same layer gives the same bytes.

    Raises
    ------
    ValueError
        If the weights are not ternary, formats are given for a layer, the scale cannot be
        represented, or a matrix has more columns than the graph is proven exact for:
        8,421,504 with S16 and C12.
    OSError
        If the file cannot be written; nothing is then left half-written.
    """
    return _write(layer_of(layer_or_weights, profile=profile, output=output), path)


def _write(layer: Layer | MatrixLayer, path: str | Path) -> Path:
    check_path("path", path)
    path = check_graph_name(path)
    proto = build_matrix(layer) if isinstance(layer, MatrixLayer) else build_layer(layer)
    describe_layer(proto, layer)
    return write_atomically(path, serialize(proto))


def describe_layer(proto: onnx.ModelProto, layer: Layer | MatrixLayer) -> None:
    """Store metadata, the test and the checksum of the graph of ``layer`` in ``proto``."""
    properties = {
        "sterna.format": LAYER_FORMAT,
        "sterna.format_version": str(LAYER_FORMAT_VERSION),
        "sterna.version": version("sterna"),
        "sterna.layer": type(layer).__name__,
    }
    if isinstance(layer, Layer):
        properties["sterna.profile"] = layer.profile.name
        properties["sterna.formats"] = json.dumps(asdict(layer.profile), sort_keys=True)
    helper.set_model_props(proto, properties)
    proto.producer_version = properties["sterna.version"]
    proto.doc_string = (
        f"{properties['sterna.layer']} of {layer.columns} values to {layer.rows}: equal bit for "
        f"bit to Sterna's integer reference.")
    bits = layer.bits if isinstance(layer, Layer) else ACT_BITS
    recurrent = isinstance(layer, Layer) and layer.states
    shape = (_BATCH, _STEPS if recurrent else 1, layer.columns)
    x = formula_values(shape, bits)
    y, states = layer.run(x) if isinstance(layer, Layer) else (layer(x), ())
    set_property(proto, SELF_TEST, json.dumps({
        "shape": shape, "bits": bits, "values": FORMULA, "sha256": digest_of(y, *states)}))
    seal(proto)


def check_layer(source: str | Path | onnx.ModelProto, *, session: Any = None) -> None:
    """Run the self-test in the file of a layer.

    Parameters
    ----------
    source
        The file, or the graph itself.
    session
        An ``onnxruntime.InferenceSession`` of it, with the providers and options to test; None
        for one on the CPU.

    Raises
    ------
    OnnxFileError
        If the file cannot be read, is not of a layer, was edited, or onnxruntime is too old.
    SelfTestError
        If the integers differ from the reference, or the runtime gives none.
    """
    file = OnnxFile.read(source)
    with file.named():
        _check(file, session)


def _check(file: OnnxFile, session: Any) -> None:
    proto = file.proto
    if get_property(proto, "sterna.format") != LAYER_FORMAT:
        raise OnnxFileError("not the ONNX graph of a layer made by Sterna")
    if get_property(proto, "sterna.format_version") != str(LAYER_FORMAT_VERSION):
        raise OnnxFileError(
            f"the graph has format version {get_property(proto, 'sterna.format_version')!r}, this "
            f"Sterna reads version {LAYER_FORMAT_VERSION}; export it again")
    check_checksum(file)
    test: Mapping[str, Any] = json.loads(get_property(proto, SELF_TEST))
    x = formula_values(test["shape"], test["bits"])
    session = open_session(file) if session is None else session
    with running_test():
        both, alone = _run(session, x), _run(session, x[:1])
    check_integers(
        test["sha256"], both, ((one, two[:1]) for one, two in zip(alone, both, strict=True)),
        "one vector alone does not give the integers that it gives beside another")


def _run(session: Any, x: np.ndarray) -> list[np.ndarray]:
    """Outputs ``[batch, steps, rows]`` of the vectors, and the last states."""
    entry, *kept = session.get_inputs()
    states = [np.zeros((len(x), each.shape[1]), dtype=np.int32) for each in kept]
    number = np.int8 if entry.type == "tensor(int8)" else np.int32
    rows = []
    for step in range(x.shape[1]):
        feeds = {entry.name: x[:, step].astype(number)} | {
            each.name: state for each, state in zip(kept, states, strict=True)}
        y, *states = session.run(None, feeds)
        rows.append(y)
    return [np.stack(rows, axis=1), *states]
