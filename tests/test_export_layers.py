"""A layer alone as an ONNX file: the integers of its reference in plain onnxruntime."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from random_matrices import random_matrices

from sterna.export import Session, check_layer, export_layer, export_matrix
from sterna.export.forms.selftest import SelfTestError, seal
from sterna.export.graph.metadata import OnnxFileError
from sterna.export.layers.file import describe_layer
from sterna.export.layers.graph import build_layer, build_matrix, layer_bounds
from sterna.export.runtime.runtime import with_taps
from sterna.model.layers import (
    BitLinearLayer,
    GluLayer,
    InputLayer,
    Layer,
    MatrixLayer,
    MlgruLayer,
    ResidualLayer,
    SequentialLayer,
    TernaryMatrix,
)
from sterna.model.layers.layer import input_bits
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.quantized import Projection
from sterna.model.quantized.bounds import CARRIER_BITS, MOST_COLUMNS
from sterna.model.quantized.taps import TapRecorder

MATRICES = dict(random_matrices())


def _acts(columns: int, bits: int = 8) -> np.ndarray:
    """Both ends, zeros, one value alone, and random ones; int64 ``[6, columns]``."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    random = np.random.default_rng(columns).integers(low, high + 1, (2, columns))
    one = np.zeros(columns, dtype=np.int64)
    one[-1] = 1
    return np.stack([np.full(columns, low), np.full(columns, high), one * 0, one, *random])


def _run(path: Path, inputs: dict[str, np.ndarray], plain: bool = False) -> list[np.ndarray]:
    """By onnxruntime, or if ``plain`` by onnx's own evaluator."""
    runner = ReferenceEvaluator(str(path)) if plain else onnxruntime.InferenceSession(path)
    return runner.run(None, inputs)


@pytest.mark.parametrize("name", MATRICES)
def test_any_matrix_is_exact(name, tmp_path):
    weight, path = MATRICES[name], tmp_path / "m.onnx"
    rng = np.random.default_rng(len(name))
    acts, x = _acts(weight.shape[1]), _acts(weight.shape[1], 16)
    output = FixedPoint(8, 3)
    scaled = TernaryMatrix(
        weight, 4 / np.sqrt(weight.shape[1]) / 64, rng.normal(size=len(weight)))
    by_hand = acts @ weight.T.astype(np.int64)
    for plain in (False, True) if weight.size <= 200 else (False,):
        (sums,) = _run(export_matrix(weight, path), {"acts": acts.astype(np.int8)}, plain)
        assert sums.dtype == np.int32
        np.testing.assert_array_equal(sums, by_hand)
        export_matrix(scaled, path, output=output)
        (y,) = _run(path, {"acts": acts.astype(np.int8)}, plain)
        as_layer = export_matrix(MatrixLayer.of(scaled, output), tmp_path / "layer.onnx")
        assert as_layer.read_bytes() == path.read_bytes()
        np.testing.assert_array_equal(y, MatrixLayer.of(scaled, output)(acts))
        (y,) = _run(export_layer(scaled, path), {"x": x.astype(np.int32)}, plain)
        np.testing.assert_array_equal(y, BitLinearLayer.of(scaled).step(x)[0])


# Layers of all kinds ------------------------------------------------------------------


def _matrix(rows: int, columns: int, seed: int, gain: float = 1.0) -> TernaryMatrix:
    rng = np.random.default_rng(seed)
    return TernaryMatrix(rng.integers(-1, 2, (rows, columns)), 2 * gain / np.sqrt(columns),
                         np.clip(rng.normal(size=rows) * gain, -15, 15))


