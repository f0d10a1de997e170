"""The two quantisers: what they promise, and their straight-through gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sterna.model.network.quantizers import (
    SMALLEST_SCALE,
    absmax_codes,
    absmax_quantize,
    naive_absmax_quantize,
    ternarize,
    ternary_codes,
)

shapes = st.tuples(st.integers(1, 6), st.integers(1, 40))
seeds = st.integers(0, 2**32 - 1)


def random_matrix(shape: tuple[int, ...], seed: int, exponent: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0**exponent


def extremes() -> list[Tensor]:
    """Vectors at the ends of what can come."""
    one_hot = torch.zeros(7)
    one_hot[3] = -16.0
    return [one_hot, torch.full((5,), -0.25), torch.tensor([3.0]), torch.tensor([-16.0, 16.0]),
            torch.tensor([1e-20, 2e-20]), torch.tensor([1e30, -1e25, 0.0])]


@given(shapes, seeds, st.integers(-12, 12))
def test_codes_are_whole_reach_127_and_have_unit_rms(shape, seed, exponent):
    y = random_matrix(shape, seed, exponent)
    q, gain, inverse = absmax_codes(y)
    assert torch.equal(q, q.round())
    assert torch.equal(q.abs().amax(-1), torch.full(shape[:1], 127.0, dtype=y.dtype))
    assert float((q - y * gain).abs().max()) <= 0.5
    torch.testing.assert_close(
        (q * inverse).square().mean(-1), torch.ones(shape[:1], dtype=y.dtype))
    torch.testing.assert_close(absmax_quantize(y), q * inverse)


@pytest.mark.parametrize("vector", extremes(), ids=str)
def test_extremes_have_unit_rms(vector):
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
    y = random_matrix(shape, seed)
    codes = absmax_codes(y)[0]
    assert torch.equal(absmax_codes(y * 2.0**exponent)[0], codes)
    # Another factor may round a tie, and only a tie, to its other side.
    assert float((absmax_codes(y * factor)[0] - codes).abs().max()) <= 1.0


@given(shapes, seeds)
def test_values_and_gradient_equal_autograds_of_the_naive_form(shape, seed):
    y, toward = random_matrix(shape, seed).requires_grad_(), random_matrix(shape, seed + 1)
    ours, naive = ([out.detach(), *torch.autograd.grad(out, y, toward)]
                   for out in (absmax_quantize(y), naive_absmax_quantize(y)))
    torch.testing.assert_close(ours, naive, rtol=1e-9, atol=1e-9)


@given(shapes, seeds, st.integers(-9, 3))
def test_ternarize_equals_its_definition_and_passes_its_gradient_through(shape, seed, exponent):
    weight = random_matrix(shape, seed, exponent).float()
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
        toward = random_matrix(shape, seed + 1).to(leaf.dtype)
        assert torch.equal(torch.autograd.grad(used, leaf, toward)[0], toward)
    assert found == pytest.approx(max(float(weight.double().abs().mean()), 1e-5), rel=1e-6)


def test_scale_does_not_depend_on_the_number_of_threads():
    weight = random_matrix((768, 256), 5).float()
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
