"""The two quantisers, and the fused ternary projection that equals them and a matrix product."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from mixer_parts import normal, values_and_gradients
from torch import Tensor

from sterna.model.torch.network.bitlinear import BitLinear, bit_linear, naive_bit_linear
from sterna.model.torch.network.quantizers import (
    SMALLEST_SCALE,
    absmax_codes,
    absmax_quantize,
    naive_absmax_quantize,
    ternarize,
    ternary_codes,
)

shapes = st.tuples(st.integers(1, 6), st.integers(1, 40))
seeds = st.integers(0, 2**32 - 1)

@given(shapes, seeds, st.integers(-12, 12))
def test_codes_are_whole_reach_127_and_have_unit_rms(shape, seed, exponent):
    y = normal(*shape, seed=seed) * 10.0**exponent
    q, gain, inverse = absmax_codes(y)
    assert torch.equal(q, q.round())
    assert torch.equal(q.abs().amax(-1), torch.full(shape[:1], 127.0, dtype=y.dtype))
    assert float((q - y * gain).abs().max()) <= 0.5
    torch.testing.assert_close(
        (q * inverse).square().mean(-1), torch.ones(shape[:1], dtype=y.dtype))
    torch.testing.assert_close(absmax_quantize(y), q * inverse)


@pytest.mark.parametrize("vector", [
    [0, 0, 0, -16.0, 0, 0, 0], [-0.25] * 5, [3.0], [-16.0, 16.0], [1e-20, 2e-20],
    [1e30, -1e25, 0.0]], ids=str)
def test_extremes_have_unit_rms(vector):
    vector = torch.tensor(vector)
    out = absmax_quantize(vector)
    assert bool(out.isfinite().all())
    assert float(out.square().mean()) == pytest.approx(1.0, rel=1e-5)
    assert torch.equal(out.sign(), absmax_codes(vector)[0].sign())


def test_zero_vector_gives_zero_and_no_gradient():
    y = torch.zeros(3, 8, requires_grad=True)
    out = absmax_quantize(y)
    out.backward(torch.ones_like(out))
    assert not out.any()
    assert not y.grad.any()


@given(shapes, seeds, st.integers(-6, 6), st.integers(1, 9))
def test_result_does_not_depend_on_the_scale(shape, seed, exponent, factor):
    y = normal(*shape, seed=seed)
    codes = absmax_codes(y)[0]
    assert torch.equal(absmax_codes(y * 2.0**exponent)[0], codes)
    # Another factor may round a tie, and only a tie, to its other side.
    assert float((absmax_codes(y * factor)[0] - codes).abs().max()) <= 1.0


@given(shapes, seeds)
def test_values_and_gradient_equal_autograds_of_the_naive_form(shape, seed):
    ours, naive = (values_and_gradients(form, [normal(*shape, seed=seed)])
                   for form in (absmax_quantize, naive_absmax_quantize))
    torch.testing.assert_close(ours, naive, rtol=1e-9, atol=1e-9)


@given(shapes, seeds, st.integers(-9, 3))
def test_ternarize_equals_its_definition_and_passes_its_gradient_through(shape, seed, exponent):
    weight = normal(*shape, seed=seed).mul(10.0**exponent).float()
    scale = torch.clamp(torch.mean(torch.mean(torch.abs(weight), 1)), min=1e-5)
    expected = torch.clamp(torch.round(weight / scale), -1, 1)
    for given_weight in (weight, weight.double()):      # the same codes from either
        codes, found = ternary_codes(given_weight)
        assert codes.dtype == torch.int8
        assert found == float(scale)
        assert torch.equal(codes.float(), expected)
        leaf = given_weight.clone().requires_grad_()
        used = ternarize(leaf)
        assert torch.equal(used, (expected * scale).to(leaf.dtype))
        toward = normal(*shape, seed=seed + 1).to(leaf.dtype)
        assert torch.equal(torch.autograd.grad(used, leaf, toward)[0], toward)
    assert found == pytest.approx(max(float(weight.double().abs().mean()), 1e-5), rel=1e-6)


def test_scale_does_not_depend_on_the_number_of_threads():
    weight = normal(768, 256, seed=5).float()
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(ternary_codes(weight)[1])
    finally:
        torch.set_num_threads(before)
    assert len(set(found)) == 1


def test_extreme_matrices_are_ternarized():
    codes, scale = ternary_codes(torch.zeros(3, 4))
    assert not codes.any()
    assert scale == pytest.approx(SMALLEST_SCALE)
    codes, scale = ternary_codes(torch.full((3, 4), -2.5))
    assert bool((codes == -1).all())
    assert scale == 2.5
    spike = torch.zeros(10, 10)
    spike[2, 3] = 7.0
    codes, scale = ternary_codes(spike)
    assert int(codes.sum()) == codes[2, 3] == 1
    assert math.isclose(scale, 0.07, rel_tol=1e-6)


def random_case(
    columns: int, rows: list[int], lead: tuple[int, ...], bias: bool, seed: int,
) -> tuple[Tensor, list[Tensor], list[Tensor] | None]:
    weights = [normal(count, columns, seed=seed + i) * 3.0**i for i, count in enumerate(rows)]
    return (normal(*lead, columns, seed=seed + 10), weights,
            [normal(count, seed=seed + 20 + i) for i, count in enumerate(rows)] if bias else None)


@given(
    columns=st.integers(1, 20), rows=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    lead=st.sampled_from([(), (4,), (3, 2)]), bias=st.booleans(),
    limit=st.sampled_from([math.inf, 1.5]), seed=seeds)
def test_fused_form_equals_the_naive_one(columns, rows, lead, bias, limit, seed):
    x, weights, biases = random_case(columns, rows, lead, bias, seed)
    inputs = [x, *weights, *(biases or [])]
    ours, naive = (values_and_gradients(
        lambda x, *others, form=form: form(
            x, others[:len(rows)], others[len(rows):] or None, limit), inputs)
        for form in (bit_linear, naive_bit_linear))
    assert ours[0].shape == (*lead, sum(rows))
    torch.testing.assert_close(ours, naive, rtol=1e-9, atol=1e-9)


@given(columns=st.integers(1, 20), rows=st.integers(1, 7), bias=st.booleans(), seed=seeds)
def test_a_gain_scales_the_products(columns, rows, bias, seed):
    x, (weight,), biases = random_case(columns, [rows], (4,), bias, seed)
    linear = BitLinear(columns, rows, bias=bias).double()
    gain = 0.3 + seed % 3
    for parameter, value in zip(linear.sources, [
            weight, torch.tensor([gain], dtype=torch.float64), *(biases or [])], strict=True):
        parameter.data.copy_(value)
    expected = naive_bit_linear(x, [weight], None) * gain + (biases[0] if biases else 0.0)
    close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)   # scales are float32
    close(linear(x), expected)
    found, wanted = (torch.autograd.grad(
        form.square().sum(), [linear.weight, linear.gain]) for form in (
            linear(x), F.linear(absmax_quantize(x), linear.gain * ternarize(linear.weight),
                                linear.bias)))
    close(found, wanted, rtol=1e-5)
    with torch.no_grad():
        close(linear.eval()(x), expected)
        linear.gain.mul_(2.0)
        doubled = expected + naive_bit_linear(x, [weight], None) * gain
        close(linear(x), doubled)       # what was kept is made anew


@given(columns=st.integers(1, 300), seed=seeds)
def test_float32_sums_are_exact(columns, seed):
    x, weights, _ = random_case(columns, [5], (4,), False, seed)
    x, weight = x.float(), weights[0].float()
    q, _, inverse = absmax_codes(x)
    codes, scale = ternary_codes(weight)
    sums = q.to(torch.int64) @ codes.to(torch.int64).t()  # whole numbers: no rounding
    assert torch.equal(
        bit_linear(x, [weight], None), sums.float() * (inverse * torch.tensor(scale)))


def test_a_row_does_not_depend_on_its_batch():
    x, weights, biases = random_case(96, [40, 24], (33,), True, 1)
    x = x.float()
    weights, biases = [w.float() for w in weights], [b.float() for b in biases or []]
    together = bit_linear(x, weights, biases)
    apart = torch.cat([bit_linear(row, weights, biases) for row in x.split(1)])
    assert torch.equal(together, apart)


def test_a_byte_of_each_weight_is_kept_for_the_backward_pass():
    x, weights, _ = random_case(64, [64], (2,), False, seed=0)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):
        bit_linear(x, [each.requires_grad_() for each in weights], None)
    large = [each for each in kept if each.numel() == weights[0].numel()]
    assert [each.dtype for each in large] == [torch.int8]


def test_zero_input_gives_the_bias():
    layer = BitLinear(6, 3)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([1.0, -2.0, 0.5]))
    assert layer(torch.zeros(2, 6)).tolist() == [[1.0, -2.0, 0.5]] * 2