def _layers(profile: NumericProfile, gain: float = 1.0) -> dict[str, Layer]:
    def mlgru(d: int, columns: int, rows: int, seed: int) -> MlgruLayer:
        fcg = [_matrix(d, columns, seed + i, gain) for i in range(3)]
        return MlgruLayer.of(*fcg, _matrix(rows, d, seed + 3, gain), profile=profile)

    def glu(dff: int, columns: int, rows: int, seed: int) -> GluLayer:
        up = [_matrix(dff, columns, seed + i, gain) for i in range(2)]
        return GluLayer.of(*up, _matrix(rows, dff, seed + 2, gain), profile=profile)

    def linear(rows: int, columns: int, seed: int, output: FixedPoint | None) -> BitLinearLayer:
        return BitLinearLayer.of(
            _matrix(rows, columns, seed, gain), profile=profile, output=output)

    inner = SequentialLayer([linear(9, 12, 50, None), linear(12, 9, 51, profile.x)])
    return {
        "bitlinear": linear(7, 12, 1, None),
        "wide output": linear(7, 12, 1, FixedPoint(23, 12)),
        "mlgru": mlgru(13, 12, 5, 10), "glu": glu(21, 12, 5, 20),
        "twice x": ResidualLayer(ResidualLayer(mlgru(6, 12, 12, 25))),
        "sequence": SequentialLayer([
            ResidualLayer(mlgru(12, 12, 12, 30)), ResidualLayer(glu(20, 12, 12, 40)),
            ResidualLayer(inner), mlgru(8, 12, 12, 60), linear(65, 12, 70, profile.logit)]),
        "frames": SequentialLayer([
            InputLayer.of([0.3, -20, 0.0], [0, -6, 12], [2.0, 1000.0, 0.01], profile=profile),
            ResidualLayer(mlgru(5, 4, 4, 80)), linear(40, 4, 90, None)]),
    }


KINDS = list(_layers(S16))


@pytest.mark.parametrize("gain", [0.5, 30.0], ids=["ordinary", "saturating"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_exact_in_every_tensor(kind, gain, profile):
    layer = _layers(profile, gain)[kind]
    proto = build_layer(layer)
    traced = with_taps(proto)
    session = onnxruntime.InferenceSession(traced.SerializeToString())
    evaluator = ReferenceEvaluator(proto)
    x = _acts(layer.columns, layer.bits)
    state = layer.start(len(x))
    if gain > 1 and kind != "wide output":
        assert {layer.output.min, layer.output.max} <= set(np.ravel(layer.step(x, state)[0]))
    names = [each.name for each in session.get_outputs()]
    for shift in range(3):
        recorder = TapRecorder()
        inputs = {"x": np.roll(x, shift, axis=0).astype(np.int32)} | {
            f"state{i}": h.astype(np.int32) for i, h in enumerate(state)}
        y, state = layer.step(np.roll(x, shift, axis=0), state, recorder)
        got = dict(zip(names, session.run(None, inputs), strict=True))
        by_onnx = dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))
        expected = {"y": y, **{f"state{i}_out": h for i, h in enumerate(state)}}
        for name, value in expected.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)
            np.testing.assert_array_equal(by_onnx[name], value, err_msg=name)
        assert set(names) == {*recorder.names(), *expected}
        for name in recorder.names():
            np.testing.assert_array_equal(got[name], recorder[name][0], err_msg=name)
        for name, bound in layer_bounds(layer).items():
            assert np.abs(recorder[name]).max() <= bound < 1 << CARRIER_BITS, name


def test_a_residual_adds_its_input_to_the_bound(profile):
    layer: Layer = _layers(profile)["twice x"]
    bounds = []
    for _ in range(3):
        bounds.append(list(layer_bounds(layer).values())[-1])
        layer = getattr(layer, "layer", layer)
    assert np.diff(bounds).tolist() == [-(1 << (input_bits(profile) - 1))] * 2


def test_the_batch_is_free_and_the_arguments_are_plain_arrays(tmp_path):
    rng, output = np.random.default_rng(3), FixedPoint(12, 4)
    mlgru = [rng.integers(-1, 2, (8, 8)) for _ in range(4)]
    glu = [rng.integers(-1, 2, shape) for shape in ((20, 8), (20, 8), (6, 20))]
    x = rng.integers(-2000, 2000, (5, 8))
    for name, layer in (
        ("mlgru", MlgruLayer.of(*mlgru, profile=C12)), ("glu", GluLayer.of(*glu, output=output)),
    ):
        path = export_layer(layer, tmp_path / f"{name}.onnx")
        for batch in (1, 5):
            start = layer.start(batch)
            expected, after = layer.step(x[:batch], start)
            found = _run(path, {"x": x[:batch].astype(np.int32)} | {
                f"state{i}": each.astype(np.int32) for i, each in enumerate(start)})
            for got, right in zip(found, (expected, *after), strict=True):
                np.testing.assert_array_equal(got, right)


