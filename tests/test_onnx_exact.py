"""The exact ONNX graphs compute the integers of the reference."""

import dataclasses

import numpy as np
import onnx
import pytest
from conftest import ODD, replace_weights
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from sterna.export.exact.traced import build_sequence, build_step
from sterna.export.runtime.check import check_exact
from sterna.export.runtime.runtime import OnnxSequence, OnnxStep, step_with_taps
from sterna.model.config import ModelConfig
from sterna.model.profile import FixedPoint, NumericProfile
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.model.quantized.taps import TapRecorder

SHAPES = [
    ODD,
    ModelConfig(d=1, layers=1, dff=1, vocab=2),
    ModelConfig(d=48, layers=1, dff=77, vocab=65),
    ModelConfig(d=64, layers=3, dff=100, vocab=256),
]


def _tokens(model: QuantizedModel, batch: int, length: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, model.config.vocab, (batch, length))


def _check_both_graphs(model: QuantizedModel, batch: int = 2, length: int = 20) -> None:
    tokens = _tokens(model, batch, length)
    for build, states in ((build_step, length), (build_sequence, 1)):
        report = check_exact(model, build(model), tokens)
        assert report.passed, str(report)
        assert report.logits.values == batch * length * model.config.vocab
        assert report.state.values == (
            states * batch * model.config.layers * model.config.d)


@pytest.mark.parametrize("config", SHAPES, ids=str)
def test_both_graphs_equal_the_reference(config: ModelConfig, profile: NumericProfile) -> None:
    _check_both_graphs(random_model(config, profile, seed=3))


@pytest.mark.parametrize("batch", [1, 4])
def test_the_batch_is_free(odd_model: QuantizedModel, batch: int) -> None:
    _check_both_graphs(odd_model, batch)


def _embedding(model: QuantizedModel, value: int) -> QuantizedModel:
    return dataclasses.replace(model, embedding=np.full_like(model.embedding, value))


def _every_shift(model: QuantizedModel, shift: int) -> QuantizedModel:
    return dataclasses.replace(model, projections={
        name: Projection(p.weight, p.bias, p.k, shift)
        for name, p in model.projections.items()})


def _saturating_biases(model: QuantizedModel) -> QuantizedModel:
    def ends(name: str) -> list[int]:
        reach = 1 << (model.profile.bias_bits(name) - 1)
        return [-reach, reach - 1]

    return dataclasses.replace(model, projections={
        name: Projection(p.weight, np.resize(np.int32(ends(name)), p.bias.shape), p.k, p.shift)
        for name, p in model.projections.items()})


EXTREMES = {
    "all-zero weights": lambda m: replace_weights(m, 0),
    "all-one weights": lambda m: replace_weights(m, 1),
    "all-minus-one weights": lambda m: replace_weights(m, -1),
    "zero embedding": lambda m: _embedding(m, 0),
    "lowest embedding": lambda m: _embedding(replace_weights(m, 1), m.profile.x.min),
    "saturating biases": _saturating_biases,
    "smallest shifts": lambda m: _every_shift(m, 1),
    "largest shifts": lambda m: _every_shift(_saturating_biases(m), m.profile.max_shift),
}


@pytest.mark.parametrize("extreme", EXTREMES)
def test_extremes_are_exact(profile: NumericProfile, extreme: str) -> None:
    _check_both_graphs(EXTREMES[extreme](random_model(ODD, profile, 1)))


def test_saturation_everywhere_is_exact(profile: NumericProfile) -> None:
    model = random_model(ODD, profile, 2, gain=100.0)
    taps = TapRecorder(["layer1.mlgru.f.z", "layer1.glu.p", "layer1.glu.x"])
    IntegerModel(model).run(_tokens(model, 2, 20), tap=taps)
    for name, fmt in (("f.z", profile.z), ("p", profile.p), ("x", profile.x)):
        values = taps[next(tap for tap in taps.names() if tap.endswith(f".{name}"))]
        assert values.max() == fmt.max, f"the test saturates {name}"
        assert values.min() == fmt.min, f"the test saturates {name}"
    _check_both_graphs(model)


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
@given(odd_profiles(), st.integers(0, 2**32 - 1))
def test_any_profile_is_exact(profile: NumericProfile, seed: int) -> None:
    config = ModelConfig(d=7, layers=1, dff=9, vocab=11)
    try:
        model = random_model(config, profile, seed)
    except ValueError:
        assume(False)  # no shift gives the scale that the random model wants
    _check_both_graphs(model, batch=1, length=6)


