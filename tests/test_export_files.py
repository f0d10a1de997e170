"""ONNX files: what is in them, how they are written, and what is refused."""

import itertools
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import ODD
from onnx import helper
from onnx.external_data_helper import load_external_data_for_model

from sterna.export.forms.forms import build, export_onnx
from sterna.export.graph.file import OnnxFile
from sterna.export.graph.metadata import OnnxFileError
from sterna.export.runtime.check import check_exact
from sterna.export.runtime.runtime import OnnxModel
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.synthetic import random_model


@pytest.fixture(scope="module")
def model() -> QuantizedModel:
    """A small model."""
    return random_model(ODD, S16, seed=2)


def test_export_writes_a_graph_that_runs_and_names_no_place(model, tmp_path):
    path = export_onnx(model, tmp_path / "m.onnx")
    assert [path] == list(tmp_path.iterdir())
    assert check_exact(model, str(path), np.arange(30).reshape(2, 15)).passed
    data = path.read_bytes()
    for place in (str(tmp_path), str(Path(__file__).parents[1]), ".py", os.sep + "home"):
        assert place.encode() not in data


def test_files_hold_two_bits_for_a_weight(profile, tmp_path):
    config = ModelConfig.named("tiny")
    path = export_onnx(random_model(config, profile), tmp_path / "m.onnx")
    tensors = sum(len(tensor.raw_data) for tensor in onnx.load(path).graph.initializer)
    information = config.ternary_weights * 2 / 8 + config.vocab * config.d * 2
    assert tensors <= 1.12 * information
    assert path.stat().st_size - tensors <= 21_000 * config.layers


@pytest.mark.parametrize("one_token", [False, True])
def test_inputs_and_outputs_are_as_documented(model, one_token):
    int32, int64 = onnx.TensorProto.INT32, onnx.TensorProto.INT64
    state = (int32, [2, "batch", 12])
    graph = build(model, one_token=one_token).graph
    length, wanted = (1, 1) if one_token else ("length", "wanted")
    assert {value.name: (value.type.tensor_type.elem_type, [
        dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim])
        for value in [*graph.input, *graph.output]} == {
            "tokens": (int64, ["batch", length]), "state": state,
            "logits": (int32, ["batch", wanted, 65]), "state_out": state,
            **({} if one_token else {"logits_from": (int64, [1])})}


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
    path = export_onnx(model, tmp_path / "m.onnx")
    data = path.read_bytes()
    for kept in (*range(0, len(data), 997), len(data) - 1):
        path.write_bytes(data[:kept])
        with pytest.raises(OnnxFileError, match=r"m\.onnx: "):
            OnnxModel(path)
    # Fields of other kinds and sizes than a message may have.
    for byte, at in itertools.product((0, 0x7F, 0xFF), range(0, len(data), 997)):
        path.write_bytes(data[:at] + bytes([byte]) + data[at + 1:])
        with suppress(OnnxFileError):
            OnnxFile.read(path)
    path.unlink()
    with pytest.raises(OnnxFileError, match=r"m\.onnx: cannot read the ONNX file \(No such"):
        OnnxModel(path)
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph), path)
    with pytest.raises(OnnxFileError, match=r"m\.onnx: not an ONNX graph made by Sterna"):
        OnnxModel(path)


def test_large_tensors_stay_in_the_file(tmp_path):
    path = export_onnx(load_model("tiny"), tmp_path / "m.onnx")
    found, whole = OnnxFile.read(path).proto, onnx.load(path)
    external = [each for each in found.graph.initializer if each.external_data]
    assert {each.name for each in external} == {
        each.name for each in whole.graph.initializer if len(each.raw_data) >= 1 << 16}
    assert all(not each.raw_data for each in external)
    raw = {each.name: each.raw_data for each in whole.graph.initializer}
    assert {tensor.name: values.tobytes() for tensor, values in OnnxFile.read(path).external()} == {
        each.name: raw[each.name] for each in external}
    assert not list(OnnxFile.read(whole).external())
    elsewhere = tmp_path / "elsewhere.onnx"     # as others write large tensors: beside the graph
    onnx.save(whole, elsewhere, save_as_external_data=True, location="tensors")
    assert not list(OnnxFile.read(elsewhere).external())
    whole = onnx.load(path)
    load_external_data_for_model(found, str(tmp_path))
    for each in external:
        each.ClearField("external_data")
        each.ClearField("data_location")
    assert found == whole


@pytest.mark.parametrize(("key", "value", "message"), [
    ("sterna.records", "[]", "the metadata of the graph is damaged"),
    ("sterna.records", '[{"kind": "norm"}]', "the metadata of the graph is damaged"),
    ("sterna.form", "many", "the metadata of the graph is damaged"),
    ("sterna.format_version", "4", "version '4', this Sterna reads version 5")])
def test_other_versions_and_damaged_metadata_are_refused(model, key, value, message):
    proto = build(model)
    next(entry for entry in proto.metadata_props if entry.key == key).value = value
    with pytest.raises(OnnxFileError, match=message):
        OnnxModel(proto)


def test_an_onnxruntime_without_the_opset_is_named(model):
    proto = build(model)
    proto.opset_import[0].version = 999
    with pytest.raises(OnnxFileError, match=(
            rf"onnxruntime {onnxruntime.__version__} cannot load the graph; it takes opset 21 "
            r"\(onnxruntime 1.20 or newer\)")):
        OnnxModel(proto)


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
        OnnxModel(model).step(np.array(tokens), state)


@pytest.mark.parametrize(("options", "message"), [
    ({"form": "exakt"}, "form must be one of exact, fast, got 'exakt'"),
    ({"path": "m.pb"}, r"m\.pb: the name of an ONNX file must end in \.onnx"),
    ({"path": "missing/m.onnx"}, "No such file or directory")])
def test_what_cannot_be_written_is_refused(model, tmp_path, options, message):
    arguments = {**options, "path": tmp_path / options.get("path", "m.onnx")}
    with pytest.raises((ValueError, OSError), match=message):
        export_onnx(model, **arguments)
    assert not list(tmp_path.iterdir())


def test_bad_arguments_are_refused(model):
    proto, row = build(model), np.array([1, 2, 3])
    other = random_model(ModelConfig(d=8, layers=1, dff=8), S16)
    for call, message in (
        (lambda: OnnxModel(proto, threads=0), "threads must be a whole number from 1 to 256, got"),
        (lambda: OnnxModel(proto).run(row), r"whole numbers \[batch, length\], .* got int64 \[3\]"),
        (lambda: check_exact(model, proto, row), r"tokens must be whole numbers \[batch, length\]"),
        (lambda: check_exact(other, proto, row[None]),
         r"65 tokens and states \[2, 12\], the model 256 tokens and \[1, 8\]"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
