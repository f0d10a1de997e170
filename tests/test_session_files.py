"""Sessions: what they refuse to load, and compiled operators."""

import gc
import json
from weakref import WeakSet

import numpy as np
import onnx
import pytest
from native_graphs import planted_sources
from onnx import numpy_helper

from sterna.cli.main import main
from sterna.export import Session
from sterna.export.forms.forms import Form, build, export_onnx
from sterna.export.forms.selftest import (
    SELF_TEST,
    SelfTestError,
    check_checksum,
    get_property,
    seal,
)
from sterna.export.graph import file as file_module
from sterna.export.graph.file import OnnxFile
from sterna.export.graph.metadata import OnnxFileError
from sterna.export.native import memory as memory_module
from sterna.export.native import ops as ops_module
from sterna.export.native.ops import build_ops
from sterna.export.runtime import session as session_module
from sterna.export.runtime.runtime import OnnxModel
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model

every_form = pytest.mark.parametrize("form", Form, ids=lambda form: form.value)
both_lengths = pytest.mark.parametrize("one_token", [False, True], ids=["any", "one token"])


@pytest.fixture(scope="module")
def model() -> QuantizedModel:
    """A small random model with a vocabulary of bytes."""
    return random_model(ModelConfig(d=24, layers=2, dff=40), S16, seed=6)


# Files that are wrong --------------------------------------------------------------


def _rounding(proto: onnx.ModelProto) -> None:
    """Round down in place of half up (the float form: larger first biases)."""
    exact = all(node.op_type != "MatMulNBits" for node in proto.graph.node)
    for each in proto.graph.initializer:
        values = numpy_helper.to_array(each)
        if exact and values.shape == () and values == 0.5:
            each.CopyFrom(numpy_helper.from_array(values * 0, each.name))
        if not exact and each.name.startswith("layer0.mlgru.f+") and each.name.endswith(".bias"):
            each.CopyFrom(numpy_helper.from_array(values + np.int16(2000), each.name))


def _weights(proto: onnx.ModelProto) -> None:
    """Some weights of the last matrix of the first layer are others."""
    weight = next(
        each for each in proto.graph.initializer if each.name == "layer0.glu.down.weight")
    raw = bytearray(weight.raw_data)
    for at in range(0, len(raw), 3):
        raw[at] = 0xAA
    weight.raw_data = bytes(raw)


