"""Try to break the ranges that docs/numerics.md claims, at every extreme."""

import numpy as np
import pytest
from conftest import ODD
from extreme_models import EXTREMES
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sterna.model.profile import PROFILES, NumericProfile
from sterna.model.quantized.integer import (
    IntegerModel,
    IntegerRecords,
    combine_scale,
    norm_quant,
    sigmoid,
)
from sterna.model.quantized.records import mlgru_cell
from sterna.model.quantized.synthetic import random_model
from sterna.model.quantized.taps import TapRecorder

profiles = st.sampled_from([PROFILES[name] for name in sorted(PROFILES)])


@st.composite
def vectors(draw: st.DrawFn) -> tuple[NumericProfile, np.ndarray]:
    """A residual vector: random, one-hot, constant, all zero or all at an end."""
    profile = draw(profiles)
    n = draw(st.integers(1, 70))
    x = profile.x
    values = st.integers(x.min, x.max)
    kind = draw(st.sampled_from(["random", "one-hot", "constant", "tiny"]))
    if kind == "one-hot":
        vector = np.zeros(n, dtype=np.int64)
        vector[draw(st.integers(0, n - 1))] = draw(values)
    elif kind == "constant":
        vector = np.full(n, draw(st.sampled_from([0, 1, -1, x.min, x.max])))
    elif kind == "tiny":
        vector = draw(arrays(np.int64, n, elements=st.integers(-2, 2)))
    else:
        vector = draw(arrays(np.int64, n, elements=values))
    return profile, vector


@given(vectors())
def test_norm_quant_stays_in_its_ranges(case):
    profile, y = case
    n = y.size
    parts = {name: np.asarray(value) for name, value in norm_quant(y, profile).items()}
    peak = int(np.abs(y).max())
    assert 65024 >> (24 - profile.reciprocal_bits) <= parts["r"] <= 127 << profile.reciprocal_bits
    assert np.abs(y * parts["r"]).max() + (1 << (profile.reciprocal_bits - 1)) < 1 << 31
    if peak:
        # The largest element is exactly 127, so the sum of squares is never small.
        assert np.abs(parts["q"]).max() == 127
        assert (np.abs(parts["q"][np.abs(y) == peak]) == 127).all()
        assert 127**2 <= parts["s"] <= 127**2 * n
    else:
        assert not parts["q"].any()
        assert parts["s"] == 0
    assert parts["n"] >= 127 << profile.root_frac
    assert 1 <= parts["v"] <= profile.norm_scale_max


@given(vectors(), st.data())
def test_the_combined_scale_fits_its_bits(case, data):
    profile, y = case
    k = data.draw(st.integers(1 << (profile.mantissa_bits - 1), (1 << profile.mantissa_bits) - 1))
    a = combine_scale(norm_quant(y, profile)["v"], k, profile)
    assert 0 <= a <= profile.combined_scale_max < 1 << profile.scale_bits


def test_sigmoid_is_monotone_bounded_and_close(profile):
    z = np.arange(profile.z.min, profile.z.max + 1)
    table = np.array(profile.sigmoid_table())
    values = sigmoid(z, table, profile.z.min, profile.sigmoid_step_bits)
    assert (np.diff(values) >= 0).all()
    assert values.min() >= 0
    assert values.max() <= profile.sigmoid_max
    exact = 1 / (1 + np.exp(-z / (1 << profile.z.frac)))
    # 2^-8 for a byte; the chord of a quarter-wide segment is within 8e-4.
    assert np.abs(values / (1 << profile.sigmoid_frac) - exact).max() < (
        8e-4 if profile.sigmoid_step_bits else 2.0**-8)


@given(profiles, st.integers(0, 2**32 - 1))
def test_a_state_never_leaves_the_interval_of_state_and_candidate(profile, seed):
    rng = np.random.default_rng(seed)
    ends = np.array([profile.z.min, profile.z.max, 0, -1, 1])
    zf, zc, zg = (np.where(rng.random(64) < 0.3, rng.choice(ends, 64),
                           rng.integers(profile.z.min, profile.z.max + 1, 64))
                  for _ in range(3))
    h = np.where(rng.random(64) < 0.3, rng.choice([profile.h.min, profile.h.max], 64),
                 rng.integers(profile.h.min, profile.h.max + 1, 64))
    values = {"at.f.z": zf, "at.c.z": zc, "at.g.z": zg}
    IntegerRecords(mlgru_cell(profile, "at", 64), {},
                   np.array(profile.sigmoid_table())).run(values, [h])
    c, after, o = values["at.c.silu"], values["at.h"], values["at.o"]
    assert (after >= np.minimum(h, c)).all()
    assert (after <= np.maximum(h, c)).all()
    assert (np.abs(o) <= -profile.o.min).all()


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("gain", [1.0, 500.0])
def test_every_tensor_of_an_extreme_model_fits_its_format(profile, extreme, gain):
    model = EXTREMES[extreme](random_model(ODD, profile, 1, gain=gain))
    taps = TapRecorder()
    IntegerModel(model).run(np.arange(12)[None, :], tap=taps)
    formats = {"x": profile.x, "h": profile.h, "o": profile.o, "p": profile.p,
               "silu": profile.h, "logits": profile.logit}
    accumulator = 127 * max(ODD.d, ODD.dff)
    ranges = {part: (each.min, each.max) for part, each in formats.items()} | {
        "q": (-127, 127), "acc": (-accumulator, accumulator),
        "a": (0, profile.combined_scale_max), "sigmoid": (0, profile.sigmoid_max)}
    for name in taps.names():
        low, high = ranges.get(name.rsplit(".", 1)[-1], (-np.inf, np.inf))
        if not name.endswith("gate.silu"):
            assert low <= taps[name].min() <= taps[name].max() <= high, name


def test_a_zero_vector_gives_the_biases(profile):
    model = EXTREMES["zero embedding"](random_model(ODD, profile, 1))
    taps = TapRecorder()
    IntegerModel(model).run(np.array([[0]]), tap=taps)
    for part in "fcg":
        bias = model.projections[f"layer0.mlgru.{part}"].bias
        np.testing.assert_array_equal(
            taps[f"layer0.mlgru.{part}.z"][0, 0],
            np.clip(bias, profile.z.min, profile.z.max))
