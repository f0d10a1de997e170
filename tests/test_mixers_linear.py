"""Linear attention and Performer: their own properties, against loops written for reading."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from mixer_parts import D, assert_same, built, init, normal, run, through
from torch import Tensor

from sterna.model.mixers.linear import (
    EPS,
    FeatureAttention,
    Performer,
    causal_by_sums,
    elu_features,
    log_features,
    mixed_by_sums,
    orthogonal_rows,
)

TIME, BATCH, HEADS = 11, 2, 2
WIDTH = D // HEADS


# The formula, score by score


def phi(mixer: FeatureAttention, x: Tensor, of_query: bool) -> Tensor:
    """Features of one query or key ``[width]``, from the papers' formulas."""
    if not isinstance(mixer, Performer):
        relu = type(mixer).__name__.startswith("Relu")
        return x.clamp(min=0) if relu else torch.where(x > 0, x + 1, x.exp())
    x = x / WIDTH ** 0.25
    features = torch.exp(mixer.rows @ x - x @ x / 2)
    # A factor for each query cancels, save in the epsilon.
    return features / (features.max() if of_query else math.sqrt(len(features)))


def turned(x: Tensor, position: int) -> Tensor:
    """RoPE by complex numbers: channels i and i + width/2 are real and imaginary part."""
    half = WIDTH // 2
    angle = position * 1e4 ** (-torch.arange(half) / half).double()
    number = torch.complex(x[:half], x[half:]) * torch.exp(1j * angle)
    return torch.cat([number.real, number.imag])


def naive(mixer: FeatureAttention, x: Tensor) -> Tensor:
    """``x [time, batch, d]`` to the same, one query and key at a time."""
    q, k, v = (through(each, x) for each in mixer.qkv.values())
    mixed = torch.zeros_like(x)
    for b in range(x.shape[1]):
        for head in range(HEADS):
            part = slice(head * WIDTH, (head + 1) * WIDTH)
            queries, keys = ([turned(each, t) if mixer.rope else each
                              for t, each in enumerate(rows[:, b, part])] for rows in (q, k))
            for i, query in enumerate(queries):
                seen = range(i + 1 if mixer.causal else len(keys))
                kept = 1 - 2.0 ** -(mixer.decay + head) if mixer.decay else 1.0
                scores = torch.stack([
                    phi(mixer, query, True) @ phi(mixer, keys[j], False) * kept ** (i - j)
                    for j in seen])
                mixed[i, b, part] = scores @ v[:len(seen), b, part] / (scores.sum() + 1e-6)
    return through(mixer.out, mixed)


@pytest.mark.parametrize("options", ["rope=false", "rope=true", "causal=false", "decay=2"])
@pytest.mark.parametrize("name", ["linear", "linear_relu", "performer"])
def test_values_and_gradients_are_those_of_the_quadratic_formula(name: str, options: str) -> None:
    mixer = built(f"{name}(heads={HEADS}, {options})")
    assert_same(lambda x: run(mixer, x), lambda x: naive(mixer, x),
                normal(TIME, BATCH, D, seed=8), mixer.parameters())


@pytest.mark.parametrize("chunk", [1, 3, 4, 11, 64])
@pytest.mark.parametrize("time", [1, 4, 11])
def test_chunks_of_any_size_are_the_recurrence(chunk: int, time: int) -> None:
    q, k = (elu_features(normal(BATCH, HEADS, time, 5, seed=seed)) for seed in (1, 2))
    inputs = [q, k, normal(BATCH, HEADS, time, 4, seed=3), normal(BATCH, HEADS, 5, 4, seed=4),
              5 + normal(BATCH, HEADS, 5, seed=5).abs()]

    def recurrence(q: Tensor, k: Tensor, v: Tensor, s: Tensor, z: Tensor) -> list[Tensor]:
        out = []
        for t in range(time):
            s = s + k[..., t, :, None] * v[..., t, None, :]
            z = z + k[..., t, :]
            out.append((q[..., t, None, :] @ s)[..., 0, :]
                       / ((q[..., t, :] * z).sum(-1, keepdim=True) + 1e-6))
        return [torch.stack(out, dim=-2), s, z]

    assert_same(lambda *given: causal_by_sums(*given, chunk=chunk), recurrence, inputs)


# Means


def test_equal_values_come_back_save_for_the_epsilon() -> None:
    q, k = (elu_features(normal(7, 5, seed=seed)) for seed in (1, 2))
    v = torch.full((7, 3), 2.5, dtype=torch.float64)
    scores = (q @ k.t()).tril().sum(-1, keepdim=True)
    y = causal_by_sums(q, k, v, torch.zeros(5, 3).double(), torch.zeros(5).double())[0]
    torch.testing.assert_close(y, (2.5 * scores / (scores + EPS)).expand(7, 3))
    assert 0 < float((2.5 - y).max()) < 2.5 * EPS / float(scores.min())
    torch.testing.assert_close(mixed_by_sums(q, k, v), v, rtol=1e-6, atol=0)


def test_a_query_without_features_gets_nothing_and_no_bad_gradient() -> None:
    """In float32 elu(-30) + 1 is 0, though e^-30 is not."""
    x = torch.full((1, 4), -30.0, requires_grad=True)
    assert float(elu_features(x).detach().max()) == 0
    y = mixed_by_sums(elu_features(x), torch.ones(3, 4), torch.ones(3, 2))
    y.sum().backward()
    assert torch.equal(y, torch.zeros(1, 2))
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


# Performer

X = torch.tensor([0.3, -0.2, 0.1, 0.6], dtype=torch.float64)
Y = torch.tensor([0.2, 0.1, -0.4, 0.7], dtype=torch.float64)


