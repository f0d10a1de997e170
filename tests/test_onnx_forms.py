"""Every form of a graph against the integer reference, and what each costs in nodes and bytes."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import ODD, replace_weights
from extreme_models import EXTREMES
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_gather_elements

from sterna.export.exact.traced import build_sequence, build_step
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
    step_with_taps,
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
def test_exact_forms_equal_the_reference(profile, form, config, batch):
    _check(random_model(config, profile, seed=3), form, batch)


# 127 to 129 columns, and enough blocks to be padded to fours.
@lookup_forms
@pytest.mark.parametrize(("d", "dff"), [(1, 1), (127, 129), (128, 300), (200, 1153)])
def test_any_width_is_exact(form, d, dff):
    model = random_model(ModelConfig(d=d, layers=1, dff=dff, vocab=40), S16, seed=4)
    _check(model, form, length=5)


@exact_forms
@pytest.mark.parametrize("extreme", EXTREMES)
def test_extremes_are_exact(profile, form, extreme):
    _check(EXTREMES[extreme](random_model(ODD, profile, 1)), form, length=8)


def test_saturation_everywhere_is_exact(profile):
    model = random_model(ODD, profile, 2, gain=100.0)
    taps = TapRecorder()
    IntegerModel(model).run(_tokens(model, 2, 20), tap=taps)
    for name, fmt in (("layer1.mlgru.f.z", profile.z), ("layer1.glu.p", profile.p),
                      ("layer1.glu.x", profile.x)):
        assert (taps[name].min(), taps[name].max()) == (fmt.min, fmt.max), name
    for form in EXACT:
        _check(model, form)


@st.composite
def odd_profiles(draw: st.DrawFn) -> NumericProfile:
    """Any profile that the formats allow, within reach of the exact form."""
    def whole(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    z, h, mantissa = whole(4, 16), whole(6, 18), whole(8, 18)
    z_frac = whole(max(1, z - 9), z - 1)
    h_frac = h - (z - z_frac)
    assume(h_frac >= 0)
    try:
        return NumericProfile(
            "odd", z=FixedPoint(z, z_frac), h=FixedPoint(h, h_frac),
            x=FixedPoint(whole(6, 18), whole(0, 8)), o=FixedPoint(whole(6, 18), whole(0, 12)),
            p=FixedPoint(whole(6, 18), whole(0, 8)), logit=FixedPoint(whole(6, 18), whole(0, 8)),
            reciprocal_bits=whole(18, 24), root_frac=whole(0, 6), scale_frac=whole(8, 18),
            mantissa_bits=mantissa, scale_bits=whole(max(8, mantissa - 1), 18),
            sigmoid_frac=whole(4, 16), sigmoid_segments=1 << whole(1, z))
    except ValueError:
        assume(False)
        raise


def odd_model_of(profile: NumericProfile, seed: int) -> QuantizedModel:
    """A tiny model of such a profile."""
    try:
        return random_model(ModelConfig(d=7, layers=1, dff=9, vocab=11), profile, seed)
    except ValueError:
        assume(False)  # no shift gives the scale that the random model wants
        raise


@settings(max_examples=40)
@given(odd_profiles(), st.integers(0, 2**32 - 1), st.sampled_from(EXACT))
def test_any_profile_is_exact(profile, seed, form):
    _check(odd_model_of(profile, seed), form, batch=1, length=6)


@pytest.mark.parametrize("gain", [1.5, 100.0])
@pytest.mark.parametrize("kind", GraphKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("form", [Form.TRACED, Form.EXACT, Form.WEB], ids=lambda form: form.value)
def test_onnx_itself_computes_the_same(
    profile: NumericProfile, form: Form, kind: GraphKind, gain: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The evaluator's own is made of numpy.choose, which takes 64 entries at most.
    monkeypatch.setattr(
        op_gather_elements.GatherElements, "_run", lambda self, data, indices, axis=0: (
            np.take_along_axis(data, indices.astype(np.int64), axis=axis),))
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


@lookup_forms
def test_a_large_shift_takes_the_longer_way(odd_model, form):
    """The bias is added after rounding where a fraction and a bias do not fit float64."""
    def nodes(model: QuantizedModel) -> int:
        proto = build(model, form, GraphKind.STEP)
        return len(next(each for each in proto.functions if each.name == "Rescale1").node)

    shifted = EXTREMES["largest shifts"](odd_model)
    assert nodes(shifted) == nodes(odd_model) + 1
    _check(shifted, form, length=4)


def test_the_first_layer_that_differs_is_named(odd_model):
    wrong = dataclasses.replace(odd_model, projections=odd_model.projections | {
        "layer1.glu.down": replace_weights(odd_model, 0).projections["layer1.glu.down"]})
    for kind in GraphKind:
        report = check_exact(odd_model, build(wrong, Form.EXACT, kind), _tokens(odd_model, 2, 4))
        assert report.first is not None
        assert (report.first.token, report.first.tensor) == (0, "layer1.glu.x")


def test_profiles_beyond_the_tables_are_refused():
    profile = dataclasses.replace(
        S16, name="wide", x=dataclasses.replace(S16.x, bits=20), reciprocal_bits=24)
    model = random_model(ODD, profile)
    with pytest.raises(ValueError, match=r"x of profile wide has 20 bits.* at most 18"):
        build(model, Form.EXACT, GraphKind.STEP)
    _check(model, Form.TRACED, length=4)


@pytest.mark.parametrize(("form", "most"), [
    (Form.EXACT, 104), (Form.EXACT_2BIT, 108), (Form.WEB, 100), (Form.FAST, 19),
    (Form.TRACED, 218)])
def test_a_layer_is_this_many_nodes_when_it_is_loaded(form, most, tmp_path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    nodes = []
    for layers in (1, 2):
        proto = build(random_model(ModelConfig(d=64, layers=layers, dff=96), S16), form, "step")
        onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        nodes.append(len(onnx.load(options.optimized_model_filepath).graph.node))
    assert nodes[1] - nodes[0] <= most


@pytest.mark.slow
def test_files_are_as_small_as_stated():
    for d, dff, least in ((1024, 2816, 14), (128, 352, 9)):
        model = random_model(ModelConfig(d=d, layers=2, dff=dff), S16)
        sizes = {form: len(build(model, form, GraphKind.STEP).SerializeToString())
                 for form in Form}
        assert sizes[Form.FLOAT32] / sizes[Form.FAST] >= least
        if d == 1024:
            assert max(sizes[form] for form in EXACT) * 8 / model.config.ternary_weights <= 2.2


def test_each_comparison_refuses_the_other_kind_of_form(odd_model):
    tokens = _tokens(odd_model, 1, 2)
    for form in Form:
        proto = build(odd_model, form, GraphKind.STEP)
        wrong, right = (check_close, "check_exact") if form.exact else (check_exact, "check_close")
        with pytest.raises(ValueError, match=rf" form {form.value}: take {right}"):
            wrong(odd_model, proto, tokens)


def test_metadata_says_what_the_graph_is(odd_model):
    for form in Form:
        for kind in GraphKind:
            proto = build(odd_model, form, kind)
            info = GraphInfo.read(proto)
            assert (info.form, info.kind, info.exact) == (form.value, kind, form.exact)
            assert (info.vocab, info.shape) == (65, (2, 12))
            assert (info.profile, info.logit) == (odd_model.profile_name, odd_model.logit)
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


def test_columns_are_padded_to_what_the_kernels_like():
    assert [block_columns(n) for n in (5, 1024, 1025, 2816)] == [5, 1024, 1536, 3072]
    assert [block_columns(n, whole=True) for n in (5, 129, 1025)] == [128, 256, 1536]


@pytest.mark.parametrize(("form", "decibels", "to_integers"), [
    (Form.FLOAT32, 110, 25), (Form.FAST, 30, 18)], ids=["float32", "fast"])
def test_float_forms_are_the_same_real_numbers(profile, form, decibels, to_integers):
    model = random_model(ModelConfig(d=96, layers=2, dff=200), profile, seed=2, gain=0.3)
    tokens = _tokens(model, 3, 8)
    right = float_logits(model, tokens, saturate=form is Form.FLOAT32)
    states = []
    for kind, graph in ((GraphKind.STEP, OnnxStep), (GraphKind.SEQUENCE, OnnxSequence)):
        proto = build(model, form, kind)
        got, state = graph(proto).run(tokens)
        assert signal_to_noise(right, got) > decibels
        assert check_close(model, proto, tokens) > to_integers
        states.append(state)
    np.testing.assert_allclose(*states, rtol=1e-3, atol=1e-3)


# The traced form ------------------------------------------------------------------------


def test_every_tensor_is_the_references(odd_model):
    tokens = np.random.default_rng(5).integers(0, odd_model.config.vocab, (3, 12))
    expected = TapRecorder()
    IntegerModel(odd_model).run(tokens, tap=expected)
    for graph in (OnnxStep(build_step(odd_model), taps=None),
                  OnnxSequence(build_sequence(odd_model), taps=None)):
        got = TapRecorder()
        graph.run(tokens, tap=got)
        assert sorted(got.names()) == sorted(expected.names())
        for name in expected.names():
            assert got[name].dtype == np.int64
            np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


def test_only_the_tensors_asked_for_are_given(odd_model):
    names = ["layer1.glu.up.acc", "layer0.mlgru.g.z", "layer0.mlgru.norm.v", "logits"]
    taps: list[str] = []
    step = step_with_taps(odd_model, names)
    step.step(np.array([1]), step.start(), lambda name, value: taps.append(name))
    assert sorted(taps) == sorted(names)
    with pytest.raises(ValueError, match=r"no tensor called 'layer9\.glu\.p'; its tensors have"):
        step_with_taps(odd_model, ["layer9.glu.p"])


@pytest.mark.parametrize("build", [build_step, build_sequence])
def test_traced_graphs_use_only_exact_operators(odd_model, build):
    proto = build(odd_model)
    nodes = [*proto.graph.node, *(node for each in proto.functions for node in each.node)]
    operators = {node.op_type for node in nodes if not node.domain}
    assert not operators & {
        "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMul", "Gemm",
        "QLinearMatMul", "BitShift"}
    assert "MatMulInteger" in operators
    assert ("Scan" in operators) == (build is build_sequence)
    assert {node.domain for node in nodes} == {"", "sterna"}