def test_files_have_standard_operators_only_and_the_same_bytes(tmp_path):
    path = tmp_path / "layer.onnx"
    for layer in (*_layers(S16).values(), MatrixLayer.of(_matrix(6, 40, 1), FixedPoint(8, 2))):
        data = export_layer(layer, path).read_bytes()
        assert data == export_layer(layer, path).read_bytes()
        assert str(tmp_path).encode() not in data
        proto = onnx.load(path)
        assert not proto.functions
        assert {node.domain for node in proto.graph.node} == {""}
        assert [(each.domain, each.version) for each in proto.opset_import] == [("", 21)]


# The most columns ---------------------------------------------------------------------


def test_the_most_columns_are_exact_and_one_more_is_refused():
    assert MOST_COLUMNS == 8_421_504
    most = MatrixLayer(np.ones((1, MOST_COLUMNS), dtype=np.int8))
    session = onnxruntime.InferenceSession(build_matrix(most).SerializeToString())
    for value in (127, -128):
        acts = np.full((1, MOST_COLUMNS), value, dtype=np.int8)
        assert session.run(None, {"acts": acts})[0].tolist() == [[value * MOST_COLUMNS]]
    wider = MatrixLayer(np.ones((1, MOST_COLUMNS + 1), dtype=np.int8))
    with pytest.raises(ValueError, match=r"up to 8,421,504 columns, got 8,421,505"):
        build_matrix(wider)


def test_the_most_columns_follow_from_the_profile():
    fine = dataclasses.replace(S16, mantissa_bits=24, scale_bits=24)
    most = ((1 << CARRIER_BITS) - 1 - (1 << 19)) // (127 * ((1 << 24) - 1))

    def layer(columns: int) -> BitLinearLayer:
        weight = np.ones((1, columns), dtype=np.int8)
        return BitLinearLayer(
            fine, {"linear": Projection(weight, np.zeros(1, np.int32), 1 << 23, 20)}, fine.z)

    layer_bounds(layer(most))
    with pytest.raises(ValueError, match=r"linear\.z: these formats at this shape need whole"):
        build_layer(layer(most + 1))


# The test in the file -----------------------------------------------------------------


