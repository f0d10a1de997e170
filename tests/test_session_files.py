"""Sessions: what they refuse to load, and compiled operators."""

import numpy as np
import onnx
import pytest
from native_graphs import planted_sources
from onnx import numpy_helper

from sterna.cli.main import main
from sterna.export import Session
from sterna.export.forms.forms import Form, GraphChoice, build, export_onnx, sequence_path
from sterna.export.forms.selftest import SelfTestError, check_checksum, seal
from sterna.export.graph.metadata import GraphKind, OnnxFileError
from sterna.export.native import ops as ops_module
from sterna.export.native.ops import build_ops
from sterna.export.runtime import session as session_module
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model

every_form = pytest.mark.parametrize("form", Form, ids=lambda form: form.value)
both_kinds = pytest.mark.parametrize("kind", GraphKind, ids=lambda kind: kind.value)


@pytest.fixture(scope="module")
def model() -> QuantizedModel:
    """A small random model with a vocabulary of bytes."""
    return random_model(ModelConfig(d=24, layers=2, dff=40), S16, seed=6)


# Files that are wrong --------------------------------------------------------------


def _rounding(proto: onnx.ModelProto) -> None:
    """Round activations down in place of half up (float forms: a larger first bias)."""
    function = next((each for each in proto.functions if each.name == "NormQuant"), None)
    if function is None:
        for each in proto.graph.initializer:
            if each.name.endswith("f_g_c.bias"):
                each.CopyFrom(numpy_helper.from_array(
                    numpy_helper.to_array(each) + np.int16(2000), each.name))
        return
    half = next(node for node in function.node if node.op_type == "Constant"
                and numpy_helper.to_array(node.attribute[0].t) == 0.5)
    half.attribute[0].t.CopyFrom(numpy_helper.from_array(np.float64(0.0), "half"))


def _weights(proto: onnx.ModelProto) -> None:
    """Some weights of the last matrix of the first layer are others."""
    weight = next(
        each for each in proto.graph.initializer if each.name == "layer0.glu.down.weight")
    raw = bytearray(weight.raw_data)
    for at in range(0, len(raw), 3):
        raw[at] = 0x55 if weight.data_type == onnx.TensorProto.INT2 else 0xFF
    if weight.data_type == onnx.TensorProto.FLOAT:
        raw = bytearray((numpy_helper.to_array(weight) * np.float32(1.3)).tobytes())
    weight.raw_data = bytes(raw)