def estimates(rows: Tensor, scale: float = 1.0) -> Tensor:
    """An estimate of ``e^(x y)`` from each row alone."""
    return (log_features(scale * X, rows) + log_features(scale * Y, rows)).exp() * len(rows)


def z_score(rows: Tensor) -> float:
    """How many standard errors the mean is from ``e^(x y)``; blocks are independent."""
    of_blocks = estimates(rows).view(-1, 4).mean(1)
    error = of_blocks.std() / math.sqrt(len(of_blocks))
    return float((of_blocks.mean() - (X @ Y).exp()) / error)


def test_features_are_unbiased_and_the_test_would_notice() -> None:
    generator = torch.Generator().manual_seed(5)
    assert abs(z_score(orthogonal_rows(4 * 20_000, 4, generator).double())) < 3
    # Q as LAPACK leaves it, which libraries have shipped.
    square = torch.randn(20_000, 4, 4, dtype=torch.float64, generator=generator)
    lengths = normal(20_000, 4, 4, seed=6).norm(dim=-1, keepdim=True)
    biased = (torch.linalg.qr(square)[0].transpose(-1, -2) * lengths).reshape(-1, 4)
    assert z_score(biased) > 10


def test_variance_is_the_formulas_and_orthogonal_rows_have_less() -> None:
    x, y = 0.5 * X, 0.5 * Y     # the tail of longer ones is too heavy to sample
    formula = float((2 * x @ y).exp() * ((x + y).square().sum().exp() - 1))
    independent = estimates(normal(400_000, 4, seed=7), 0.5)
    assert float(independent.var()) == pytest.approx(formula, rel=0.05)
    rows = orthogonal_rows(4 * 20_000, 4, torch.Generator().manual_seed(8)).double()
    assert float(estimates(rows, 0.5).view(-1, 4).mean(1).var()) < 0.96 * formula / 4


def test_rows_are_orthogonal_in_blocks_and_as_long_as_normal_ones() -> None:
    rows = orthogonal_rows(2 * 16 + 5, 16, torch.Generator().manual_seed(1)).double()
    assert rows.shape == (37, 16)
    for block in rows.split(16):
        products = block @ block.t()
        assert float((products - products.diagonal().diag()).abs().max()) < 1e-5
    squares = orthogonal_rows(4000, 16, torch.Generator().manual_seed(2)).square().sum(1)
    assert float(squares.mean()) == pytest.approx(16, rel=0.02)
    assert float(squares.var()) == pytest.approx(32, rel=0.1)    # chi squared


def test_many_features_come_near_softmax_attention() -> None:
    """Against torch: the error falls as one over the root of the number of features."""
    x, errors = 0.2 * normal(TIME, BATCH, D, seed=4), []
    for features in (64, 16_384):
        mixer = built(f"performer(features={features}, heads={HEADS}, rope=false)")
        with torch.no_grad():
            got = run(mixer, x)
            q, k, v = (through(each, x).unflatten(-1, (HEADS, -1)).permute(1, 2, 0, 3)
                       for each in mixer.qkv.values())
            full = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            expected = through(mixer.out, full.permute(2, 0, 1, 3).flatten(-2))
        errors.append(float((got - expected).abs().mean() / expected.abs().mean()))
    assert errors[1] < 0.03
    assert errors[1] < errors[0] / 8


@pytest.mark.parametrize("width", [16, 64])
def test_features_stay_in_the_range_of_float32(width: int) -> None:
    mixer = Performer(init(d=width), heads=1)
    longest = mixer.rows[mixer.rows.square().sum(1).argmax()]
    worst = (longest * width ** 0.25).expand(1, 1, 6, -1).clone().requires_grad_()
    huge = torch.randn(1, 1, 6, width, generator=torch.Generator().manual_seed(1)) * 1e4
    for q, k in ((worst, worst), (huge, worst), (worst, huge), (huge, huge)):
        features = mixer.of_queries(q), mixer.of_keys(k)
        assert float(features[1].detach().max()) < 1e30
        y = causal_by_sums(*features, torch.ones(1, 1, 6, width),
                           torch.zeros(1, 1, 2 * width, width), torch.zeros(1, 1, 2 * width))[0]
        assert bool(y.isfinite().all())
        assert float(y.detach().max()) <= 1.0001
    (gradient,) = torch.autograd.grad(
        mixer.of_queries(worst).sum() + mixer.of_keys(worst).sum(), worst)
    assert bool(gradient.isfinite().all())


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="decay is for causal attention"):
        built("linear(causal=false, decay=1)")
    with pytest.raises(ValueError, match="decay must be a whole number from 0, got -1"):
        built("linear(decay=-1)")
    with pytest.raises(ValueError, match="a head of 128 channels has features beyond the range"):
        built("performer(heads=1)", d=128)
    with pytest.raises(ValueError, match="features must be a whole number from 0, got -1"):
        built("performer(features=-1)")


# Costs


@pytest.mark.parametrize(("name", "features"), [("linear", 8), ("performer", 16)])
def test_costs_do_not_grow_with_the_length(name: str, features: int) -> None:
    mixer = built(f"{name}(heads={HEADS})")
    sums = D * features + HEADS * features
    assert mixer.state_words(1) == mixer.state_words(10**6) == sums + 1
    assert built(f"{name}(heads={HEADS}, rope=false)").state_words(5) == sums
    drawn = 2 * D * (features + 1) if name == "performer" else 0
    assert mixer.products(10**6) == 2 * D * features + HEADS * features + 4 * D + drawn
