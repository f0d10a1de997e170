"""Linear attention and Performer: their own properties, against loops written for reading."""

from __future__ import annotations

import math

import pytest
import torch
from mixer_parts import D, assert_same, built, init, is_formula, normal, through
from torch import Tensor

from sterna.model.mixers.linear import (
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
def test_values_and_gradients_are_those_of_the_quadratic_formula(name, options):
    mixer = built(f"{name}(heads={HEADS}, {options})")
    is_formula(mixer, lambda x: naive(mixer, x), normal(TIME, BATCH, D, seed=8))


@pytest.mark.parametrize("chunk", [1, 3, 4, 11, 64])
@pytest.mark.parametrize("time", [1, 4, 11])
def test_chunks_of_any_size_are_the_recurrence(chunk, time):
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


def test_a_query_without_features_gets_nothing_and_no_bad_gradient():
    """In float32 elu(-30) + 1 is 0, though e^-30 is not."""
    x = torch.full((1, 4), -30.0, requires_grad=True)
    assert float(elu_features(x).detach().max()) == 0
    y = mixed_by_sums(elu_features(x), torch.ones(3, 4), torch.ones(3, 2))
    y.sum().backward()
    assert torch.equal(y, torch.zeros(1, 2))
    assert bool(x.grad.isfinite().all())


X = torch.tensor([0.3, -0.2, 0.1, 0.6], dtype=torch.float64)
Y = torch.tensor([0.2, 0.1, -0.4, 0.7], dtype=torch.float64)


def estimates(rows: Tensor, scale: float = 1.0) -> Tensor:
    """An estimate of ``e^(x y)`` from each row alone."""
    return (log_features(scale * X, rows) + log_features(scale * Y, rows)).exp() * len(rows)


def test_features_are_unbiased_and_orthogonal_rows_have_less_variance():
    """Within three standard errors of ``e^(x y)``; blocks of rows are independent."""
    def z_score(rows: Tensor) -> float:
        of_blocks = estimates(rows).view(-1, 4).mean(1)
        error = of_blocks.std() / math.sqrt(len(of_blocks))
        return float((of_blocks.mean() - (X @ Y).exp()) / error)

    generator = torch.Generator().manual_seed(5)
    rows = orthogonal_rows(4 * 20_000, 4, generator).double()
    assert abs(z_score(rows)) < 3
    # Q as LAPACK leaves it, which libraries have shipped.
    square = torch.randn(20_000, 4, 4, dtype=torch.float64, generator=generator)
    lengths = normal(20_000, 4, 4, seed=6).norm(dim=-1, keepdim=True)
    biased = (torch.linalg.qr(square)[0].transpose(-1, -2) * lengths).reshape(-1, 4)
    assert z_score(biased) > 10
    # Of shorter vectors, as the tail of longer ones is too heavy to sample.
    x, y = 0.5 * X, 0.5 * Y
    formula = float((2 * x @ y).exp() * ((x + y).square().sum().exp() - 1))
    independent = estimates(normal(400_000, 4, seed=7), 0.5)
    assert float(independent.var()) == pytest.approx(formula, rel=0.05)
    assert float(estimates(rows, 0.5).view(-1, 4).mean(1).var()) < 0.96 * formula / 4


def test_rows_are_orthogonal_in_blocks_and_as_long_as_normal_ones():
    rows = orthogonal_rows(2 * 16 + 5, 16, torch.Generator().manual_seed(1)).double()
    assert rows.shape == (37, 16)
    for block in rows.split(16):
        products = block @ block.t()
        assert float((products - products.diagonal().diag()).abs().max()) < 1e-5
    squares = orthogonal_rows(4000, 16, torch.Generator().manual_seed(2)).square().sum(1)
    assert float(squares.mean()) == pytest.approx(16, rel=0.02)
    assert float(squares.var()) == pytest.approx(32, rel=0.1)    # chi squared


@pytest.mark.parametrize("width", [16, 64])
def test_features_stay_in_the_range_of_float32(width):
    with pytest.raises(ValueError, match="a head of 128 channels has features beyond the range"):
        built("performer(heads=1)", d=128)
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
