"""Sessions: text, states, and what they refuse to load."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import ODD
from onnx import numpy_helper
from test_native_layers import planted_sources

from sterna.export import Session
from sterna.export import session as session_module
from sterna.export.forms import Form, build
from sterna.export.generate import generate_tokens
from sterna.export.metadata import GraphKind, OnnxFileError
from sterna.export.native_build import build_ops
from sterna.export.runtime import OnnxStep
from sterna.export.selftest import SelfTestError, check_checksum, seal
from sterna.export.writer import export_onnx, sequence_path
from sterna.model.config import ModelConfig
from sterna.model.integer import IntegerModel
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.sampling import Sampler
from sterna.model.synthetic import random_model
from sterna.model.tokenizer import encode

every_form = pytest.mark.parametrize("form", Form, ids=lambda form: form.value)
both_kinds = pytest.mark.parametrize("kind", GraphKind, ids=lambda kind: kind.value)


@pytest.fixture(scope="module")
def model() -> QuantizedModel:
    """A small random model with a vocabulary of bytes."""
    return random_model(ModelConfig(d=24, layers=2, dff=40), S16, seed=6)


@pytest.fixture(scope="module")
def session(model: QuantizedModel) -> Session:
    """Its exact form, with the graph for prompts."""
    return Session(build(model, "exact", GraphKind.STEP),
                   sequence=build(model, "exact", GraphKind.SEQUENCE))


@pytest.fixture(scope="module")
def tiny() -> Session:
    """The bundled model, which ends sentences."""
    return Session(build(load_model("tiny"), "exact", GraphKind.STEP))


@every_form
def test_every_form_loads_from_files(model: QuantizedModel, form: Form, tmp_path: Path) -> None:
    step, _ = export_onnx(model, tmp_path / "m.onnx", form=form)
    session = Session(step)
    assert session.info.form == form.value
    tokens = np.arange(40).reshape(4, 10)
    logits, state = session.prefill(tokens[:, :6])
    for t in range(6, 10):
        logits, state = session.step(tokens[:, t], state)
    expected, last = IntegerModel(model).run(tokens)
    if form.exact:
        np.testing.assert_array_equal(logits, expected[:, -1])
        np.testing.assert_array_equal(state, last)
    else:
        assert logits.dtype == state.dtype == np.float32
        assert np.corrcoef(logits.ravel(), expected[:, -1].ravel())[0, 1] > 0.9


def test_prompts_go_through_the_step_graph_without_the_other(
    model: QuantizedModel, session: Session, tmp_path: Path,
) -> None:
    step, sequence = export_onnx(model, tmp_path / "m.onnx")
    sequence.unlink()
    alone = Session(step)
    tokens = np.arange(30).reshape(2, 15)
    for mine, right in zip(alone.prefill(tokens), session.prefill(tokens), strict=True):
        np.testing.assert_array_equal(mine, right)


# Text ------------------------------------------------------------------------------


def test_text_is_what_reference_and_sampler_draw(
    model: QuantizedModel, session: Session,
) -> None:
    reference, sampler = IntegerModel(model), Sampler(temperature=0.7, seed=5)
    logits, state = reference.run(encode("ab")[None])
    row, expected = logits[:, -1], []
    for _ in range(20):
        expected.append(sampler(row[0]))
        row, state = reference.step(np.array(expected[-1:]), state)
    pieces = list(session.generate("ab", tokens=20, seed=5))
    assert [piece.token for piece in pieces] == expected
    assert [piece.end for piece in pieces] == [None] * 19 + ["length"]
    assert expected == list(generate_tokens(session, "ab", tokens=20, seed=5))
    text = bytes(expected).decode("utf-8", "replace")
    assert "".join(piece.text for piece in pieces) == text


def test_prompts_side_by_side_are_as_alone(tiny: Session) -> None:
    prompts = ["The for statement", "", "def "]
    together = tiny.complete(prompts, tokens=50, seed=9)
    for index, prompt in enumerate(prompts):
        assert tiny.complete([prompt], tokens=50, seed=9 + index) == [together[index]]


def test_one_prompt_may_stop_while_others_go_on(tiny: Session) -> None:
    prompts = ["The for statement", "def "]
    whole = tiny.complete(prompts, tokens=60)
    word = whole[0].split()[2]
    stopped = tiny.complete(prompts, tokens=60, stop=[word])
    assert stopped[0] == whole[0][:whole[0].index(word)]
    assert stopped[1] == whole[1].partition(word)[0]
    assert len(stopped[0]) < len(whole[0])


def test_the_beginning_of_a_stop_string_is_held_back(tiny: Session) -> None:
    text = tiny.complete(["The for statement"], tokens=60)[0]
    stop = text[20:26]
    seen = ""
    for piece in tiny.generate("The for statement", tokens=60, stop=[stop, "never"]):
        seen += piece.text
        assert not any(seen.endswith(stop[:size]) for size in range(1, len(stop))) or (
            piece.end == "stop")
    assert (seen, piece.end) == (text[:text.index(stop)], "stop")
    # One that never comes to its end is given out when the tokens end.
    last = text[-3:] + "\0"
    pieces = list(tiny.generate("The for statement", tokens=60, stop=[last]))
    assert "".join(piece.text for piece in pieces) == text
    assert pieces[-1].text.endswith(text[-3:])


def test_top_k_of_one_is_greedy(session: Session) -> None:
    assert session.complete(["a"], tokens=30, top_k=1) == session.complete(
        ["a"], tokens=30, temperature=0)


BAD_TEXT = {
    "no tokens": ({"tokens": 0}, "tokens must be at least 1"),
    "temperature": ({"temperature": -0.5}, r"temperature must be 0 or from 0\.01"),
    "top k": ({"top_k": 0}, "top_k must be at least 1"),
    "top p": ({"top_p": 1.5}, "top_p must be above 0"),
    "stop": ({"stop": [""]}, "stop string must not be empty"),
    "seed": ({"seed": 0}, "seed must be from 1"),
}


@pytest.mark.parametrize("case", BAD_TEXT)
def test_bad_settings_are_refused_before_anything_is_written(
    session: Session, case: str,
) -> None:
    settings, message = BAD_TEXT[case]
    with pytest.raises(ValueError, match=message):
        session.generate("a", **settings)


def test_no_prompt_and_foreign_tokens_are_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="prompts must hold at least one"):
        session.generate([])
    narrow = Session(build(random_model(ODD, S16), "exact", GraphKind.STEP))
    with pytest.raises(ValueError, match="tokens must be from 0 to 64"):
        narrow.generate("a")
    with pytest.raises(ValueError, match="tokens must be from 0 to 255"):
        session.step(np.array([256]), session.start())
    with pytest.raises(ValueError, match=r"state must be whole numbers \[layers, batch, d\]"):
        session.step(np.array([1]), session.start().astype(np.float32))
    with pytest.raises(ValueError, match="threads must be from 1 to 256"):
        Session(build(random_model(ODD, S16), "exact", GraphKind.STEP), threads=0)


# States ----------------------------------------------------------------------------


@every_form
def test_a_saved_state_goes_on_where_it_stopped(model: QuantizedModel, form: Form) -> None:
    session = Session(build(model, form, GraphKind.STEP))
    tokens = np.arange(12).reshape(2, 6)
    _, state = session.run(tokens)
    again = session.load_state(session.save_state(state))
    assert again.dtype == state.dtype
    np.testing.assert_array_equal(again, state)
    session.step(tokens[:, 0], again)


def test_exact_forms_share_their_states(model: QuantizedModel, session: Session) -> None:
    _, state = session.run(np.array([[1, 2, 3]]))
    web = Session(build(model, "web", GraphKind.STEP))
    np.testing.assert_array_equal(web.load_state(session.save_state(state)), state)


def test_foreign_and_damaged_states_are_refused(
    model: QuantizedModel, session: Session,
) -> None:
    saved = session.save_state(session.start())
    other = Session(build(random_model(model.config, S16, seed=1), "exact", GraphKind.STEP))
    with pytest.raises(ValueError, match="belongs to another model: expected"):
        other.load_state(saved)
    with pytest.raises(ValueError, match="of an exact form, and the form fast cannot"):
        Session(build(model, "fast", GraphKind.STEP)).load_state(saved)
    with pytest.raises(ValueError, match="not a saved state of Sterna"):
        session.load_state(b"PK\3\4")
    with pytest.raises(ValueError, match="damaged or cut off"):
        session.load_state(saved[:-5])
    with pytest.raises(ValueError, match="damaged"):
        session.load_state(saved[:60])
    with pytest.raises(ValueError, match=r"must be \[layers, batch, d\] = \[2, batch, 24\]"):
        session.save_state(np.zeros((2, 1, 23)))


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
    weight = next(each for each in proto.graph.initializer
                  if each.name in ("layer0.glu.down.weight",))
    raw = bytearray(weight.raw_data)
    for at in range(0, len(raw), 3):
        raw[at] = 0x55 if weight.data_type == onnx.TensorProto.INT2 else 0xFF
    if weight.data_type == onnx.TensorProto.FLOAT:
        raw = bytearray((numpy_helper.to_array(weight) * np.float32(1.3)).tobytes())
    weight.raw_data = bytes(raw)


@every_form
@both_kinds
@pytest.mark.parametrize("plant", [_rounding, _weights], ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_caught_by_the_self_test(
    model: QuantizedModel, form: Form, kind: GraphKind, plant,
) -> None:
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


def test_a_runtime_without_the_pinned_arithmetic_is_caught(model: QuantizedModel) -> None:
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
    monkeypatch.setattr(session_module, "has_two_bit_kernels", lambda: real(256))
    for form in ("exact-2bit", "fast"):
        proto = build(model, form, GraphKind.STEP)
        with pytest.raises(OnnxFileError, match=r"no 2-bit kernels.*--form exact instead"):
            Session(proto)
        Session(proto, allow_slow=True)
    Session(build(model, "exact", GraphKind.STEP))


def test_foreign_truncated_and_mixed_files_are_refused(
    model: QuantizedModel, tmp_path: Path,
) -> None:
    step, sequence = export_onnx(model, tmp_path / "m.onnx")
    data = step.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(data[:-700])
    with pytest.raises(OnnxFileError, match=r"cut\.onnx: "):
        Session(tmp_path / "cut.onnx")
    (tmp_path / "text.onnx").write_bytes(b"hello")
    with pytest.raises(OnnxFileError, match=r"text\.onnx: not an ONNX"):
        Session(tmp_path / "text.onnx")
    foreign = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
    with pytest.raises(OnnxFileError, match="not an ONNX graph made by Sterna"):
        Session(foreign)
    with pytest.raises(OnnxFileError, match="expected a step graph, got a sequence graph"):
        Session(sequence)
    other = random_model(model.config, C12, seed=1)
    export_onnx(other, tmp_path / "n.onnx")
    sequence_path(tmp_path / "n.onnx").replace(sequence)
    with pytest.raises(OnnxFileError, match="sequence graph of another model"):
        Session(step)
    with pytest.raises(OnnxFileError, match=r"none\.onnx: cannot read"):
        Session(tmp_path / "none.onnx")


def test_steps_can_be_compared_with_the_plain_class(
    model: QuantizedModel, session: Session,
) -> None:
    plain = OnnxStep(build(model, "exact", GraphKind.STEP))
    tokens = np.arange(8).reshape(2, 4)
    for mine, other in zip(session.run(tokens), plain.run(tokens), strict=True):
        np.testing.assert_array_equal(mine, other)


# Compiled operators ----------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_operators_compute_the_same_file(
    odd_model: QuantizedModel, native_ops: Path, batch: int, tmp_path: Path,
) -> None:
    step, _ = export_onnx(odd_model, tmp_path / "m.onnx")
    tokens = np.random.default_rng(1).integers(0, odd_model.config.vocab, (batch, 24))
    expected, last = IntegerModel(odd_model).run(tokens)
    for ops in (None, native_ops):
        session = Session(step, ops=ops)
        first, state = session.run(tokens[:, :15])
        np.testing.assert_array_equal(first, expected[:, :15])
        for t in range(15, 24):
            logits, state = session.step(tokens[:, t], state)
            np.testing.assert_array_equal(logits, expected[:, t])
        np.testing.assert_array_equal(state, last)


def test_operators_go_with_the_exact_form_alone(model: QuantizedModel, native_ops: Path) -> None:
    for form in ("fast", "exact-2bit", "web", "traced"):
        with pytest.raises(ValueError, match=f"goes with the form exact, got {form}"):
            Session(build(model, form, GraphKind.STEP), ops=native_ops)


@pytest.mark.slow
def test_a_faulty_library_is_caught_by_the_self_test(
    model: QuantizedModel, tmp_path: Path,
) -> None:
    library = build_ops(tmp_path, sources=planted_sources(
        tmp_path / "native", "layers.hpp", "y[i] * r + half) >> k", "y[i] * r) >> k"))
    proto = build(model, "exact", GraphKind.STEP)
    with pytest.raises(SelfTestError, match=r"the library .* is wrong: build it again"):
        Session(proto, ops=library)
    Session(proto)


def test_a_file_that_is_no_library_is_refused(model: QuantizedModel, tmp_path: Path) -> None:
    (tmp_path / "ops.so").write_bytes(b"no library")
    with pytest.raises(ValueError, match=r"ops\.so: onnxruntime cannot load the operators"):
        Session(build(model, "exact", GraphKind.STEP), ops=tmp_path / "ops.so")
