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
from sterna.model.profile import S16, NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.synthetic import random_model


@pytest.fixture
def model() -> QuantizedModel:
    """A small model."""
    return random_model(ODD, S16, seed=2)


def test_export_writes_two_graphs_that_run(model: QuantizedModel, tmp_path: Path) -> None:
    step, sequence = export_onnx(model, tmp_path / "m.onnx")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.onnx", "m.sequence.onnx"]
    assert (step.name, sequence) == ("m.onnx", sequence_path(step))
    tokens = np.arange(30).reshape(2, 15)
    for path in (step, str(sequence)):
        assert check_exact(model, path, tokens).passed


@pytest.mark.parametrize("choice", GraphChoice)
def test_either_graph_can_be_left_out(
    model: QuantizedModel, tmp_path: Path, choice: GraphChoice,
) -> None:
    written = export_onnx(model, tmp_path / "m.onnx", graphs=choice)
    assert sorted(written) == sorted(tmp_path.iterdir())
    assert written == export_onnx(model, tmp_path / "m.onnx", graphs=choice.value)
    kinds = {GraphInfo.read(onnx.load(path)).kind.value for path in written}
    assert kinds == ({"step", "sequence"} if choice is GraphChoice.BOTH else {choice.value})


def test_files_hold_two_bits_for_a_weight(profile: NumericProfile, tmp_path: Path) -> None:
    config = ModelConfig.named("tiny")
    for path in export_onnx(random_model(config, profile), tmp_path / "m.onnx"):
        information = config.ternary_weights * 2 / 8 + config.vocab * config.d * 2
        assert path.stat().st_size <= 1.35 * information, path.name


def test_files_name_no_place_on_this_machine(model: QuantizedModel, tmp_path: Path) -> None:
    for path in export_onnx(model, tmp_path / "m.onnx"):
        data = path.read_bytes()
        for place in (str(tmp_path), str(Path(__file__).parents[1]), ".py", os.sep + "home"):
            assert place.encode() not in data


def test_a_viewer_sees_named_blocks(model: QuantizedModel) -> None:
    proto = build_step(model)
    names = [node.name for node in proto.graph.node]
    assert len(set(names)) == len(names)
    first = [name for name in names if name.startswith("layer0/")]
    assert len(first) <= 18
    assert {"layer0/mlgru/norm", "layer0/mlgru/fcg/matmul", "layer0/mlgru/state",
            "layer0/glu/product", "layer0/glu/residual"} <= set(first)
    values = {value.name for value in proto.graph.value_info}
    assert {"embedding.x", "layer0.mlgru.norm.q", "layer0.mlgru.fcg.acc", "layer0.mlgru.h",
            "layer0.mlgru.o", "layer0.mlgru.x", "layer0.glu.gate_up.z", "layer0.glu.p",
            "head.acc"} <= values


def test_inputs_and_outputs_are_as_documented(model: QuantizedModel) -> None:
    def interface(proto: onnx.ModelProto) -> dict[str, tuple[int, list[int | str]]]:
        return {
            value.name: (value.type.tensor_type.elem_type, [
                dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim])
            for value in [*proto.graph.input, *proto.graph.output]}

    int32, int64 = onnx.TensorProto.INT32, onnx.TensorProto.INT64
    state = (int32, [2, "batch", 12])
    assert interface(build_step(model)) == {
        "token": (int64, ["batch"]), "state": state,
        "logits": (int32, ["batch", 65]), "state_out": state}
    assert interface(build_sequence(model)) == {
        "tokens": (int64, ["batch", "length"]), "state": state,
        "logits": (int32, ["batch", "length", 65]), "state_out": state}


# Bad input --------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(
    model: QuantizedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")

    def disk_full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        export_onnx(model, path)
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]
    assert path.read_bytes() == b"old"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OnnxFileError, match=r"gone\.onnx: cannot read the ONNX file \(No such"):
        OnnxStep(tmp_path / "gone.onnx")


def test_a_truncated_file_is_refused_wherever_it_is_cut(
    model: QuantizedModel, tmp_path: Path,
) -> None:
    (path,) = export_onnx(model, tmp_path / "m.onnx", graphs=GraphChoice.STEP)
    data = path.read_bytes()
    for kept in (*range(0, len(data), 997), len(data) - 1):
        path.write_bytes(data[:kept])
        with pytest.raises(OnnxFileError, match=r"m\.onnx: "):
            OnnxStep(path)


def test_a_graph_of_someone_else_is_refused(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    other = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [value], [other])
    onnx.save(helper.make_model(graph), tmp_path / "abs.onnx")
    with pytest.raises(OnnxFileError, match=r"abs\.onnx: not an ONNX graph made by Sterna"):
        OnnxStep(tmp_path / "abs.onnx")


