"""The compiled layers compute the integers of the reference, with every kernel."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import ODD
from extreme_models import EXTREMES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_graphs import int2, layer_graph, layer_table, session
from onnx import numpy_helper
from test_onnx_forms import odd_model_of, odd_profiles

from sterna.export.native.graph import profile_numbers
from sterna.export.native.ops import KERNEL_VARIABLE
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


def _check(model: QuantizedModel, library: Path, batch: int = 2, length: int = 20) -> None:
    """Every operator, on a whole sequence and step by step, on what the reference gives it."""
    tokens = np.random.default_rng(5).integers(0, model.config.vocab, (batch, length))
    taps = TapRecorder()
    IntegerModel(model).run(tokens, tap=taps)
    entry = "embedding.x"

    def run(operator: str, layer: int, result: str) -> None:
        nonlocal entry
        runner = session(layer_graph(model, operator, layer), library)
        x = taps[entry].astype(np.float64)
        recurrent = operator == "MlgruLayer"
        state = {"h": np.zeros((batch, model.config.d))} if recurrent else {}
        y, *last = runner.run(None, {"x": x, **state})
        np.testing.assert_array_equal(y, taps[result], err_msg=result)
        for t, token in enumerate(x):
            y, *after = runner.run(None, {"x": token, **state})
            np.testing.assert_array_equal(y, taps[result][t], err_msg=f"{result}, step {t}")
            if recurrent:
                state = {"h": after[0]}
                np.testing.assert_array_equal(after[0], taps[f"layer{layer}.mlgru.h"][t])
        if recurrent:
            np.testing.assert_array_equal(last[0], after[0])
        entry = result

    for layer in range(model.config.layers):
        run("MlgruLayer", layer, f"layer{layer}.mlgru.x")
        run("GluLayer", layer, f"layer{layer}.glu.x")
    run("Head", 0, "logits")


@pytest.fixture
def forced_kernel(native_kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNEL_VARIABLE, native_kernel)


def _bent(profile: NumericProfile) -> QuantizedModel:
    """A file may hold any table that does not decrease; the short form must not be used then."""
    model = random_model(ODD, profile, 4)
    model.sigmoid[30:] = np.minimum(model.sigmoid[30:] + 7, profile.sigmoid_max)
    return model


MODELS: dict[str, Callable[[NumericProfile], QuantizedModel]] = {
    **{str(config): partial(random_model, config, seed=3) for config in SHAPES},
    **{name: lambda profile, change=change: change(random_model(ODD, profile, 1))
       for name, change in EXTREMES.items()},
    "saturation everywhere": partial(random_model, ODD, seed=2, gain=100.0),
    "a table that is no sigmoid": _bent}


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize("name", MODELS)
def test_layers_equal_the_reference(name, profile, native_ops):
    _check(MODELS[name](profile), native_ops)


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize("batch", [1, 3, 17])
def test_the_batch_is_free(odd_model, batch, native_ops):
    _check(odd_model, native_ops, batch, length=5)


@pytest.mark.usefixtures("forced_kernel")
@pytest.mark.parametrize("gain", [1.5, 100.0])
def test_the_widest_formats_are_exact(gain, native_ops):
    _check(random_model(ODD, WIDEST, 3, gain=gain), native_ops)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd_profiles(), st.integers(0, 2**32 - 1))
def test_any_profile_is_exact(native_ops, native_kernel, profile, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KERNEL_VARIABLE, native_kernel)
        _check(odd_model_of(profile, seed), native_ops, batch=1, length=6)


def test_nodes_that_contradict_themselves_are_refused(native_ops):
    model = random_model(ODD, S16, 4)
    table = layer_table(model, "MlgruLayer")
    for operator, name, values, message in (
        ("MlgruLayer", "gates", table[:-1],
         r"MlgruLayer: gates must have 196608 numbers, got \[196607\]"),
        ("MlgruLayer", "gates", np.where(np.arange(len(table)) == 17, 2.0 ** -16, table),
         r"table must hold whole numbers of its format, got 0\.5\d* at entry 17"),
        ("MlgruLayer", "out.weight", int2("out.weight", np.zeros((12, 13), np.int8)),
         r"out_bias must have 13 numbers, got \[12\]"),
        ("Head", "head.scale", np.array([0.75]),
         "Head: head_k must be a whole number.*head_sc"),
    ):
        if isinstance(values, np.ndarray):
            values = numpy_helper.from_array(values, name)
        with pytest.raises(Exception, match=message):
            session(layer_graph(model, operator, **{name: values}), native_ops)


@pytest.mark.parametrize(("change", "match"), [
    (None, r"Head: attribute x_bits must be a whole number \(.*x_bits.*; load what .*with_ops ret"),
    ({"root_frac": 11}, r"Head: attribute root_frac must be from 0 to 10, got 11"),
    ({"h_bits": -1}, r"Head: attribute h_bits must be from 2 to 24, got -1"),
    ({"sigmoid_segments": 48}, r"Head: attribute sigmoid_segments must be a power of two"),
    ({"o_frac": 24, "h_frac": 0}, r"Head: the attributes of the formats .* contradict each other"),
    ({"p_frac": 2.5}, r"Head: attribute p_frac must be a whole number"),
])
def test_numbers_of_no_profile_are_refused(native_ops, change, match):
    numbers = {} if change is None else {**profile_numbers(S16), **change}
    with pytest.raises(Exception, match=match):
        session(layer_graph(random_model(ODD, S16, 4), "Head", numbers=numbers), native_ops)


def test_numbers_are_read_by_name_in_any_order(native_ops):
    model, x = random_model(ODD, S16, 4), np.full((1, ODD.d), 9.0)
    numbers = profile_numbers(S16)
    expected, found = (
        session(layer_graph(model, "Head", numbers=each), native_ops).run(None, {"x": x})[0]
        for each in (numbers, dict(reversed(numbers.items()))))
    np.testing.assert_array_equal(found, expected)


def test_inputs_of_another_shape_are_refused(native_ops):
    mlgru = session(layer_graph(random_model(ODD, S16, 4), "MlgruLayer"), native_ops)
    for x, h, message in (
        ((2, 12), (3, 12), r"h must be \[1, batch, 12\].*got \[3, 12\] and \[2, 12\]"),
        ((2, 11), (2, 12), r"x must be \[\.\.\., 12\], got \[2, 11\]"),
    ):
        with pytest.raises(Exception, match=message):
            mlgru.run(None, {"x": np.zeros(x), "h": np.zeros(h)})


def test_one_session_runs_in_several_threads(native_ops):
    model = random_model(ModelConfig(d=96, layers=1, dff=200, vocab=256), S16, 4)
    runner = session(layer_graph(model, "GluLayer"), native_ops)
    rng = np.random.default_rng(0)
    feeds = [rng.integers(-9000, 9000, (1 + i % 7, 96)).astype(np.float64) for i in range(200)]
    expected = [runner.run(None, {"x": x})[0] for x in feeds]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda x: runner.run(None, {"x": x})[0], feeds))
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
