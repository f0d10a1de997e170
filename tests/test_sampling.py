import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.model.quantized.sampling import EXP_TABLE, Sampler

logit_lists = st.lists(st.integers(-(1 << 15), (1 << 15) - 1), min_size=1, max_size=300)


@given(logit_lists)
def test_greedy_is_the_first_maximum(logits):
    assert Sampler()(np.array(logits)) == logits.index(max(logits))


@given(logit_lists, st.sampled_from([0.01, 0.3, 0.7, 1.0, 2.0, 100.0]), st.integers(1, 2**32 - 1))
def test_a_draw_is_always_a_token_with_a_chance(logits, temperature, seed):
    sampler = Sampler(temperature=temperature, seed=seed)
    weights = sampler.weights(np.array(logits))
    assert weights.max() == 1 << 16
    assert weights.min() >= 0
    for _ in range(5):
        token = sampler(np.array(logits))
        assert 0 <= token < len(logits)
        assert weights[token] > 0


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_weights_are_the_softmax(temperature):
    logits = np.random.default_rng(0).integers(-2000, 2000, 256)
    weights = Sampler(temperature=temperature).weights(logits)
    real = np.exp((logits - logits.max()) / 256 / temperature)
    difference = np.abs(weights / weights.sum() - real / real.sum()).sum() / 2
    assert difference < 0.002       # total variation


def test_draws_follow_the_weights():
    logits = np.array([0, -100, -300, -600])
    sampler = Sampler(temperature=1.0, seed=9)
    counts = np.bincount([sampler(logits) for _ in range(20000)], minlength=4)
    weights = sampler.weights(logits)
    assert np.abs(counts / 20000 - weights / weights.sum()).max() < 0.012


def test_the_generator_is_xorshift32():
    sampler = Sampler(temperature=1.0, seed=1)
    logits = np.zeros(1, dtype=int)
    states = []
    for _ in range(3):
        sampler(logits)
        states.append(sampler.state)
    assert states == [270369, 67634689, 2647435461]   # Marsaglia's generator from seed 1


def test_the_exponential_table_is_exact():
    assert EXP_TABLE[0] == 1 << 16
    np.testing.assert_allclose(EXP_TABLE / 65536, 2.0 ** (-np.arange(64) / 64), atol=8e-6)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"temperature": -1.0}, "temperature must be 0 or from"),
    ({"temperature": 1e9}, "temperature must be 0 or from"),
    ({"seed": 0}, "seed must be a whole number from 1"),
    ({"seed": 1 << 32}, "seed must be a whole number from 1"),
    ({"seed": 1.5}, "seed must be a whole number from 1 to 4294967295, got 1.5"),
    ({"top_k": 0}, "top_k"), ({"top_p": 0.0}, "top_p"), ({"top_p": 1.01}, "top_p"),
    ({"top_k": 2.5}, "top_k must be a whole number from 1, got 2.5"),
    ({"top_p": "0.5"}, "top_p must be a number, got '0.5'"),
    ({"temperature": "1"}, "temperature must be a number, got '1'"),
    ({"temperature": float("nan")}, "temperature must be 0 or from 0.01 to 100, got nan"),
])
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sampler(**arguments)


def test_top_k_keeps_the_most_likely():
    logits = np.array([5, 900, -3, 900, 100, 901])
    for k, kept in ((1, {5}), (2, {5, 1}), (3, {5, 1, 3}), (99, set(range(6)))):
        weights = Sampler(temperature=5.0, top_k=k).weights(logits)
        assert set(np.flatnonzero(weights)) == kept, "of equal logits the first"


@given(logit_lists, st.floats(0.01, 1.0))
def test_top_p_keeps_the_fewest_that_reach_it(logits, p):
    values = np.array(logits)
    every = Sampler(temperature=1.0).weights(values)
    kept = Sampler(temperature=1.0, top_p=p).weights(values)
    assert ((kept == every) | (kept == 0)).all()
    part = kept.sum() / every.sum()
    assert part >= p - 2.0 ** -16
    smallest = kept[kept > 0].min()
    assert (kept.sum() - smallest) / every.sum() < p + 2.0 ** -16
    assert every[kept == 0].max(initial=0) <= smallest