@every_form
@both_kinds
@pytest.mark.parametrize("plant", [_rounding, _weights], ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_caught_by_the_self_test(model, form, kind, plant):
    proto = build(model, form, kind)
    right = build(model, form, GraphKind.STEP)
    plant(proto)
    with pytest.raises(OnnxFileError, match="its checksum differs"):
        check_checksum(proto)
    seal(proto)         # as if it had been written so
    check_checksum(proto)
    with pytest.raises(SelfTestError, match="the test that the file carries"):
        Session(*([proto] if kind is GraphKind.STEP else [right]),
                sequence=None if kind is GraphKind.STEP else proto)


def test_a_runtime_without_the_pinned_arithmetic_is_caught(model):
    """With the pins below 127 the kernels' own rounding shows: what another runtime may do."""
    proto = build(model, "exact-2bit", GraphKind.STEP)
    found = 0
    for function in proto.functions:
        for node in function.node:
            if node.op_type == "Constant":
                values = numpy_helper.to_array(node.attribute[0].t)
                if values.size == 128 and values[-1] == 127:
                    pins = values.copy()
                    pins[-1] = 300
                    node.attribute[0].t.CopyFrom(numpy_helper.from_array(pins, "pins"))
                    found += 1
    assert found
    seal(proto)
    with pytest.raises(SelfTestError, match="export with --form exact instead"):
        Session(proto)


def test_slow_kernels_are_detected_and_another_form_offered(
    model: QuantizedModel, monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The probe on blocks of 256, for which onnxruntime has no kernel, is a real "no".
    real = session_module.has_two_bit_kernels
    monkeypatch.setattr(session_module, "has_two_bit_kernels", lambda block: real(256))
    for form in ("exact-2bit", "fast"):
        proto = build(model, form, GraphKind.STEP)
        with pytest.raises(OnnxFileError, match=r"no 2-bit kernels.*--form exact instead"):
            Session(proto)
        # Float products of the same weights are what such an onnxruntime would compute.
        for node in [*proto.graph.node, *(node for each in proto.functions for node in each.node)]:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = 1
        seal(proto)
        Session(proto, allow_slow=True)
    Session(build(model, "exact", GraphKind.STEP))


def test_mixed_files_are_refused(model, tmp_path):
    step, sequence = export_onnx(model, tmp_path / "m.onnx")
    with pytest.raises(OnnxFileError, match=r"m\.sequence\.onnx: expected a step graph, got a"):
        Session(sequence)
    other = random_model(model.config, C12, seed=1)
    export_onnx(other, tmp_path / "n.onnx")
    sequence_path(tmp_path / "n.onnx").replace(sequence)
    with pytest.raises(OnnxFileError, match="sequence graph of another model"):
        Session(step)


# Compiled operators ----------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_operators_compute_the_same_file(odd_model, native_ops, batch, tmp_path, monkeypatch):
    step, _ = export_onnx(odd_model, tmp_path / "m.onnx")
    tokens = np.random.default_rng(1).integers(0, odd_model.config.vocab, (batch, 24))
    expected, last = IntegerModel(odd_model).run(tokens)
    monkeypatch.chdir(native_ops.parent)
    session = Session(step, ops=native_ops.name)    # found from the folder that it lies in
    first, state = session.run(tokens[:, :15])
    np.testing.assert_array_equal(first, expected[:, :15])
    for t in range(15, 24):
        logits, state = session.step(tokens[:, t], state)
        np.testing.assert_array_equal(logits, expected[:, t])
    np.testing.assert_array_equal(state, last)


def test_a_form_without_operators_is_refused_before_they_are_compiled(
    model, monkeypatch, tmp_path, capsys,
):
    compiled = []
    monkeypatch.setattr(session_module, "build_ops", lambda: compiled.append(True))
    for form in ("fast", "exact-2bit", "web", "traced"):
        with pytest.raises(ValueError, match=f"goes only with the form exact, got {form}"):
            Session(build(model, form, GraphKind.STEP), ops=True)
    with pytest.raises(ValueError, match="threads must be a whole number"):
        Session(build(model, "exact", GraphKind.STEP), ops=True, threads=0)
    monkeypatch.setattr(ops_module, "build_ops", lambda **_: compiled.append(True))
    (step,) = export_onnx(model, tmp_path / "m.onnx", form="web", graphs=GraphChoice.STEP)
    for line in ([str(step)], ["tiny", "--form", "web"]):
        assert main(["generate", *line, "--ops"]) == 2
        assert "goes only with the form exact, got web" in capsys.readouterr().err
    assert not compiled
    with pytest.raises(ValueError, match="ops must be the path of a library, True or None, got 5"):
        Session(build(model, "exact", GraphKind.STEP), ops=5)


LIBRARY_FAULTS = {
    "rounding": ("layers.hpp", "y[i] * r + half) >> k", "y[i] * r) >> k"),
    "the state": ("layers.hpp", "(one - f[i]) * c[i] + ff_half", "(one - f[i]) * c[i]"),
    # Of one sequence alone, as text is mostly written; two side by side have other kernels.
    "one sequence": ("matmul.hpp", "dot_blocks<kBlocksOne, 1>(at, width, steps, acts",
                     "dot_blocks<kBlocksOne, 1>(at, width, steps - 1, acts"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_ops")
@pytest.mark.parametrize("fault", [
    pytest.param(name, marks=[pytest.mark.long] if name == "the state" else [])
    for name in LIBRARY_FAULTS])
def test_a_faulty_library_is_caught_by_the_self_test(model, fault, tmp_path):
    library = build_ops(
        tmp_path, sources=planted_sources(tmp_path / "native", *LIBRARY_FAULTS[fault]))
    proto = build(model, "exact", GraphKind.STEP)
    with pytest.raises(SelfTestError, match=r"the library .* is wrong: build it again"):
        Session(proto, ops=library)
    Session(proto)
