"""Every form of a graph against the integer reference, and what each costs in nodes and bytes."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import ODD, replace_weights
from extreme_models import EXTREMES
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_gather_elements

from sterna.export.float.reference import float_logits
from sterna.export.forms.forms import Form, build
from sterna.export.forms.selftest import signal_to_noise
from sterna.export.graph.metadata import GraphInfo, GraphKind
from sterna.export.graph.products import block_columns
from sterna.export.runtime.check import check_close, check_exact
from sterna.export.runtime.runtime import (
    OnnxSequence,
    OnnxStep,
    has_two_bit_kernels,
    two_bit_blocks,
)
from sterna.model.config import ModelConfig
from sterna.model.profile import S16, FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.model.quantized.taps import TapRecorder

EXACT = [form for form in Form if form.exact]
LOOKUP = [Form.EXACT, Form.EXACT_2BIT, Form.WEB]
exact_forms = pytest.mark.parametrize("form", EXACT, ids=lambda form: form.value)
lookup_forms = pytest.mark.parametrize("form", LOOKUP, ids=lambda form: form.value)


def _tokens(model: QuantizedModel, batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, model.config.vocab, (batch, length))


def _check(model: QuantizedModel, form: Form, batch: int = 2, length: int = 16) -> None:
    tokens = _tokens(model, batch, length)
    for kind in GraphKind:
        report = check_exact(model, build(model, form, kind), tokens)
        assert report.passed, f"{form.value}: {report}"
        assert report.logits.values == batch * length * model.config.vocab
        calls = length if kind is GraphKind.STEP else 1
        assert report.state.values == calls * batch * model.config.layers * model.config.d


@exact_forms
@pytest.mark.parametrize(("config", "batch"), [
    (ODD, 1), (ODD, 4), (ModelConfig(d=1, layers=1, dff=1, vocab=2), 2),
    (ModelConfig(d=48, layers=1, dff=77, vocab=65), 2),
    (ModelConfig(d=64, layers=3, dff=100, vocab=256), 2)], ids=str)
def test_exact_forms_equal_the_reference(
    profile: NumericProfile, form: Form, config: ModelConfig, batch: int,
) -> None:
    _check(random_model(config, profile, seed=3), form, batch)


# 127 to 129 columns, and enough blocks to be padded to fours.
@lookup_forms
@pytest.mark.parametrize(("d", "dff"), [(1, 1), (127, 129), (128, 300), (200, 1153)])
def test_any_width_is_exact(form: Form, d: int, dff: int) -> None:
    model = random_model(ModelConfig(d=d, layers=1, dff=dff, vocab=40), S16, seed=4)
    _check(model, form, length=5)


@exact_forms
@pytest.mark.parametrize("extreme", EXTREMES)
def test_extremes_are_exact(profile: NumericProfile, form: Form, extreme: str) -> None:
    _check(EXTREMES[extreme](random_model(ODD, profile, 1)), form, length=8)


def test_saturation_everywhere_is_exact(profile: NumericProfile) -> None:
    model = random_model(ODD, profile, 2, gain=100.0)
    taps = TapRecorder(["layer1.mlgru.f.z", "layer1.glu.p", "layer1.glu.x"])
    IntegerModel(model).run(_tokens(model, 2, 20), tap=taps)
    for name, fmt in (("f.z", profile.z), ("p", profile.p), ("x", profile.x)):
        values = taps[next(tap for tap in taps.names() if tap.endswith(f".{name}"))]
        assert values.max() == fmt.max, f"the test saturates {name}"
        assert values.min() == fmt.min, f"the test saturates {name}"
    for form in EXACT:
        _check(model, form)


@st.composite
def odd_profiles(draw: st.DrawFn) -> NumericProfile:
    """Any profile that the formats allow, within reach of the exact form."""
    z, h = draw(st.integers(4, 16)), draw(st.integers(6, 18))
    z_frac = draw(st.integers(max(1, z - 9), z - 1))
    h_frac = h - (z - z_frac)
    assume(h_frac >= 0)
    widths = {name: draw(st.integers(6, 18)) for name in ("x", "o", "p", "logit")}
    fraction_bits = {
        "x": draw(st.integers(0, 8)), "o": draw(st.integers(0, 12)),
        "p": draw(st.integers(0, 8)), "logit": draw(st.integers(0, 8))}
    mantissa = draw(st.integers(8, 18))
    formats = {name: FixedPoint(widths[name], fraction_bits[name]) for name in widths}
    try:
        return NumericProfile(
            "odd", z=FixedPoint(z, z_frac), h=FixedPoint(h, h_frac), **formats,
            reciprocal_bits=draw(st.integers(18, 24)), root_frac=draw(st.integers(0, 6)),
            scale_frac=draw(st.integers(8, 18)), mantissa_bits=mantissa,
            scale_bits=draw(st.integers(max(8, mantissa - 1), 18)),
            sigmoid_frac=draw(st.integers(4, 16)),
            sigmoid_segments=1 << draw(st.integers(1, z)))
    except ValueError:
        assume(False)
        raise


@settings(max_examples=40)
@given(odd_profiles(), st.integers(0, 2**32 - 1), st.sampled_from(EXACT))
def test_any_profile_is_exact(profile: NumericProfile, seed: int, form: Form) -> None:
    try:
        model = random_model(ModelConfig(d=7, layers=1, dff=9, vocab=11), profile, seed)
    except ValueError:
        assume(False)  # no shift gives the scale that the random model wants
    _check(model, form, batch=1, length=6)


def _gather_elements(self, data, indices, axis=0):
    return (np.take_along_axis(data, indices.astype(np.int64), axis=axis),)


@pytest.mark.parametrize("gain", [1.5, 100.0])
@pytest.mark.parametrize("kind", GraphKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("form", [Form.TRACED, Form.EXACT, Form.WEB], ids=lambda form: form.value)
def test_onnx_itself_computes_the_same(
    profile: NumericProfile, form: Form, kind: GraphKind, gain: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The evaluator's own is made of numpy.choose, which takes 64 entries at most.
    monkeypatch.setattr(op_gather_elements.GatherElements, "_run", _gather_elements)
    model = random_model(ODD, profile, 4, gain=gain)
    evaluator = ReferenceEvaluator(build(model, form, kind))
    tokens, reference = _tokens(model, 2, 8), IntegerModel(model)
    expected, last = reference.run(tokens)
    state = reference.start(2).astype(np.int32)
    if kind is GraphKind.SEQUENCE:
        got, state = evaluator.run(None, {"tokens": tokens, "state": state})
    else:
        rows = []
        for token in tokens.T:
            row, state = evaluator.run(None, {"token": token, "state": state})
            rows.append(row)
        got = np.stack(rows, axis=1)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(state, last)


@exact_forms
def test_a_prompt_and_then_steps_equal_steps_alone(
    odd_model: QuantizedModel, form: Form,
) -> None:
    tokens = _tokens(odd_model, 4, 14)
    step = OnnxStep(build(odd_model, form, GraphKind.STEP))
    sequence = OnnxSequence(build(odd_model, form, GraphKind.SEQUENCE))
    expected, last = step.run(tokens)
    first, state = sequence.run(tokens[:, :9])
    second, state = step.run(tokens[:, 9:], state)
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1), expected)
    np.testing.assert_array_equal(state, last)


@lookup_forms
def test_a_large_shift_takes_the_longer_way(odd_model: QuantizedModel, form: Form) -> None:
    """The bias is added after rounding where a fraction and a bias do not fit float64."""
    def nodes(model: QuantizedModel) -> int:
        proto = build(model, form, GraphKind.STEP)
        return len(next(each for each in proto.functions if each.name == "Rescale1").node)

    shifted = EXTREMES["largest shifts"](odd_model)
    assert nodes(shifted) == nodes(odd_model) + 1
    _check(shifted, form, length=4)


def test_the_first_layer_that_differs_is_named(odd_model: QuantizedModel) -> None:
    wrong = dataclasses.replace(odd_model, projections=odd_model.projections | {
        "layer1.glu.down": replace_weights(odd_model, 0).projections["layer1.glu.down"]})
    for kind in GraphKind:
        report = check_exact(odd_model, build(wrong, Form.EXACT, kind), _tokens(odd_model, 2, 4))
        assert report.first is not None
        assert (report.first.token, report.first.tensor) == (0, "layer1.glu.x")


def test_profiles_beyond_the_tables_are_refused() -> None:
    profile = dataclasses.replace(
        S16, name="wide", x=dataclasses.replace(S16.x, bits=20), reciprocal_bits=24)
    model = random_model(ODD, profile)
    with pytest.raises(ValueError, match=r"x of profile wide has 20 bits.* at most 18"):
        build(model, Form.EXACT, GraphKind.STEP)
    _check(model, Form.TRACED, length=4)


def _loaded_nodes(form: Form, layers: int) -> int:
    """Nodes that are left when onnxruntime has loaded a step graph."""
    import tempfile

    import onnxruntime
    model = random_model(ModelConfig(d=64, layers=layers, dff=96), S16)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "loaded.onnx")
        onnxruntime.InferenceSession(
            build(model, form, GraphKind.STEP).SerializeToString(), options,
            providers=["CPUExecutionProvider"])
        return len(onnx.load(options.optimized_model_filepath).graph.node)


@pytest.mark.parametrize(("form", "most"), [
    (Form.EXACT, 104), (Form.EXACT_2BIT, 108), (Form.WEB, 100), (Form.FAST, 19),
    (Form.TRACED, 171)],
    ids=lambda value: value.value if isinstance(value, Form) else str(value))
def test_a_layer_is_this_many_nodes(form: Form, most: int) -> None:
    assert _loaded_nodes(form, 2) - _loaded_nodes(form, 1) <= most


@pytest.mark.slow
def test_files_are_as_small_as_stated() -> None:
    config = ModelConfig(d=1024, layers=2, dff=2816)
    model = random_model(config, S16)
    sizes = {form: len(build(model, form, GraphKind.STEP).SerializeToString()) for form in Form}
    for form in EXACT:
        assert sizes[form] * 8 / config.ternary_weights <= 2.2, form
    assert sizes[Form.FLOAT32] / sizes[Form.FAST] >= 14
    small = random_model(ModelConfig(d=128, layers=2, dff=352), S16)
    fast, dense = (len(build(small, form, GraphKind.STEP).SerializeToString())
                   for form in (Form.FAST, Form.FLOAT32))
    assert dense / fast >= 9


@pytest.mark.parametrize(("form", "decibels"), [(Form.FLOAT32, 25), (Form.FAST, 18)],
                         ids=lambda value: value.value if isinstance(value, Form) else "")
def test_float_forms_are_close(profile: NumericProfile, form: Form, decibels: float) -> None:
    model = random_model(ModelConfig(d=128, layers=2, dff=300), profile, gain=0.3)
    for kind in GraphKind:
        assert check_close(model, build(model, form, kind), _tokens(model, 2, 8)) > decibels


def test_each_comparison_refuses_the_other_kind_of_form(odd_model: QuantizedModel) -> None:
    tokens = _tokens(odd_model, 1, 2)
    for form in Form:
        proto = build(odd_model, form, GraphKind.STEP)
        wrong, right = (check_close, "check_exact") if form.exact else (check_exact, "check_close")
        with pytest.raises(ValueError, match=rf" form {form.value}: take {right}"):
            wrong(odd_model, proto, tokens)


@pytest.mark.parametrize("form", [Form.FLOAT32, Form.FAST], ids=lambda form: form.value)
def test_a_float_sequence_is_its_steps(odd_model: QuantizedModel, form: Form) -> None:
    tokens = _tokens(odd_model, 3, 10)
    expected, last = OnnxStep(build(odd_model, form, GraphKind.STEP)).run(tokens)
    got, state = OnnxSequence(build(odd_model, form, GraphKind.SEQUENCE)).run(tokens)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(state, last, rtol=1e-3, atol=1e-3)


def test_metadata_says_what_the_graph_is(odd_model: QuantizedModel) -> None:
    for form in Form:
        for kind in GraphKind:
            proto = build(odd_model, form, kind)
            info = GraphInfo.read(proto)
            assert (info.form, info.kind, info.exact) == (form.value, kind, form.exact)
            assert (info.config, info.profile) == (odd_model.config, odd_model.profile)
            assert info.model_sha256 == odd_model.sha256
            assert (proto.producer_name, proto.producer_version) == ("sterna", info.sterna_version)
            assert all(function.doc_string for function in proto.functions)
            assert f"form {form.value}" in proto.doc_string
            onnx.checker.check_model(proto, full_check=True)
            assert proto == build(odd_model, form, kind), "the same bytes"


def test_two_bit_kernels_are_told_by_what_they_round() -> None:
    # Blocks of 256 have no integer kernel in any onnxruntime so far: the slow way, for sure.
    assert not has_two_bit_kernels(256)
    assert two_bit_blocks(build(random_model(ODD, S16), Form.FAST, GraphKind.STEP)) == {64}
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "avx2" in flags.split():
        assert has_two_bit_kernels(64)
        assert has_two_bit_kernels(128)


def test_columns_are_padded_to_what_the_kernels_like() -> None:
    assert [block_columns(n) for n in (5, 1024, 1025, 2816)] == [5, 1024, 1536, 3072]
    assert [block_columns(n, whole=True) for n in (5, 129, 1025)] == [128, 256, 1536]


@pytest.mark.parametrize(("form", "decibels"), [(Form.FLOAT32, 110), (Form.FAST, 30)],
                         ids=lambda value: value.value if isinstance(value, Form) else "")
def test_float_forms_are_the_same_real_numbers(
    profile: NumericProfile, form: Form, decibels: float,
) -> None:
    model = random_model(ModelConfig(d=96, layers=2, dff=200), profile, seed=2)
    tokens = _tokens(model, 3, 8)
    right = float_logits(model, tokens, saturate=form is Form.FLOAT32)
    for kind, graph in ((GraphKind.STEP, OnnxStep), (GraphKind.SEQUENCE, OnnxSequence)):
        got, _ = graph(build(model, form, kind)).run(tokens)
        assert signal_to_noise(right, got) > decibels
