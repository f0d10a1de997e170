"""The fused ternary projection equals its two quantisers and a matrix product."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from mixer_parts import values_and_gradients
from torch import Tensor

from sterna.model.network.bitlinear import BitLinear, bit_linear, naive_bit_linear
from sterna.model.network.quantizers import absmax_codes, ternary_codes

seeds = st.integers(0, 2**32 - 1)


def random_case(
    columns: int, rows: list[int], lead: tuple[int, ...], bias: bool, seed: int,
) -> tuple[Tensor, list[Tensor], list[Tensor] | None]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = [normal(count, columns) * 3.0**i for i, count in enumerate(rows)]
    return (normal(*lead, columns), weights,
            [normal(count) for count in rows] if bias else None)


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
