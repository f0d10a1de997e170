"""The compiled layers compute the integers of the reference, with every kernel."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import ODD
from extreme_models import EXTREMES
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from native_graphs import (
    gate_table,
    glu_tensors,
    graph,
    head_tensors,
    int2,
    mlgru_tensors,
    planted_sources,
    session,
)
from onnx import numpy_helper
from test_onnx_forms import odd_profiles

from sterna.export.graph.metadata import profile_numbers
from sterna.export.native.ops import KERNEL_VARIABLE, build_ops
from sterna.model.config import ModelConfig
from sterna.model.profile import S16, FixedPoint, NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.model.quantized.taps import TapRecorder

SHAPES = [
    ModelConfig(d=1, layers=1, dff=1, vocab=2),
    ModelConfig(d=48, layers=1, dff=77, vocab=65),
    ModelConfig(d=64, layers=3, dff=100, vocab=256),
]

WIDEST = NumericProfile(
    "widest", x=FixedPoint(24, 8), z=FixedPoint(16, 7), h=FixedPoint(24, 15),
    o=FixedPoint(24, 12), p=FixedPoint(24, 4), logit=FixedPoint(24, 8), reciprocal_bits=24,
    root_frac=10, scale_frac=24, mantissa_bits=24, scale_bits=24, sigmoid_frac=24,
    sigmoid_segments=512)


def _mlgru(model: QuantizedModel, layer: int) -> onnx.ModelProto:
    return graph("MlgruLayer", ["x", "h"], ["y", "h_next"], mlgru_tensors(model, layer),
                 profile_numbers(model.profile))


def _glu(model: QuantizedModel, layer: int) -> onnx.ModelProto:
    return graph("GluLayer", ["x"], ["y"], glu_tensors(model, layer),
                 profile_numbers(model.profile))


def _head(model: QuantizedModel) -> onnx.ModelProto:
    return graph("Head", ["x"], ["logits"], head_tensors(model), profile_numbers(model.profile))


def _differences(
    model: QuantizedModel, library: Path, batch: int = 2, length: int = 20,
) -> dict[str, int]:
    """How many values of each operator differ from the reference's."""
    tokens = np.random.default_rng(5).integers(0, model.config.vocab, (batch, length))
    taps = TapRecorder()
    IntegerModel(model).run(tokens, tap=taps)

    def wrong(name: str, got: np.ndarray) -> int:
        assert got.shape == taps[name].shape
        return int((got != taps[name]).sum())

    found = {}
    x = taps["embedding.x"].astype(np.float64)
    for layer in range(model.config.layers):
        mlgru, glu = session(_mlgru(model, layer), library), session(_glu(model, layer), library)
        at = f"layer{layer}.mlgru"
        start = np.zeros((batch, model.config.d))
        y, last = mlgru.run(None, {"x": x, "h": start})
        h, steps = start, []
        for token in x:
            out, h = mlgru.run(None, {"x": token, "h": h})
            steps.append((out, h))
        found[f"{at} sequence"] = wrong(f"{at}.x", y) + int((last != h).sum())
        found[f"{at} step"] = wrong(f"{at}.x", np.stack([out for out, _ in steps]))
        found[f"{at} state"] = wrong(f"{at}.h", np.stack([h for _, h in steps]))
        x = taps[f"{at}.x"].astype(np.float64)
        at = f"layer{layer}.glu"
        found[f"{at} sequence"] = wrong(f"{at}.x", glu.run(None, {"x": x})[0])
        found[f"{at} step"] = wrong(
            f"{at}.x", np.stack([glu.run(None, {"x": token})[0] for token in x]))
        x = taps[f"{at}.x"].astype(np.float64)
    head = session(_head(model), library)
    found["head sequence"] = wrong("logits", head.run(None, {"x": x})[0])
    found["head step"] = wrong(
        "logits", np.stack([head.run(None, {"x": token})[0] for token in x]))
    return found


def _check(model: QuantizedModel, library: Path, batch: int = 2, length: int = 20) -> None:
    found = _differences(model, library, batch, length)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.fixture
def forced_kernel(native_kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNEL_VARIABLE, native_kernel)


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize("config", SHAPES, ids=str)
def test_layers_equal_the_reference(
    config: ModelConfig, profile: NumericProfile, native_ops: Path,
) -> None:
    _check(random_model(config, profile, seed=3), native_ops)


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize("batch", [1, 3, 17])
def test_the_batch_is_free(odd_model: QuantizedModel, batch: int, native_ops: Path) -> None:
    _check(odd_model, native_ops, batch, length=5)


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize("extreme", EXTREMES)
def test_extremes_are_exact(profile: NumericProfile, extreme: str, native_ops: Path) -> None:
    _check(EXTREMES[extreme](random_model(ODD, profile, 1)), native_ops)


@pytest.mark.usefixtures("forced_kernel")
def test_saturation_everywhere_is_exact(profile: NumericProfile, native_ops: Path) -> None:
    _check(random_model(ODD, profile, 2, gain=100.0), native_ops)


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize("gain", [1.5, 100.0])
def test_the_widest_formats_are_exact(gain: float, native_ops: Path) -> None:
    _check(random_model(ODD, WIDEST, 3, gain=gain), native_ops)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd_profiles(), st.integers(0, 2**32 - 1))
def test_any_profile_is_exact(
    native_ops: Path, native_kernel: str, profile: NumericProfile, seed: int,
) -> None:
    try:
        model = random_model(ModelConfig(d=7, layers=1, dff=9, vocab=11), profile, seed)
    except ValueError:
        assume(False)  # no shift gives the scale that the random model wants
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KERNEL_VARIABLE, native_kernel)
        _check(model, native_ops, batch=1, length=6)


