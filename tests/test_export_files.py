"""ONNX files: what is in them, how they are written, and what is refused."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import ODD
from onnx import helper

from sterna.export.exact.traced import build_sequence, build_step
from sterna.export.forms.forms import GraphChoice, export_onnx, sequence_path
from sterna.export.graph.metadata import GraphInfo, OnnxFileError
from sterna.export.runtime.check import check_exact
from sterna.export.runtime.runtime import OnnxSequence, OnnxStep
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.synthetic import random_model


@pytest.fixture(scope="module")
def model() -> QuantizedModel:
    """A small model."""
    return random_model(ODD, S16, seed=2)


@pytest.mark.parametrize("choice", GraphChoice)
def test_export_writes_the_graphs_wanted_and_they_run(model, tmp_path, choice):
    written = export_onnx(model, tmp_path / "m.onnx", graphs=choice)
    assert sorted(written) == sorted(tmp_path.iterdir())
    assert written == export_onnx(model, tmp_path / "m.onnx", graphs=choice.value)
    places = {"step": tmp_path / "m.onnx", "sequence": sequence_path(tmp_path / "m.onnx")}
    kinds = {GraphInfo.read(onnx.load(path)).kind.value: path for path in written}
    assert kinds == {kind: place for kind, place in places.items()
                     if choice is GraphChoice.BOTH or kind == choice.value}
    for path in written:
        assert check_exact(model, str(path), np.arange(30).reshape(2, 15)).passed
        data = path.read_bytes()
        for place in (str(tmp_path), str(Path(__file__).parents[1]), ".py", os.sep + "home"):
            assert place.encode() not in data


def test_files_hold_two_bits_for_a_weight(profile, tmp_path):
    config = ModelConfig.named("tiny")
    for path in export_onnx(random_model(config, profile), tmp_path / "m.onnx"):
        information = config.ternary_weights * 2 / 8 + config.vocab * config.d * 2
        assert path.stat().st_size <= 1.35 * information, path.name


def test_a_viewer_sees_named_blocks(model):
    proto = build_step(model)
    names = [node.name for node in proto.graph.node]
    assert len(set(names)) == len(names)
    first = [name for name in names if name.startswith("layer0/")]
    assert len(first) == 29
    assert {"layer0/mlgru/norm", "layer0/mlgru/f/matmul", "layer0/mlgru/h",
            "layer0/glu/p", "layer0/glu/x"} <= set(first)


def test_inputs_and_outputs_are_as_documented(model):
    int32, int64 = onnx.TensorProto.INT32, onnx.TensorProto.INT64
    state = (int32, [2, "batch", 12])
    for build, tokens, axes in ((build_step, "token", ["batch"]),
                                (build_sequence, "tokens", ["batch", "length"])):
        graph = build(model).graph
        assert {value.name: (value.type.tensor_type.elem_type, [
            dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim])
            for value in [*graph.input, *graph.output]} == {
                tokens: (int64, axes), "state": state, "logits": (int32, [*axes, 65]),
                "state_out": state}


# Bad input --------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(model, tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")

    def disk_full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        export_onnx(model, path)
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]
    assert path.read_bytes() == b"old"


def test_a_truncated_file_is_refused_wherever_it_is_cut(model, tmp_path):
    (path,) = export_onnx(model, tmp_path / "m.onnx", graphs=GraphChoice.STEP)
    data = path.read_bytes()
    for kept in (*range(0, len(data), 997), len(data) - 1):
        path.write_bytes(data[:kept])
        with pytest.raises(OnnxFileError, match=r"m\.onnx: "):
            OnnxStep(path)
    path.unlink()
    with pytest.raises(OnnxFileError, match=r"m\.onnx: cannot read the ONNX file \(No such"):
        OnnxStep(path)
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph), path)
    with pytest.raises(OnnxFileError, match=r"m\.onnx: not an ONNX graph made by Sterna"):
        OnnxStep(path)


@pytest.mark.parametrize(("key", "value", "message"), [
    ("sterna.logit", "[]", "the metadata of the graph is damaged"),
    ("sterna.state_shape", "[4]", "the metadata of the graph is damaged"),
    ("sterna.vocab", "many", "the metadata of the graph is damaged"),
    ("sterna.format_version", "3", "version '3', this Sterna reads version 4")])
def test_other_versions_and_damaged_metadata_are_refused(model, key, value, message):
    proto = build_step(model)
    next(entry for entry in proto.metadata_props if entry.key == key).value = value
    with pytest.raises(OnnxFileError, match=message):
        OnnxStep(proto)


def test_the_other_graph_and_an_onnxruntime_without_the_opset_are_named(model):
    with pytest.raises(OnnxFileError, match="expected a step graph, got a sequence graph"):
        OnnxStep(build_sequence(model))
    proto = build_step(model)
    with pytest.raises(OnnxFileError, match="expected a sequence graph, got a step graph"):
        OnnxSequence(proto)
    proto.opset_import[0].version = 999
    with pytest.raises(OnnxFileError, match=(
            rf"onnxruntime {onnxruntime.__version__} cannot load the graph; it takes opset 25 "
            r"\(onnxruntime 1.24 or newer\)")):
        OnnxStep(proto)


STATE = np.zeros((2, 1, 12), np.int32)


@pytest.mark.parametrize(("tokens", "state", "message"), [
    ([65], STATE, r"tokens must be from 0 to 64, got 65$"),
    ([3, -1], STATE, r"tokens must be from 0 to 64, got -1$"),
    ([1.5], STATE, r"must be whole numbers \[batch\], at least one of them, got float64 \[1\]"),
    ([], STATE, r"tokens must be whole numbers \[batch\], at least one of them, got .*\[0\]"),
    ([[1]], STATE, r"tokens must be whole numbers \[batch\], .*, got int64 \[1, 1\]"),
    ([1], STATE.repeat(3, 1), r"state must be whole numbers \[layers, batch, d\] = "
                              r"\[2, 1, 12\], got int32 \[2, 3, 12\]"),
    ([1], STATE / 1, r"state must be whole numbers .* got float64"),
    ([1], STATE + np.eye(12, dtype=np.int32)[0] * 40000,
     "state must be from -32768 to 32767, got 0 to 40000")])
def test_bad_tokens_and_states_are_refused(model, tokens, state, message):
    with pytest.raises(ValueError, match=message):
        OnnxStep(build_step(model)).step(np.array(tokens), state)


@pytest.mark.parametrize(("options", "message"), [
    ({"form": "exakt"}, "form must be one of exact, exact-2bit, fast, .*, got 'exakt'"),
    ({"graphs": "all"}, "graphs must be one of step, sequence, both, got 'all'"),
    ({"path": "m.pb"}, r"m\.pb: the name of an ONNX file must end in \.onnx"),
    ({"path": "missing/m.onnx"}, "No such file or directory")])
def test_what_cannot_be_written_is_refused(model, tmp_path, options, message):
    arguments = {**options, "path": tmp_path / options.get("path", "m.onnx")}
    with pytest.raises((ValueError, OSError), match=message):
        export_onnx(model, **arguments)
    assert not list(tmp_path.iterdir())


def test_bad_arguments_are_refused(model):
    proto, row = build_step(model), np.array([1, 2, 3])
    other = random_model(ModelConfig(d=8, layers=1, dff=8), S16)
    for call, message in (
        (lambda: OnnxStep(proto, threads=0), "threads must be a whole number from 1 to 256, got 0"),
        (lambda: OnnxStep(proto).run(row), r"whole numbers \[batch, length\], .* got int64 \[3\]"),
        (lambda: check_exact(model, proto, row), r"tokens must be whole numbers \[batch, length\]"),
        (lambda: check_exact(other, proto, row[None]),
         r"65 tokens and states \[2, 12\], the model 256 and \[1, 8\]"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