def _set_property(proto: onnx.ModelProto, key: str, value: str) -> onnx.ModelProto:
    next(entry for entry in proto.metadata_props if entry.key == key).value = value
    return proto


def test_other_versions_and_damaged_metadata_are_refused(model: QuantizedModel) -> None:
    for key, value in (("sterna.formats", "[]"), ("sterna.config", "[]")):
        with pytest.raises(OnnxFileError, match="the metadata of the graph is damaged"):
            GraphInfo.read(_set_property(build_step(model), key, value))
    newer = _set_property(build_step(model), "sterna.format_version", "4")
    with pytest.raises(OnnxFileError, match="version '4', this Sterna reads the versions 2 and 3"):
        OnnxStep(newer)
    damaged = _set_property(build_step(model), "sterna.config", '{"d": 0}')
    with pytest.raises(OnnxFileError, match="the metadata of the graph is damaged"):
        OnnxStep(damaged)


def test_the_other_graph_is_refused(model: QuantizedModel) -> None:
    with pytest.raises(OnnxFileError, match="expected a step graph, got a sequence graph"):
        OnnxStep(build_sequence(model))
    with pytest.raises(OnnxFileError, match="expected a sequence graph, got a step graph"):
        OnnxSequence(build_step(model))


def test_an_onnxruntime_without_the_opset_is_named(model: QuantizedModel) -> None:
    proto = build_step(model)
    proto.opset_import[0].version = 999
    with pytest.raises(OnnxFileError, match=(
            rf"onnxruntime {onnxruntime.__version__} cannot load the graph; it takes opset 25 "
            r"\(onnxruntime 1.24 or newer\)")):
        OnnxStep(proto)


@pytest.mark.parametrize(("tokens", "message"), [
    ([65], r"tokens must be from 0 to 64, got 65$"),
    ([3, -1], r"tokens must be from 0 to 64, got -1$"),
    ([1.5], r"tokens must be whole numbers \[batch\], at least one of them, got float64 \[1\]"),
    ([], r"tokens must be whole numbers \[batch\], at least one of them, got .*\[0\]"),
    ([[1]], r"tokens must be whole numbers \[batch\], .*, got int64 \[1, 1\]"),
])
def test_bad_tokens_are_refused(model: QuantizedModel, tokens: list, message: str) -> None:
    step = OnnxStep(build_step(model))
    with pytest.raises(ValueError, match=message):
        step.step(np.array(tokens), step.start(len(tokens)))


def test_a_bad_state_is_refused(model: QuantizedModel) -> None:
    step = OnnxStep(build_step(model))
    with pytest.raises(ValueError, match=r"state must be whole numbers \[layers, batch, d\] = "
                                         r"\[2, 1, 12\], got int32 \[2, 3, 12\]"):
        step.step(np.array([1]), step.start(3))
    with pytest.raises(ValueError, match=r"state must be whole numbers .* got float64"):
        step.step(np.array([1]), np.zeros((2, 1, 12)))
    with pytest.raises(ValueError, match="state must be from -32768 to 32767, got 0 to 40000"):
        step.step(np.array([1]), step.start() + np.eye(12, dtype=np.int32)[0] * 40000)


@pytest.mark.parametrize(("options", "message"), [
    ({"form": "exakt"}, "form must be one of exact, exact-2bit, fast, .*, got 'exakt'"),
    ({"graphs": "all"}, "graphs must be one of step, sequence, both, got 'all'"),
    ({"path": "m.pb"}, r"m\.pb: the name of an ONNX file must end in \.onnx"),
    ({"path": "missing/m.onnx"}, "No such file or directory")])
def test_what_cannot_be_written_is_refused(
    model: QuantizedModel, tmp_path: Path, options: dict[str, str], message: str,
) -> None:
    arguments = {**options, "path": tmp_path / options.get("path", "m.onnx")}
    with pytest.raises((ValueError, OSError), match=message):
        export_onnx(model, **arguments)
    assert not list(tmp_path.iterdir())


def test_bad_arguments_are_refused(model: QuantizedModel) -> None:
    proto = build_step(model)
    with pytest.raises(ValueError, match="threads must be a whole number from 1 to 256, got 0"):
        OnnxStep(proto, threads=0)
    with pytest.raises(ValueError, match=r"whole numbers \[batch, length\], .* got int64 \[3\]"):
        OnnxStep(proto).run(np.array([1, 2, 3]))
    with pytest.raises(ValueError, match=r"tokens must be whole numbers \[batch, length\]"):
        check_exact(model, proto, np.array([1, 2, 3]))
    other = random_model(ModelConfig(d=8, layers=1, dff=8), S16)
    with pytest.raises(ValueError, match=r"the graph has the shape .* the model ModelConfig"):
        check_exact(other, proto, np.array([[1, 2, 3]]))
