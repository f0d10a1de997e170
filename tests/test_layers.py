"""Layers made from plain arrays: the integer reference of the model, in parts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.model.config import ModelConfig
from sterna.model.layers import (
    BitLinearLayer,
    GluLayer,
    InputLayer,
    MatrixLayer,
    MlgruLayer,
    ResidualLayer,
    SequentialLayer,
    TernaryMatrix,
)
from sterna.model.profile import C12, S16, FixedPoint
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.model.quantized.taps import TapRecorder

_CONFIG = ModelConfig(d=12, layers=2, dff=20)


@pytest.mark.parametrize("profile", [S16, C12], ids=["S16", "C12"])
def test_the_layers_of_a_model_compute_what_the_model_does(profile):
    model = random_model(_CONFIG, profile, seed=3)
    recorder = TapRecorder()
    tokens = np.random.default_rng(1).integers(0, 256, (2, 5))
    IntegerModel(model).run(tokens, tap=recorder)

    def projections(at: str, names: str) -> dict:
        return {name: model.projections[f"{at}.{name}"] for name in names.split()}

    blocks = [ResidualLayer(kind(profile, projections(f"layer{i}.{at}", names), profile.x))
              for i in range(_CONFIG.layers)
              for kind, at, names in ((MlgruLayer, "mlgru", "f c g out"),
                                      (GluLayer, "glu", "gate up down"))]
    head = BitLinearLayer(profile, {"linear": model.projections["head"]}, profile.logit)
    whole = SequentialLayer([*blocks, head])
    assert whole.states == (12, 12)
    x = recorder["embedding.x"].transpose(1, 0, 2)
    logits, _ = whole.run(x)
    assert np.array_equal(logits, recorder["logits"].transpose(1, 0, 2))


@given(st.data())
def test_a_frame_is_centred_and_scaled_as_the_real_numbers_say(data):
    profile, channels = data.draw(st.sampled_from([S16, C12])), data.draw(st.integers(1, 5))
    step = Fraction(1, 1 << profile.x.frac)

    def drawn(values: st.SearchStrategy[float]) -> list[float]:
        return data.draw(st.lists(values, min_size=channels, max_size=channels))

    largest = drawn(st.floats(1e-3, 1e3))
    offset = [each * share for each, share in zip(largest, drawn(st.floats(-1, 1)), strict=True)]
    # Of a channel that reaches 1/4 to 64.
    exponent = [power - math.frexp(each)[1]
                for each, power in zip(largest, drawn(st.integers(-2, 6)), strict=True)]
    layer = InputLayer.of(offset, exponent, largest, profile=profile)
    frame = [each * share for each, share in zip(largest, drawn(st.floats(-1, 1)), strict=True)]
    y, _ = layer.step(layer.integers([frame]))
    *found, one = [int(each) * step for each in y[0]]
    assert one == 1
    limit = -profile.x.min * step
    for each, x, centre, power, most in zip(
            found, frame, offset, exponent, largest, strict=True):
        exact = (Fraction(x) - Fraction(centre)) * Fraction(2) ** power
        # Half a step each of the frame, of the offset and of the result.
        near = (Fraction(2) ** (math.frexp(most)[1] - 15 + power) + step / 2)
        assert abs(each - max(min(exact, limit - step), -limit)) <= near


def test_a_loud_frame_is_no_quiet_one():
    weight = np.random.default_rng(2).integers(-1, 2, (6, 2))
    plain = BitLinearLayer.of(weight[:, :1])
    scaled = SequentialLayer([InputLayer.of([0], [0], [8]), BitLinearLayer.of(weight)])
    quiet, loud = scaled.layers[0].integers([[0.3]]), scaled.layers[0].integers([[3.0]])
    assert np.array_equal(plain.step(quiet)[0], plain.step(loud)[0])
    assert not np.array_equal(scaled.step(quiet)[0], scaled.step(loud)[0])


@pytest.mark.parametrize(("offset", "exponent", "largest", "message"), [
    ([0, 0], [0], [1, 1], r"one number for each channel, got the shapes \(2,\), \(1,\) and"),
    ([], [], [], "one number for each channel"),
    ([0, np.nan], [0, 0], [1, 1], "channel 1: an offset of nan"),
    ([0], [0.5], [1], "channel 0: an offset of 0, an exponent of 0.5"),
    ([0], [0], [0], "a largest magnitude of 0: they must be finite"),
    ([3], [0], [2], "an offset of 3"),
    ([0, 0], [0, -30], [1, 1], "channel 1: numbers up to 1 times 2\\^-30 are far outside"),
])
def test_constants_of_frames_that_do_not_go_together_are_refused(
    offset, exponent, largest, message,
):
    with pytest.raises(ValueError, match=message):
        InputLayer.of(offset, exponent, largest)


def test_frames_that_are_none_and_an_input_that_is_not_first_are_refused():
    layer = InputLayer.of([0, 0], [0, 0], [1, 1])
    for frames, message in (
        ([[1, 2, 3]], r"frames must be \[..., 2\], got \[1, 3\]"),
        ([[1, np.inf]], "finite"), (3.0, r"got \[\]"),
    ):
        with pytest.raises(ValueError, match=message):
            layer.integers(frames)
    assert layer.integers([[5, -5]]).tolist() == [[32767, -32768]]
    linear = BitLinearLayer.of(np.ones((2, 3), dtype=int), output=S16.x)
    with pytest.raises(ValueError, match="layer 1 begins with an input, which is the first"):
        SequentialLayer([linear, SequentialLayer([layer, linear])])
    with pytest.raises(ValueError, match="got 2 in and 3 out"):
        ResidualLayer(layer)


def test_scale_and_bias_mean_what_the_real_numbers_say():
    rng = np.random.default_rng(0)
    weight, bias = rng.integers(-1, 2, (5, 40)), rng.normal(size=5)
    x = rng.integers(-20000, 20000, (3, 40))
    layer = BitLinearLayer.of(TernaryMatrix(weight, 0.04, bias), output=FixedPoint(20, 12))
    q = np.round(127 * x / abs(x).max(axis=1, keepdims=True))
    exact = q / np.sqrt((q * q).mean(axis=1, keepdims=True)) @ weight.T * 0.04 + bias
    assert np.abs(layer.step(x)[0] / 4096 - exact).max() < 2e-3


@given(seed=st.integers(0, 1 << 30), scale=st.floats(1e-4, 100), frac=st.integers(0, 8))
def test_a_matrix_is_its_plain_product_rounded_half_up(seed, scale, frac):
    rng = np.random.default_rng(seed)
    weight = rng.integers(-1, 2, rng.integers(1, 30, 2))
    acts = rng.integers(-128, 128, (4, weight.shape[1]))
    sums = MatrixLayer.of(weight)(acts)
    assert np.array_equal(sums, acts @ weight.T)
    output = FixedPoint(12, frac)
    layer = MatrixLayer.of(TernaryMatrix(weight, scale, rng.normal(size=len(weight))), output)
    numbers = layer.requantization
    assert math.isclose(math.ldexp(numbers.k, -numbers.shift), scale * 2 ** frac, rel_tol=2e-5)
    for row, got in zip(sums.tolist(), layer(acts).tolist(), strict=True):
        for total, bias, value in zip(row, numbers.bias.tolist(), got, strict=True):
            exact = (total * numbers.k * 2 + (1 << numbers.shift) >> numbers.shift + 1) + bias
            assert value == min(max(exact, -2048), 2047)


def test_the_smallest_type_that_holds_a_vector_is_taken():
    layer = BitLinearLayer.of(_square(3))
    x = np.array([[-32768, 5, 32767]])
    assert np.array_equal(layer.step(x.astype(np.int16))[0], layer.step(x)[0])


def test_a_layer_runs_on_tensors_of_torch_after_arrays_of_numpy():
    torch = pytest.importorskip("torch")
    layer = MlgruLayer.of(*[TernaryMatrix(np.ones((3, 3)), 0.1)] * 4)
    x = np.array([[300, -5, 70]])
    y, (h,) = layer.step(x, layer.start())
    again = torch.from_numpy(x)
    z, (state,) = layer.step(again, layer.start(like=again))
    assert isinstance(z, torch.Tensor)
    assert np.array_equal(z.numpy(), y)
    assert np.array_equal(state.numpy(), h)


@given(bias=st.integers(-3000, 3000), act=st.integers(-128, 127), bits=st.integers(2, 12),
       columns=st.integers(1, 9))
def test_a_bias_counts_in_full_or_is_refused(bias, act, bits, columns):
    """A bias was cut off to a bit more than the output: 700 - 720 became -128 for -20."""
    matrix = TernaryMatrix(-np.ones((1, columns)), bias=[bias])
    half = 1 << bits - 1
    if -2 * half <= bias < 2 * half:
        got = MatrixLayer.of(matrix, FixedPoint(bits, 0))(np.full(columns, act))
        assert got.tolist() == [min(max(bias - columns * act, -half), half - 1)]
    else:
        with pytest.raises(ValueError, match=f"the bias of row 0 is {bias}, and with results of"):
            MatrixLayer.of(matrix, FixedPoint(bits, 0))


def test_a_profile_may_be_given_by_its_name():
    assert BitLinearLayer.of(_square(3), profile="C12").profile is C12
    assert GluLayer.of(*[_square(3)] * 3, profile="S16").profile is S16


def test_a_matrix_keeps_its_own_bias():
    bias = np.ones(1)
    matrix = TernaryMatrix([[1]], bias=bias)
    bias[0] = math.nan
    assert matrix.bias.tolist() == [1]


def _square(n: int) -> np.ndarray:
    return np.eye(n, dtype=int)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64", "int8"])
def test_tensors_of_torch_are_taken_as_weights(kind):
    torch = pytest.importorskip("torch")
    weight = torch.tensor([[1, 0, -1], [0, 0, 1]], dtype=getattr(torch, kind),
                          requires_grad=kind != "int8")
    bias = torch.tensor([0.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    made = TernaryMatrix(weight, 0.5, bias)
    assert (made.weight.tolist(), made.bias.tolist()) == ([[1, 0, -1], [0, 0, 1]], [0.5, -2.0])
    assert TernaryMatrix.from_float(weight * 3).scale == 3.0
    assert MatrixLayer.of(weight)(np.array([5, 7, -128])).tolist() == [133, -128]


@pytest.mark.parametrize(("make", "message"), [
    (lambda: TernaryMatrix([[1, 2]]), "every weight must be -1, 0 or 1, got 2 in row 0, column 1"),
    (lambda: TernaryMatrix([1, 0]), r"weight must be a matrix \[rows, columns\], got shape \(2,\)"),
    (lambda: TernaryMatrix([[1], [0, 1]]), "its rows differ in length"),
    (lambda: TernaryMatrix("ones"), "weight must be a matrix of numbers, got 'ones'"),
    (lambda: TernaryMatrix([[1j]]), "weight must be a matrix of numbers"),
    (lambda: TernaryMatrix([[1]], bias="x"), "bias must be real numbers, got 'x'"),
    (lambda: TernaryMatrix([[1]], scale=0), "scale must be positive and finite, got 0.0"),
    (lambda: TernaryMatrix([[1]], bias=[1, 2]), "bias must have a number for each of 1 rows"),
    (lambda: TernaryMatrix([[1]], bias=[math.inf]), "every bias must be finite"),
    (lambda: MatrixLayer.of(TernaryMatrix([[1]], 0.5)), "needs an output format"),
    (lambda: MatrixLayer.of(TernaryMatrix([[1]], 1e9), FixedPoint(8, 0)),
     "scale must be from about"),
    (lambda: MatrixLayer.of(_square(3))(np.zeros(4, int)), r"acts must be \[..., 3\], got \[4\]"),
    (lambda: MatrixLayer.of(_square(3))(np.full(3, 128)), "acts must be from -128 to 127"),
    (lambda: MatrixLayer.of(TernaryMatrix([[1]] * 2, bias=[0, 8]), FixedPoint(3, 0)),
     "bias of row 1 is 8, .* of 3 bits, 0 of them .* from -8 to 7: give an output with more bits"),
    (lambda: BitLinearLayer.of(TernaryMatrix([[1]], bias=[-99])), "the bias of row 0 is -99, and"),
    (lambda: BitLinearLayer.of(TernaryMatrix([[1]], 1e9)), "weights: a projection's scale"),
    (lambda: BitLinearLayer.of(_square(3)).step(np.zeros(3, int)), r"x must be \[batch, 3\]"),
    (lambda: BitLinearLayer.of(_square(3)).step(np.full((1, 3), 1 << 15)), "x must be from"),
    (lambda: BitLinearLayer.of(_square(3)).step(np.ones((1, 3))), "x must be integers, got fl"),
    (lambda: MatrixLayer.of(_square(3))(np.ones(3)), "acts must be integers, got float64"),
    (lambda: MlgruLayer.of(*[_square(3)] * 4).step(
        np.zeros((1, 3), int), (np.full((1, 3), 1 << 15),)), "a state must be from -32768 to"),
    (lambda: MlgruLayer.of(*[_square(3)] * 4).step(np.zeros((1, 3), int)), "state must have"),
    (lambda: GluLayer.of(_square(3), _square(4), _square(3)), r"up must have the shape \(3, 3\)"),
    (lambda: GluLayer.of(_square(3), _square(3), _square(4)), "down must have 3 columns"),
    (lambda: GluLayer.of(_square(3), [[5]], _square(3)), "up: every weight must be"),
    (lambda: ResidualLayer(BitLinearLayer.of(_square(3))), "must have 11 fraction bits"),
    (lambda: ResidualLayer(BitLinearLayer.of(np.ones((2, 3)), output=S16.x)), "3 in and 2 out"),
    (lambda: SequentialLayer([]), "needs at least one"),
    (lambda: SequentialLayer([BitLinearLayer.of(_square(n)) for n in (3, 4)]),
     "layer 0 gives 3 values, and layer 1 takes 4"),
    (lambda: SequentialLayer([BitLinearLayer.of(_square(3), profile=p) for p in (S16, C12)]),
     "layers must have one profile"),
    (lambda: SequentialLayer([BitLinearLayer.of(_square(3), output=FixedPoint(20, 4)),
                              BitLinearLayer.of(_square(3))]), "layer 0 gives 20 bits"),
    (lambda: SequentialLayer([BitLinearLayer.of(_square(3)), ResidualLayer(
        GluLayer.of(*[_square(3)] * 3))]), "layer 1 adds to its input"),
])
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