@every_form
@both_lengths
@pytest.mark.parametrize("plant", [_rounding, _weights], ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_caught_by_the_self_test(model, form, one_token, plant):
    proto = build(model, form, one_token=one_token)
    plant(proto)
    with pytest.raises(OnnxFileError, match="its checksum differs"):
        check_checksum(OnnxFile(proto))
    seal(proto)         # as if it had been written so
    check_checksum(OnnxFile(proto))
    with pytest.raises(SelfTestError, match="the test that the file carries"):
        Session(proto)


def test_slow_kernels_are_detected_and_another_form_offered(
    model: QuantizedModel, monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The probe on blocks of 256, for which onnxruntime has no kernel, is a real "no".
    real = session_module.has_two_bit_kernels
    monkeypatch.setattr(session_module, "has_two_bit_kernels", lambda block: real(256))
    proto = build(model, "fast")
    with pytest.raises(OnnxFileError, match=r"no 2-bit kernels.*--form exact instead"):
        Session(proto)
    # Float products of the same weights are what such an onnxruntime would compute.
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1
    seal(proto)
    Session(proto, allow_slow=True)
    Session(build(model))


def test_a_model_that_amplifies_rounding_may_be_less_close():
    """Deep and random: rounding activations to 8 bits moves its logits by more than 25 dB allow."""
    proto = build(random_model(ModelConfig(d=32, layers=24, dff=32), S16, gain=3.0), "fast")
    assert json.loads(get_property(proto, SELF_TEST))["decibels"] < 20
    Session(proto, allow_slow=True)


# Compiled operators ----------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_operators_compute_the_same_file(odd_model, native_ops, batch, tmp_path, monkeypatch):
    path = export_onnx(odd_model, tmp_path / "m.onnx")
    tokens = np.random.default_rng(1).integers(0, odd_model.config.vocab, (batch, 24))
    expected, last = IntegerModel(odd_model).run(tokens)
    monkeypatch.chdir(native_ops.parent)
    session = Session(path, ops=native_ops.name)    # found from the folder that it lies in
    first, state = session.run(tokens[:, :15])
    np.testing.assert_array_equal(first, expected[:, :15])
    for t in range(15, 24):
        logits, state = session.step(tokens[:, t], state)
        np.testing.assert_array_equal(logits, expected[:, t])
    np.testing.assert_array_equal(state, last)


def test_sessions_of_the_same_weights_share_one_copy(native_ops, tmp_path, monkeypatch):
    monkeypatch.setattr(file_module, "_LARGE", 64)
    config = ModelConfig(d=24, layers=2, dff=40)
    models = [random_model(config, S16, seed=seed) for seed in (6, 7)]
    paths = [export_onnx(models[number], tmp_path / f"{name}.onnx")
             for name, number in (("one", 0), ("same", 0), ("other", 1))]
    small = [OnnxModel(path, ops=native_ops) for path in paths]
    monkeypatch.setattr(memory_module, "LEAST_BYTES", 64)
    monkeypatch.setattr(memory_module, "_alive", WeakSet())
    large = [OnnxModel(path, ops=native_ops) for path in paths]
    for path in paths:          # as after an update
        path.unlink()
    one, same, other = (each._session.weights for each in large)
    assert {each._session.weights for each in small} == {None}
    assert one is same is not other
    assert set(memory_module._alive) == {one, other}
    assert one.tensors.keys() == {f"{name}.weight" for name in models[0].projections}
    assert all(each.ctypes.data % 64 == 0 for each in one.tensors.values())
    tokens = np.random.default_rng(1).integers(0, 256, (2, 9))
    for graphs in (small, large):
        for graph, number in zip(graphs, (0, 0, 1), strict=True):
            expected = IntegerModel(models[number]).run(tokens)
            for got, wanted in zip(graph.run(tokens), expected, strict=True):
                np.testing.assert_array_equal(got, wanted)
    for tensor in one.tensors.values():     # what sessions read is this memory, and no other
        tensor[...] = 0
    changed = [not np.array_equal(graph.run(tokens)[0], IntegerModel(models[number]).run(tokens)[0])
               for graph, number in zip(large, (0, 0, 1), strict=True)]
    assert changed == [True, True, False]
    del one, same, other, large[1:], graph, graphs, tensor
    gc.collect()
    assert set(memory_module._alive) == {large[0]._session.weights}
    large.clear()
    gc.collect()
    assert not memory_module._alive


def test_a_form_without_operators_is_refused_before_they_are_compiled(
    model, monkeypatch, tmp_path, capsys,
):
    compiled = []
    monkeypatch.setattr(session_module, "build_ops", lambda: compiled.append(True))
    with pytest.raises(ValueError, match="goes only with the form exact, got fast"):
        Session(build(model, "fast"), ops=True)
    with pytest.raises(ValueError, match="threads must be a whole number"):
        Session(build(model), ops=True, threads=0)
    monkeypatch.setattr(ops_module, "build_ops", lambda **_: compiled.append(True))
    path = export_onnx(model, tmp_path / "m.onnx", form="fast")
    for line in ([str(path)], ["tiny", "--form", "fast"]):
        assert main(["generate", *line, "--ops"]) == 2
        assert "goes only with the form exact, got fast" in capsys.readouterr().err
    assert not compiled
    with pytest.raises(ValueError, match="ops must be the path of a library, True or None, got 5"):
        Session(build(model), ops=5)


LIBRARY_FAULTS = {
    "rounding": ("records.hpp", "y[i] * r + half) >> k", "y[i] * r) >> k"),
    "the state": ("records.hpp", "(one - f) * c[i] + half", "(one - f) * c[i]"),
    # Of one sequence alone, as text is mostly written; two side by side have other kernels.
    "one sequence": ("matmul.hpp", "dot<1, 1>(weight + one * block_bytes, block_bytes, steps",
                     "dot<1, 1>(weight + one * block_bytes, block_bytes, steps - 1"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_ops")
@pytest.mark.parametrize("fault", [
    pytest.param(name, marks=[pytest.mark.long] if name == "the state" else [])
    for name in LIBRARY_FAULTS])
def test_a_faulty_library_is_caught_by_the_self_test(model, fault, tmp_path):
    library = build_ops(
        tmp_path, sources=planted_sources(tmp_path / "native", *LIBRARY_FAULTS[fault]))
    proto = build(model)
    with pytest.raises(SelfTestError, match=r"the library .* is wrong: build it again"):
        Session(proto, ops=library)
    Session(proto)