def test_every_tensor_of_the_step_graph_is_the_references(odd_model: QuantizedModel) -> None:
    tokens = _tokens(odd_model, 2, 12)
    expected, got = TapRecorder(), TapRecorder()
    IntegerModel(odd_model).run(tokens, tap=expected)
    step_with_taps(odd_model).run(tokens, tap=got)
    assert sorted(got.names()) == sorted(expected.names())
    for name in expected.names():
        assert got[name].dtype == np.int64
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


def test_only_the_tensors_asked_for_are_given(odd_model: QuantizedModel) -> None:
    names = ["layer1.glu.up.acc", "layer0.mlgru.g.z", "layer0.mlgru.norm.v", "logits"]
    taps: list[str] = []
    step = step_with_taps(odd_model, names)
    step.step(np.array([1]), step.start(), lambda name, value: taps.append(name))
    assert sorted(taps) == sorted(names)
    with pytest.raises(ValueError, match=r"no tensor called 'layer9\.glu\.p'; its tensors have"):
        step_with_taps(odd_model, ["layer9.glu.p"])


def test_the_sequence_graph_has_the_same_tensors(odd_model: QuantizedModel) -> None:
    tokens = _tokens(odd_model, 3, 9)
    expected, got = TapRecorder(), TapRecorder()
    IntegerModel(odd_model).run(tokens, tap=expected)
    OnnxSequence(build_sequence(odd_model), taps=None).run(tokens, tap=got)
    assert sorted(got.names()) == sorted(expected.names())
    for name in expected.names():
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


def test_prefill_and_decode_equal_step_by_step(odd_model: QuantizedModel) -> None:
    tokens = _tokens(odd_model, 2, 40)
    step, sequence = OnnxStep(build_step(odd_model)), OnnxSequence(build_sequence(odd_model))
    logits, state = step.run(tokens)
    prefill, middle = sequence.run(tokens[:, :33])
    decoded, end = step.run(tokens[:, 33:], middle)
    np.testing.assert_array_equal(np.concatenate([prefill, decoded], axis=1), logits)
    np.testing.assert_array_equal(end, state)


@pytest.mark.parametrize("gain", [1.5, 100.0])
def test_the_onnx_evaluator_agrees_on_the_step_graph(
    profile: NumericProfile, gain: float,
) -> None:
    model = random_model(ODD, profile, 4, gain=gain)
    evaluator = ReferenceEvaluator(build_step(model))
    tokens, reference = _tokens(model, 2, 15), IntegerModel(model)
    expected_state = reference.start(2)
    state = expected_state.astype(np.int32)
    for token in tokens.T:
        expected, expected_state = reference.step(token, expected_state)
        logits, state = evaluator.run(None, {"token": token, "state": state})
        np.testing.assert_array_equal(logits, expected)
        np.testing.assert_array_equal(state, expected_state)


def test_the_onnx_evaluator_agrees_on_the_sequence_graph(odd_model: QuantizedModel) -> None:
    tokens = _tokens(odd_model, 2, 10)
    expected, expected_state = IntegerModel(odd_model).run(tokens)
    start = np.zeros((ODD.layers, 2, ODD.d), dtype=np.int32)
    logits, state = ReferenceEvaluator(build_sequence(odd_model)).run(
        None, {"tokens": tokens, "state": start})
    np.testing.assert_array_equal(logits, expected)
    np.testing.assert_array_equal(state, expected_state)


@pytest.mark.parametrize("build", [build_step, build_sequence])
def test_graphs_use_only_exact_operators(odd_model: QuantizedModel, build) -> None:
    proto = build(odd_model)
    onnx.checker.check_model(proto, full_check=True)
    nodes = list(proto.graph.node)
    for function in proto.functions:
        nodes.extend(function.node)
    operators = {node.op_type for node in nodes if not node.domain}
    assert not operators & {
        "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMul", "Gemm",
        "QLinearMatMul", "BitShift"}
    assert "MatMulInteger" in operators
    assert ("Scan" in operators) == (build is build_sequence)
    assert {node.domain for node in nodes} == {"", "sterna"}