def _damaged(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with the biases of its first matrix off by one."""
    bias = next(each for each in proto.graph.initializer if each.name.endswith("bias"))
    values = numpy_helper.to_array(bias).copy()
    values += 1
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    return proto


@pytest.mark.parametrize("kind", ["bitlinear", "sequence", "matrix"])
def test_a_file_tests_itself(kind, tmp_path):
    layer = (MatrixLayer.of(_matrix(6, 40, 1), FixedPoint(16, 2)) if kind == "matrix" else
             _layers(S16)[kind])
    path = export_layer(layer, tmp_path / "layer.onnx")
    check_layer(path)
    check_layer(onnx.load(path), session=onnxruntime.InferenceSession(path))
    with pytest.raises(OnnxFileError, match="its checksum differs"):
        check_layer(_damaged(onnx.load(path)))
    sealed = _damaged(onnx.load(path))
    seal(sealed)
    onnx.save(sealed, path)
    with pytest.raises(SelfTestError, match=r"layer\.onnx: the integers are not those of the ref"):
        check_layer(path)


def test_a_runtime_that_mixes_up_vectors_is_noticed(tmp_path):
    path = export_matrix(MATRICES["drawn-5x9"], tmp_path / "m.onnx")
    right = onnxruntime.InferenceSession(path)

    def wrong_for_one_vector(names: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        (y,) = right.run(names, feeds)
        return [y + (len(y) == 1)]

    wrong = SimpleNamespace(get_inputs=right.get_inputs, run=wrong_for_one_vector)
    other = onnxruntime.InferenceSession(export_matrix(np.ones((2, 3)), tmp_path / "o.onnx"))
    for session, message in ((wrong, "one vector alone does not give"),
                             (other, "the test in the file did not run")):
        with pytest.raises(SelfTestError, match=message):
            check_layer(path, session=session)


def test_the_formula_in_the_file_gives_the_vectors_of_its_test(tmp_path):
    layer = _layers(S16)["mlgru"]
    proto = onnx.load(export_layer(layer, tmp_path / "m.onnx"))
    found = {entry.key: entry.value for entry in proto.metadata_props}
    assert (found["sterna.layer"], found["sterna.profile"]) == ("MlgruLayer", "S16")
    test = json.loads(found["sterna.self_test"])
    assert (test["shape"], test["bits"]) == ([2, 4, 12], 16)
    values = []
    for i in range(1, 2 * 4 * 12 + 1):
        a = i * 2654435761 % 2**32
        b = (a ^ a >> 15) * 2246822519 % 2**32
        values.append((b >> 16) - 2**15)
    y, (h,) = layer.run(np.array(values).reshape(test["shape"]))
    digest = hashlib.sha256(y.astype("<i4").tobytes() + h.astype("<i4").tobytes())
    assert digest.hexdigest() == test["sha256"]


def test_the_interface_says_its_formats(tmp_path):
    proto = build_layer(_layers(S16)["sequence"])
    assert {each.name: each.doc_string for each in (*proto.graph.input, *proto.graph.output)} == {
        "x": "16 signed bits, 11 of them fraction bits",
        "state0": "16 signed bits, 12 of them fraction bits; zeros at the start",
        "state1": "16 signed bits, 12 of them fraction bits; zeros at the start",
        "y": "16 signed bits, 8 of them fraction bits",
        "state0_out": "state for the next call", "state1_out": "state for the next call"}
    assert {each.type.tensor_type.elem_type for each in (*proto.graph.input, *proto.graph.output)
            } == {TensorProto.INT32}


# Bad input ----------------------------------------------------------------------------


def test_what_does_not_fit_is_refused(tmp_path):
    path = tmp_path / "m.onnx"
    for call, message in (
        (lambda: export_matrix(_matrix(2, 3, 1), path), "a scale or a bias needs an output format"),
        (lambda: export_layer(np.array([[2]]), path), "weights: every weight must be -1, 0 or 1, "),
        (lambda: export_layer(_layers(S16)["glu"], path, output=FixedPoint(8, 0)),
         "a GluLayer has its own formats"),
        (lambda: export_layer(MatrixLayer.of(np.eye(2)), path, profile=C12),
         "a MatrixLayer has its own formats"),
        (lambda: export_matrix(MatrixLayer.of(np.eye(2)), path, output=S16.x),
         "a MatrixLayer has its own formats"),
        (lambda: export_layer(np.eye(2), tmp_path / "m.pb"), r"must end in \.onnx"),
        (lambda: export_matrix(np.eye(2), None),  # type: ignore[arg-type]
         "path must name a file or folder, got None"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(tmp_path):
    path = export_layer(np.eye(3), tmp_path / "m.onnx")
    (tmp_path / "no.onnx").write_bytes(b"no graph")
    bare, newer = (build_layer(_layers(S16)["glu"]) for _ in range(2))
    describe_layer(newer, _layers(S16)["glu"])
    next(e for e in newer.metadata_props if e.key == "sterna.format_version").value = "9"
    for read, source, message in (
        (check_layer, tmp_path / "gone.onnx", r"gone\.onnx: cannot read the ONNX file"),
        (check_layer, tmp_path / "no.onnx", r"no\.onnx: not an ONNX file, or cut off"),
        (Session, path, r"m\.onnx: the graph is of a layer, not of a lang"),
        (check_layer, bare, "not the ONNX graph of a layer made by Sterna"),
        (check_layer, newer, "format version '9', this Sterna reads version 1"),
    ):
        with pytest.raises(OnnxFileError, match=message):
            read(source)
