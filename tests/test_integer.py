"""The integer reference: one source, three number systems, the same integers."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from conftest import faulty_weight
from hypothesis import given
from hypothesis import strategies as st
from plain_reference import PlainModel

from sterna.model.config import ModelConfig
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.compare import compare
from sterna.model.quantized.integer import IntegerModel, isqrt, rs, ternary_matmul, transposed
from sterna.model.quantized.synthetic import random_model
from sterna.model.quantized.taps import TapRecorder
from sterna.model.tokenizer import contiguous_sequences, encode

BUNDLED = pytest.mark.parametrize("name", [
    pytest.param("tiny", marks=pytest.mark.slow), pytest.param("tiny-c12", marks=pytest.mark.slow)])


def assert_numpy_and_torch_agree(model: QuantizedModel, tokens: np.ndarray) -> None:
    on_numpy, on_torch = TapRecorder(), TapRecorder()
    logits, state = IntegerModel(model).run(tokens, tap=on_numpy)
    torch_logits, torch_state = IntegerModel(model, like=torch.zeros(1)).run(
        torch.from_numpy(tokens.copy()), tap=on_torch)
    assert torch_logits.dtype == torch_state.dtype == torch.int64
    np.testing.assert_array_equal(logits, torch_logits.numpy())
    np.testing.assert_array_equal(state, torch_state.numpy())
    assert on_numpy.names() == on_torch.names()
    for name in on_numpy.names():
        np.testing.assert_array_equal(on_numpy[name], on_torch[name], err_msg=name)


def assert_plain_integers_agree(model: QuantizedModel, tokens: np.ndarray) -> None:
    reference, plain = IntegerModel(model), PlainModel(model)
    state, plain_state = reference.start(), [[0] * model.config.d] * model.config.layers
    for token in tokens:
        logits, state = reference.step(np.array([token]), state)
        plain_logits, plain_state = plain.step(int(token), plain_state)
        assert logits[0].tolist() == plain_logits
        assert state[:, 0].tolist() == plain_state


def test_numpy_and_torch_agree_on_every_tensor(odd_model):
    assert_numpy_and_torch_agree(
        odd_model, np.random.default_rng(1).integers(0, odd_model.config.vocab, (3, 40)))


@BUNDLED
def test_numpy_and_torch_agree_over_thousands_of_tokens_of_text(name):
    tokens = contiguous_sequences(encode(bundled_heldout()), 8)[:, :256]
    assert tokens.shape == (8, 256)     # 2,048 tokens
    assert_numpy_and_torch_agree(load_model(name), tokens)


@pytest.mark.parametrize("gain", [1.5, 100.0])
def test_plain_python_integers_agree(profile, gain):
    model = random_model(ModelConfig(d=16, layers=2, dff=24, vocab=20), profile, 3, gain=gain)
    assert_plain_integers_agree(model, np.random.default_rng(2).integers(0, 20, 25))


@BUNDLED
def test_plain_python_integers_agree_on_the_bundled_model(name):
    assert_plain_integers_agree(load_model(name), encode(bundled_heldout())[:20])


def faulty_table(model: QuantizedModel) -> QuantizedModel:
    table = model.sigmoid.copy()
    table[table.size // 2] += 1
    return dataclasses.replace(model, sigmoid=table)


def faulty_shift(model: QuantizedModel) -> QuantizedModel:
    p = model.projections["layer0.mlgru.out"]
    return dataclasses.replace(model, projections={
        **model.projections,
        "layer0.mlgru.out": dataclasses.replace(p, shift=p.shift + 1)})


@pytest.mark.parametrize(("fault", "tensor"), [
    (faulty_weight, "layer1.glu.down.acc"),
    (faulty_table, r"layer[01].mlgru.[fcg].sigmoid"),
    (faulty_shift, "layer0.mlgru.out.z"),
])
def test_a_planted_fault_is_caught_and_named(odd_model, fault, tensor):
    tokens = np.random.default_rng(5).integers(0, 65, (2, 40))
    right, wrong = TapRecorder(), TapRecorder()
    IntegerModel(odd_model).run(tokens, tap=right)
    IntegerModel(fault(odd_model), like=torch.zeros(1)).run(torch.from_numpy(tokens), tap=wrong)
    differences = [compare(name, right[name], wrong[name]).first for name in right.names()]
    first = min((d for d in differences if d), key=lambda d: d.token)
    assert re.fullmatch(tensor, first.tensor)


def test_run_equals_steps_and_batches_do_not_mix(odd_model):
    tokens = np.random.default_rng(4).integers(0, 65, (5, 17))
    reference = IntegerModel(odd_model)
    logits, state = reference.run(tokens)
    for row in range(5):
        alone, alone_state = reference.run(tokens[row:row + 1])
        np.testing.assert_array_equal(alone[0], logits[row])
        np.testing.assert_array_equal(alone_state[:, 0], state[:, row])
    first, middle = reference.run(tokens[:, :9])
    second, end = reference.run(tokens[:, 9:], middle)
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1), logits)
    np.testing.assert_array_equal(end, state)


def test_a_step_leaves_its_arguments_alone(odd_model):
    reference = IntegerModel(odd_model)
    _, state = reference.run(np.array([[1, 2, 3]]))
    before = state.copy()
    reference.step(np.array([5]), state)
    np.testing.assert_array_equal(state, before)


@pytest.mark.parametrize(("tokens", "state", "message"), [
    ([-1, 2], 0, "tokens must be from 0 to 64"), ([65, 2], 0, "tokens must be from 0 to 64"),
    ([1], 0, r"state must have shape \(2, 1, 12\)"), ([1, 2], 1 << 20, "state must be from")])
def test_tokens_and_states_that_do_not_fit_are_refused(odd_model, tokens, state, message):
    with pytest.raises(ValueError, match=message):
        IntegerModel(odd_model).step(np.array(tokens), np.full((2, 2, 12), state))


@given(st.integers(-(1 << 50), 1 << 50), st.integers(0, 40))
def test_rs_rounds_half_up(value, shift):
    expected = math.floor(value / 2**shift + 0.5) if abs(value) < 1 << 40 else (
        (2 * value + 2**shift) // 2 ** (shift + 1))
    assert int(rs(np.array(value), shift)) == expected
    assert int(rs(torch.tensor(value), shift)) == expected


@given(st.integers(0, (1 << 26) - 1), st.sampled_from([-1, 0, 1]))
def test_isqrt_is_exact_around_squares(root, offset):
    value = max(root * root + offset, 0)
    assert int(isqrt(np.array(value))) == math.isqrt(value)
    assert int(isqrt(torch.tensor(value))) == math.isqrt(value)


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_ternary_matmul_equals_integer_matmul(columns, seed):
    rng = np.random.default_rng(seed)
    acts = rng.integers(-128, 128, (2, columns))
    weight = rng.integers(-1, 2, (3, columns))
    np.testing.assert_array_equal(ternary_matmul(acts, transposed(weight, acts)), acts @ weight.T)


@pytest.mark.parametrize("columns", [1 << 17, (1 << 17) + 1])
def test_the_largest_sum_is_exact_in_either_type(columns):
    for act, sign in ((-128, 1), (127, -1), (-128, -1)):
        acts, weight = np.full((1, columns), act), np.full((2, columns), sign)
        weight[1, 0] = 0
        expected = [[act * sign * columns, act * sign * (columns - 1)]]
        for like in (acts, torch.from_numpy(acts)):
            sums = ternary_matmul(like, transposed(weight, like))
            assert sums.tolist() == expected
