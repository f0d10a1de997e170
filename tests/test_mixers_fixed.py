"""Mixers by position: their own properties, against loops and torch's own modules."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sterna.model.mixers.fixed import GMLP, DenseSynthesizer, FNet, MLPMixer, RandomSynthesizer
from sterna.model.network.mixer import TokenMixer
from sterna.model.network.projection import MixerInit

D, TIME, LENGTH, BATCH, HEADS = 16, 7, 9, 2, 2
WIDTH = D // HEADS
CAUSAL = pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def init() -> MixerInit:
    return MixerInit(D, ternary=False, generator=torch.Generator().manual_seed(2))


def moved(mixer: TokenMixer) -> TokenMixer:
    """In float64, and no parameter at its start."""
    mixer = mixer.double()
    with torch.no_grad():
        for index, parameter in enumerate(mixer.parameters()):
            parameter.add_(0.5 * random(*parameter.shape, seed=index))
    return mixer


def mixed(mixer: TokenMixer, x: Tensor) -> Tensor:
    return mixer(x, mixer.initial_state(x))[0]


def linear(mixer: TokenMixer, name: str, x: Tensor) -> Tensor:
    return F.linear(x, mixer.get_parameter(f"{name}.weight"), mixer.get_parameter(f"{name}.bias"))


def assert_same(mixer: TokenMixer, naive: Callable[[Tensor], Tensor]) -> None:
    """Values, and gradients of input and parameters."""
    toward, results = random(TIME, BATCH, D, seed=9), []
    for form in (lambda x: mixed(mixer, x), naive):
        x = random(TIME, BATCH, D, seed=8).requires_grad_()
        y = form(x)
        results.append([y, *torch.autograd.grad((y * toward).sum(), [x, *mixer.parameters()])])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


# Synthesizer ---------------------------------------------------------------------------


def naive_weighted(
    mixer: TokenMixer, x: Tensor, score: Callable[[int, int, int, int], Tensor], causal: bool,
) -> Tensor:
    """Values weighted by a softmax of ``score(sequence, head, to, from)``, one at a time."""
    v, y = linear(mixer, "v", x), torch.zeros_like(x)
    for b in range(x.shape[1]):
        for head in range(HEADS):
            part = slice(head * WIDTH, (head + 1) * WIDTH)
            for i in range(len(x)):
                seen = range(i + 1 if causal else len(x))
                weights = torch.stack([score(b, head, i, j) for j in seen]).exp()
                y[i, b, part] = weights @ v[:len(seen), b, part] / weights.sum()
    return linear(mixer, "out", y)


@CAUSAL
def test_dense_synthesizer_is_its_formula(causal: bool) -> None:
    mixer = moved(DenseSynthesizer(init(), length=LENGTH, heads=HEADS, causal=causal))

    def naive(x: Tensor) -> Tensor:
        scores = linear(mixer, "scores", linear(mixer, "inner", x).clamp(min=0))
        return naive_weighted(
            mixer, x, lambda b, head, i, j: scores[i, b, head * LENGTH + j], causal)

    assert_same(mixer, naive)


@CAUSAL
@pytest.mark.parametrize("rank", [0, 3])
def test_random_synthesizer_is_its_formula(rank: int, causal: bool) -> None:
    mixer = moved(RandomSynthesizer(init(), length=LENGTH, heads=HEADS, rank=rank, causal=causal))

    def naive(x: Tensor) -> Tensor:
        if not rank:
            full = mixer.get_parameter("full")
            return naive_weighted(mixer, x, lambda b, head, i, j: full[head, i, j], causal)
        left, right = mixer.get_parameter("left"), mixer.get_parameter("right")
        return naive_weighted(
            mixer, x, lambda b, head, i, j: left[head, i] @ right[head, j], causal)

    assert_same(mixer, naive)


@torch.no_grad()
def test_dense_scores_are_a_function_of_their_own_token_alone() -> None:
    mixer = DenseSynthesizer(init(), length=LENGTH, heads=HEADS).double()
    x = random(TIME, BATCH, D)
    other = x.clone()
    other[3] += 1
    before, after = (mixer.attention(each, TIME) for each in (x, other))    # [.., to, from]
    torch.testing.assert_close(before.sum(-1), torch.ones_like(before[..., 0]))
    changed = (before != after).any(-1).any(1)
    assert changed.tolist() == [[t == 3 for t in range(TIME)]] * BATCH


@torch.no_grad()
def test_without_scores_a_synthesizer_is_the_mean_of_the_values_so_far() -> None:
    dense = DenseSynthesizer(init(), length=LENGTH, heads=HEADS).double()
    free = RandomSynthesizer(init(), length=LENGTH, heads=HEADS).double()
    for parameter in (dense.scores.weight, dense.scores.bias, free.full):
        assert parameter is not None
        parameter.zero_()
    x = random(TIME, BATCH, D)
    for mixer in (dense, free):
        mixer.out.weight.copy_(torch.eye(D))
        counts = torch.arange(1, TIME + 1).view(-1, 1, 1)
        torch.testing.assert_close(mixed(mixer, x), linear(mixer, "v", x).cumsum(0) / counts)


@torch.no_grad()
@pytest.mark.parametrize("rank", [0, 3])
def test_random_synthesizer_is_linear_in_its_values_and_dense_is_not(rank: int) -> None:
    x, other = random(TIME, BATCH, D, seed=1), random(TIME, BATCH, D, seed=2)

    def misses(mixer: TokenMixer) -> float:
        """How far ``f(x + other) + f(0)`` is from ``f(x) + f(other)``."""
        sums = mixed(mixer, x + other) + mixed(mixer, torch.zeros_like(x))
        return float((sums - mixed(mixer, x) - mixed(mixer, other)).abs().max())

    assert misses(moved(RandomSynthesizer(init(), length=LENGTH, rank=rank))) < 1e-12
    assert misses(moved(DenseSynthesizer(init(), length=LENGTH))) > 0.1


def test_factors_are_as_large_as_the_matrix_they_stand_for() -> None:
    """The deviation of the scores at the start does not depend on the rank."""
    full = RandomSynthesizer(init(), length=128, heads=2)
    factors = RandomSynthesizer(init(), length=128, heads=2, rank=8)
    deviations = [float(each.std().detach()) for each in (
        full.full, factors.left @ factors.right.transpose(-1, -2))]
    assert deviations == pytest.approx([0.02, 0.02], rel=0.1)
    assert sum(each.numel() for each in (factors.left, factors.right)) == 2 * 2 * 128 * 8
    with pytest.raises(ValueError, match="rank must be a whole number from 0 to 16, got 17"):
        RandomSynthesizer(init(), length=16, rank=17)


# FNet ----------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [1, 6, 12])
def test_fnet_is_the_real_part_of_both_transforms(time: int) -> None:
    """Against the matrices of the definition, and torch's transforms one after the other."""
    x, mixer = random(time, BATCH, D), FNet(init(), unitary=False)
    assert list(mixer.parameters()) == []

    def matrix(n: int) -> Tensor:
        at = torch.arange(n, dtype=torch.float64)
        return torch.exp(-2j * math.pi * at.outer(at) / n)

    expected = torch.einsum("ts,sbd,dc->tbc", matrix(time), x.to(torch.complex128), matrix(D)).real
    torch.testing.assert_close(mixed(mixer, x), expected, rtol=1e-11, atol=1e-11)
    one_by_one = torch.fft.fft(torch.fft.fft(x, dim=2), dim=0).real
    torch.testing.assert_close(mixed(mixer, x), one_by_one, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(mixed(FNet(init()), x), expected / math.sqrt(time * D))


def test_gradient_of_fnet_is_the_transform_again() -> None:
    """The matrix of Re(F x F) is symmetric."""
    x, toward = random(6, BATCH, D).requires_grad_(), random(6, BATCH, D, seed=1)
    (gradient,) = torch.autograd.grad((mixed(FNet(init()), x) * toward).sum(), x)
    torch.testing.assert_close(gradient, mixed(FNet(init()), toward))


# gMLP ----------------------------------------------------------------------------------


@CAUSAL
def test_gmlp_is_its_formula(causal: bool) -> None:
    mixer = moved(GMLP(init(), length=LENGTH, causal=causal))

    def naive(x: Tensor) -> Tensor:
        u, v = (F.gelu(linear(mixer, name, x)) for name in ("uv.u", "uv.v"))
        centred = v - v.mean(-1, keepdim=True)
        v = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        v = v * mixer.get_parameter("norm.weight") + mixer.get_parameter("norm.bias")
        weight, bias = mixer.get_parameter("weight"), mixer.get_parameter("bias")
        gate = [bias[i] + sum(weight[i, j] * v[j] for j in range(i + 1 if causal else TIME))
                for i in range(TIME)]
        return linear(mixer, "out", u * torch.stack(gate))

    assert_same(mixer, naive)


@torch.no_grad()
def test_gmlp_begins_with_an_open_gate() -> None:
    mixer = GMLP(init(), length=64).double()
    u, rows = random(64, BATCH, D, seed=1), random(BATCH, 64, D, seed=2)
    ratio = mixer.gated(u, rows) / u
    assert 0 < float((ratio - 1).abs().max()) < 1e-3
    mixer.weight.zero_()
    assert torch.equal(mixer.gated(u, rows), u)


# MLP-Mixer -----------------------------------------------------------------------------


def masked(weight: Tensor, causal: bool) -> Tensor:
    return torch.stack([each.tril() for each in weight]) if causal else weight


@CAUSAL
@pytest.mark.parametrize("expansion", [1, 3])
def test_mlp_mixer_is_torchs_linear_layers_over_time(expansion: int, causal: bool) -> None:
    """Values and gradients; a shorter sequence uses the first rows and columns."""
    mixer = moved(MLPMixer(init(), length=LENGTH, expansion=expansion, causal=causal))

    def naive(x: Tensor) -> Tensor:
        w1, b1, w2, b2 = mixer.parameters()
        first, second = nn.Linear(TIME, expansion * TIME), nn.Linear(expansion * TIME, TIME)
        part = slice(TIME)
        weights = {
            "weight": masked(w1, causal)[:, part, part].flatten(0, 1),
            "bias": b1[:, part].flatten()}
        inner = F.gelu(torch.func.functional_call(first, weights, x.transpose(0, 2)))
        weights = {
            "weight": masked(w2, causal)[:, part, part].transpose(0, 1).flatten(1),
            "bias": b2[part]}
        return torch.func.functional_call(second, weights, inner).transpose(0, 2)

    assert_same(mixer, naive)


@torch.no_grad()
def test_permuting_channels_commutes_with_mixing_tokens() -> None:
    mixer = moved(MLPMixer(init(), length=LENGTH, expansion=2))
    x, order = random(TIME, BATCH, D), torch.randperm(D, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(mixed(mixer, x[..., order]), mixed(mixer, x)[..., order])
    other = moved(GMLP(init(), length=LENGTH))      # which mixes channels as well
    assert not torch.allclose(mixed(other, x[..., order]), mixed(other, x)[..., order])


# Costs ---------------------------------------------------------------------------------


def test_costs_are_those_of_the_docstrings() -> None:
    dense = DenseSynthesizer(init(), length=64, heads=HEADS)
    free = RandomSynthesizer(init(), length=64, heads=HEADS)
    gated, mlp = GMLP(init(), length=64), MLPMixer(init(), length=64, expansion=3)
    assert [each.products(10) for each in (dense, free, gated, mlp)] == [
        10 * D, 10 * D, 11 * D, 60 * D]
    assert [each.state_words(10) for each in (dense, free, gated, mlp)] == [
        10 * D, 10 * D, 10 * D, 40 * D]
    assert FNet(init()).products(64) == 2 * D * (4 + 6)
    with pytest.raises(ValueError, match="length must be a whole number from 1 to 65536, got 0"):
        GMLP(init(), length=0)