@pytest.mark.usefixtures("forced_kernel")
def test_a_table_that_is_no_sigmoid_is_used_as_it_is(native_ops: Path) -> None:
    # A file may hold any table that does not decrease; the short form must not be used then.
    model = random_model(ODD, S16, 4)
    model.sigmoid[30:] = np.minimum(model.sigmoid[30:] + 7, S16.sigmoid_max)
    _check(model, native_ops)


def test_nodes_that_contradict_themselves_are_refused(native_ops: Path) -> None:
    model = random_model(ODD, S16, 4)

    def refused(operator: str, tensors: list[onnx.TensorProto], match: str) -> None:
        inputs = ["x", "h"] if operator == "MlgruLayer" else ["x"]
        outputs = ["y", "h_next"] if operator == "MlgruLayer" else ["y"]
        with pytest.raises(Exception, match=match):
            session(graph(operator, inputs, outputs, tensors, profile_numbers(S16)), native_ops)

    tensors = mlgru_tensors(model, 0)
    table = gate_table(model)
    refused("MlgruLayer", [*tensors[:-2], numpy_helper.from_array(table[:-1], "gates"),
                           tensors[-1]],
            r"MlgruLayer: gates must have 196608 numbers, got \[196607\]")
    table[17] = 2.0 ** -16
    refused("MlgruLayer", [*tensors[:-2], numpy_helper.from_array(table, "gates"),
                           tensors[-1]],
            r"table must hold whole numbers of its format, got 0\.5\d* at entry 17")
    refused("MlgruLayer", [*tensors[:4], int2("out_weight", np.zeros((12, 13), np.int8)),
                           *tensors[5:]],
            r"out_bias must have 13 numbers, got \[12\]")
    scale = numpy_helper.from_array(np.array([0.75]), "head_scale")
    head = head_tensors(model)
    refused("Head", [*head[:2], scale, *head[3:]], r"Head: head_k must be a whole number.*head_sc")


@pytest.mark.parametrize(("change", "match"), [
    (None, r"Head: attribute x_bits must be a whole number \(.*x_bits.*; load what .*with_ops ret"),
    ({"root_frac": 11}, r"Head: attribute root_frac must be from 0 to 10, got 11"),
    ({"h_bits": -1}, r"Head: attribute h_bits must be from 2 to 24, got -1"),
    ({"sigmoid_segments": 48}, r"Head: attribute sigmoid_segments must be a power of two"),
    ({"o_frac": 24, "h_frac": 0}, r"Head: the attributes of the formats .* contradict each other"),
    ({"p_frac": 2.5}, r"Head: attribute p_frac must be a whole number"),
])
def test_numbers_of_no_profile_are_refused(
    native_ops: Path, change: dict[str, float] | None, match: str,
) -> None:
    numbers = None if change is None else {**profile_numbers(S16), **change}
    proto = graph("Head", ["x"], ["y"], head_tensors(random_model(ODD, S16, 4)), numbers)
    with pytest.raises(Exception, match=match):
        session(proto, native_ops)


def test_numbers_are_read_by_name_in_any_order(native_ops: Path) -> None:
    model = random_model(ODD, S16, 4)
    numbers = profile_numbers(S16)
    x = np.full((1, ODD.d), 9.0)
    (expected,) = session(_head(model), native_ops).run(None, {"x": x})
    turned = graph("Head", ["x"], ["y"], head_tensors(model), dict(reversed(numbers.items())))
    np.testing.assert_array_equal(session(turned, native_ops).run(None, {"x": x})[0], expected)


def test_inputs_of_another_shape_are_refused(native_ops: Path) -> None:
    model = random_model(ODD, S16, 4)
    mlgru = session(_mlgru(model, 0), native_ops)
    with pytest.raises(Exception, match=r"h must be \[1, batch, 12\].*got \[3, 12\] and \[2, 12\]"):
        mlgru.run(None, {"x": np.zeros((2, 12)), "h": np.zeros((3, 12))})
    with pytest.raises(Exception, match=r"x must be \[\.\.\., 12\], got \[2, 11\]"):
        mlgru.run(None, {"x": np.zeros((2, 11)), "h": np.zeros((2, 12))})


def test_one_session_runs_in_several_threads(native_ops: Path) -> None:
    model = random_model(ModelConfig(d=96, layers=1, dff=200, vocab=256), S16, 4)
    runner = session(_glu(model, 0), native_ops)
    rng = np.random.default_rng(0)
    feeds = [rng.integers(-9000, 9000, (1 + i % 7, 96)).astype(np.float64) for i in range(200)]
    expected = [runner.run(None, {"x": x})[0] for x in feeds]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda x: runner.run(None, {"x": x})[0], feeds))
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


FAULTS = {
    "rounding of q": ("layers.hpp", "y[i] * r + half) >> k", "y[i] * r) >> k"),
    "the state": ("layers.hpp", "(one - f[i]) * c[i] + ff_half", "(one - f[i]) * c[i]"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_ops")
@pytest.mark.parametrize("fault", [
    "rounding of q", pytest.param("the state", marks=pytest.mark.long)])
def test_a_planted_fault_shows(fault: str, native_ops: Path, tmp_path: Path) -> None:
    name, right, wrong = FAULTS[fault]
    library = build_ops(tmp_path, sources=planted_sources(tmp_path / "native", name, right, wrong))
    model = random_model(ODD, S16, 4)
    assert sum(_differences(model, library).values()) > 0
