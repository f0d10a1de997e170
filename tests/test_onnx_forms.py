"""Every form of a graph against the integer reference, and what each costs in nodes and bytes."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import ODD
from extreme_models import EXTREMES
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_gather_elements

from sterna.export.float.reference import float_logits
from sterna.export.forms.forms import Form, build
from sterna.export.forms.selftest import signal_to_noise
from sterna.export.graph.metadata import GraphInfo
from sterna.export.runtime.check import check_close, check_exact
from sterna.export.runtime.runtime import OnnxModel, has_two_bit_kernels, two_bit_blocks
from sterna.model.config import ModelConfig
from sterna.model.profile import S16, FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.bounds import folds_bias
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.records import Project
from sterna.model.quantized.synthetic import random_model
from sterna.model.quantized.taps import TapRecorder

both_lengths = pytest.mark.parametrize("one_token", [False, True], ids=["any", "one token"])


def _tokens(model: QuantizedModel, batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, model.config.vocab, (batch, length))


def _check(model: QuantizedModel, batch: int = 2, length: int = 16) -> None:
    tokens = _tokens(model, batch, length)
    for one_token in (False, True):
        report = check_exact(model, build(model, one_token=one_token), tokens)
        assert report.passed, str(report)
        assert report.logits.values == batch * length * model.config.vocab
        # Calls of 1, 2, 3 and so on, until all tokens are run.
        calls = length if one_token else math.ceil((math.sqrt(8 * length + 1) - 1) / 2)
        assert report.state.values == calls * batch * model.config.layers * model.config.d


@pytest.mark.parametrize(("config", "batch"), [
    (ODD, 1), (ODD, 4), (ModelConfig(d=1, layers=1, dff=1, vocab=2), 2),
    (ModelConfig(d=48, layers=1, dff=77, vocab=65), 2),
    (ModelConfig(d=64, layers=3, dff=100, vocab=256), 2)], ids=str)
def test_the_exact_form_equals_the_reference(profile, config, batch):
    _check(random_model(config, profile, seed=3), batch)


@pytest.mark.parametrize(("d", "dff"), [(1, 1), (127, 129), (128, 300), (200, 1153)])
def test_any_width_is_exact(d, dff):
    model = random_model(ModelConfig(d=d, layers=1, dff=dff, vocab=40), S16, seed=4)
    _check(model, length=5)


@pytest.mark.parametrize("extreme", EXTREMES)
def test_extremes_are_exact(profile, extreme):
    _check(EXTREMES[extreme](random_model(ODD, profile, 1)), length=8)


def test_saturation_everywhere_is_exact(profile):
    model = random_model(ODD, profile, 2, gain=100.0)
    taps = TapRecorder()
    IntegerModel(model).run(_tokens(model, 2, 20), tap=taps)
    for name, fmt in (("layer1.mlgru.f.z", profile.z), ("layer1.glu.p", profile.p),
                      ("layer1.glu.x", profile.x)):
        assert (taps[name].min(), taps[name].max()) == (fmt.min, fmt.max), name
    _check(model)


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
@given(odd_profiles(), st.integers(0, 2**32 - 1))
def test_any_profile_is_exact(profile, seed):
    _check(odd_model_of(profile, seed), batch=1, length=6)


@both_lengths
@pytest.mark.parametrize("gain", [1.5, 100.0])
def test_onnx_itself_computes_the_same(
    profile: NumericProfile, one_token: bool, gain: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not one_token:
        # The evaluator's own is made of numpy.choose, which takes 64 entries at most.
        monkeypatch.setattr(
            op_gather_elements.GatherElements, "_run", lambda self, data, indices, axis=0: (
                np.take_along_axis(data, indices.astype(np.int64), axis=axis),))
    model = random_model(ODD, profile, 4, gain=gain)
    evaluator = ReferenceEvaluator(build(model, one_token=one_token))
    tokens, reference = _tokens(model, 2, 8), IntegerModel(model)
    expected, last = reference.run(tokens)
    state, rows = reference.start(2).astype(np.int32), []
    for first in range(0, 8, 1 if one_token else 4):
        feeds = {"tokens": tokens[:, first:first + (1 if one_token else 4)], "state": state}
        row, state = evaluator.run(
            None, feeds if one_token else feeds | {"logits_from": np.array([0])})
        rows.append(row)
    np.testing.assert_array_equal(np.concatenate(rows, axis=1), expected)
    np.testing.assert_array_equal(state, last)


@pytest.mark.parametrize("first", [0, 3, 7, -1, -5, -8])
def test_only_the_logits_asked_for_are_given(odd_model, first):
    proto, tokens = build(odd_model), _tokens(odd_model, 2, 8)
    expected, last = IntegerModel(odd_model).run(tokens)
    got, state = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {
        "tokens": tokens, "state": np.zeros(last.shape, np.int32),
        "logits_from": np.array([first])})
    np.testing.assert_array_equal(got, expected[:, first:])
    np.testing.assert_array_equal(state, last)


def test_a_large_shift_takes_the_longer_way(odd_model):
    """The bias is added after rounding where a fraction and a bias do not fit float64."""
    shifted = EXTREMES["largest shifts"](odd_model)
    for model, expected in ((odd_model, True), (shifted, False)):
        assert expected == all(folds_bias(record, model.projections[record.name])
                               for record in model.records if isinstance(record, Project))
    _check(shifted, length=4)


def test_pre_activations_too_long_for_a_table_are_interpolated():
    z = FixedPoint(18, 13)
    profile = dataclasses.replace(
        S16, name="wide", z=z, h=dataclasses.replace(S16.h, bits=18, frac=13))
    _check(random_model(ODD, profile), length=4)


@pytest.mark.parametrize(("form", "one_token", "most"), [
    (Form.EXACT, False, 149), (Form.EXACT, True, 149), (Form.FAST, False, 19),
    (Form.FAST, True, 21)])
def test_a_layer_is_this_many_nodes_when_it_is_loaded(form, one_token, most, tmp_path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    nodes = []
    for layers in (1, 2):
        proto = build(random_model(ModelConfig(d=64, layers=layers, dff=96), S16), form,
                      one_token=one_token)
        onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        nodes.append(len(onnx.load(options.optimized_model_filepath).graph.node))
    assert nodes[1] - nodes[0] == most


@pytest.mark.slow
def test_files_are_as_small_as_stated():
    model = random_model(ModelConfig(d=1024, layers=2, dff=2816), S16)
    for form in Form:
        size = len(build(model, form).SerializeToString())
        assert size * 8 / model.config.ternary_weights <= 2.21


def test_each_comparison_refuses_the_other_kind_of_form(odd_model):
    tokens = _tokens(odd_model, 1, 2)
    for form in Form:
        proto = build(odd_model, form)
        wrong, right = (check_close, "check_exact") if form.exact else (check_exact, "check_close")
        with pytest.raises(ValueError, match=rf" form {form.value}: take {right}"):
            wrong(odd_model, proto, tokens)


@both_lengths
@pytest.mark.parametrize("form", Form, ids=lambda form: form.value)
def test_metadata_says_what_the_graph_is(odd_model, form, one_token):
    proto = build(odd_model, form, one_token=one_token)
    info = GraphInfo.read(proto)
    assert (info.form, info.one_token, info.exact) == (form, one_token, form.exact)
    assert (info.vocab, info.shape, info.records) == (65, (2, 12), odd_model.records)
    assert (info.profile, info.logit) == (odd_model.profile_name, odd_model.logit)
    assert info.model_sha256 == odd_model.sha256
    assert (proto.producer_name, proto.producer_version) == ("sterna", info.sterna_version)
    assert f"form {form.value}" in proto.doc_string
    onnx.checker.check_model(proto, full_check=True)
    assert proto == build(odd_model, form, one_token=one_token), "the same bytes"


def test_two_bit_kernels_are_told_by_what_they_round() -> None:
    # Blocks of 256 have no integer kernel in any onnxruntime so far: the slow way, for sure.
    assert not has_two_bit_kernels(256)
    assert two_bit_blocks(build(random_model(ODD, S16), Form.FAST)) == {64}
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "avx2" in flags.split():
        assert has_two_bit_kernels(64)
        assert has_two_bit_kernels(128)


@both_lengths
def test_the_fast_form_is_the_same_real_numbers(profile, one_token):
    # 1,100 columns are padded to whole groups of blocks.
    model = random_model(ModelConfig(d=96, layers=2, dff=1100), profile, seed=2, gain=0.3)
    tokens = _tokens(model, 3, 8)
    proto = build(model, Form.FAST, one_token=one_token)
    got, _ = OnnxModel(proto).run(tokens)
    assert signal_to_noise(float_logits(model, tokens, saturate=False), got) > 30
    assert check_close(model, proto, tokens) > 18


# Inner tensors --------------------------------------------------------------------------


@both_lengths
def test_every_tensor_is_the_references(odd_model, one_token):
    tokens = np.random.default_rng(5).integers(0, odd_model.config.vocab, (3, 12))
    expected, got = TapRecorder(), TapRecorder()
    IntegerModel(odd_model).run(tokens, tap=expected)
    OnnxModel(build(odd_model, one_token=one_token), taps=None).run(tokens, tap=got)
    assert sorted(got.names()) == sorted(expected.names())
    for name in got.names():
        assert got[name].dtype == np.int64
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


def test_only_the_tensors_asked_for_are_given(odd_model):
    names = ["layer1.glu.up.acc", "layer0.mlgru.g.a", "layer0.mlgru.g.sigmoid", "logits"]
    taps: list[str] = []
    graph = OnnxModel(odd_model, taps=names)
    graph.step(np.array([1]), graph.start(), lambda name, value: taps.append(name))
    assert sorted(taps) == sorted(names)
    with pytest.raises(ValueError, match=r"no tensor called 'layer9\.glu\.p'; its tensors have"):
        OnnxModel(odd_model, taps=["layer9.glu.p"])


@both_lengths
def test_the_exact_graph_is_made_of_exact_standard_operators(odd_model, one_token):
    proto = build(odd_model, one_token=one_token)
    assert not proto.functions
    assert [(each.domain, each.version) for each in proto.opset_import] == [("", 21)]
    assert proto.ir_version == 10
    assert {node.op_type for node in proto.graph.node} == {
        "Abs", "Add", "BitShift", "BitwiseAnd", "Cast", "Clip", "Concat", "Div", "Expand", "Floor",
        "Gather", "MatMulInteger", "Max", "Mul", "ReduceMax", "ReduceSumSquare", "Reshape", "Slice",
        "Split", "Sqrt", "Squeeze", "Transpose", "Unsqueeze",
        *(["GatherND", "Sub"] if one_token else ["GatherElements", "Scan", "Shape"]),
        *(["Sub"] if odd_model.profile.sigmoid_step_bits else [])}
