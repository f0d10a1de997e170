"""Mixers by position: their own properties, against loops and torch's own modules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from mixer_parts import D, built, init, is_formula, normal, run, through
from torch import Tensor

from sterna.model.mixers.fixed import GMLP, FNet, RandomSynthesizer
from sterna.model.network.mixer import TokenMixer

TIME, LENGTH, BATCH, HEADS = 7, 9, 2, 2
WIDTH = D // HEADS
CAUSAL = pytest.mark.parametrize("causal", ["true", "false"])
X = normal(TIME, BATCH, D, seed=8)


def naive_weighted(
    mixer: TokenMixer, x: Tensor, score: Callable[[int, int, int, int], Tensor],
) -> Tensor:
    """Values weighted by a softmax of ``score(sequence, head, to, from)``, one at a time."""
    v, y = through(mixer.v, x), torch.zeros_like(x)
    for b, head, i in itertools.product(range(x.shape[1]), range(HEADS), range(len(x))):
        part = slice(head * WIDTH, (head + 1) * WIDTH)
        seen = range(i + 1 if mixer.causal else len(x))
        weights = torch.stack([score(b, head, i, j) for j in seen]).exp()
        y[i, b, part] = weights @ v[:len(seen), b, part] / weights.sum()
    return through(mixer.out, y)


@CAUSAL
def test_dense_synthesizer_is_its_formula(causal):
    mixer = built(f"synthesizer_dense(length={LENGTH}, heads={HEADS}, causal={causal})")

    def naive(x: Tensor) -> Tensor:
        scores = through(mixer.scores, through(mixer.inner, x).clamp(min=0))
        return naive_weighted(mixer, x, lambda b, head, i, j: scores[i, b, head * LENGTH + j])

    is_formula(mixer, naive, X)


@CAUSAL
@pytest.mark.parametrize("rank", [0, 3])
def test_random_synthesizer_is_its_formula(rank, causal):
    mixer = built(f"synthesizer_random(length={LENGTH}, heads={HEADS}, rank={rank}, "
                  f"causal={causal})")

    def naive(x: Tensor) -> Tensor:
        full = mixer.left @ mixer.right.transpose(-1, -2) if rank else mixer.full
        return naive_weighted(mixer, x, lambda b, head, i, j: full[head, i, j])

    is_formula(mixer, naive, X)


def test_factors_are_as_large_as_the_matrix_they_stand_for():
    """The deviation of the scores at the start does not depend on the rank."""
    full = RandomSynthesizer(init(), length=128, heads=2)
    factors = RandomSynthesizer(init(), length=128, heads=2, rank=8)
    deviations = [float(each.std().detach()) for each in (
        full.full, factors.left @ factors.right.transpose(-1, -2))]
    assert deviations == pytest.approx([0.02, 0.02], rel=0.1)
    assert sum(each.numel() for each in (factors.left, factors.right)) == 2 * 2 * 128 * 8


@pytest.mark.parametrize("time", [1, 6, 12])
def test_fnet_is_the_real_part_of_both_transforms(time):
    """Against the matrices of the definition."""
    x, mixer = normal(time, BATCH, D), FNet(init(), unitary=False)
    assert list(mixer.parameters()) == []

    def matrix(n: int) -> Tensor:
        at = torch.arange(n, dtype=torch.float64)
        return torch.exp(-2j * math.pi * at.outer(at) / n)

    expected = torch.einsum("ts,sbd,dc->tbc", matrix(time), x.to(torch.complex128), matrix(D)).real
    torch.testing.assert_close(run(mixer, x), expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(run(FNet(init()), x), expected / math.sqrt(time * D))


@CAUSAL
def test_gmlp_is_its_formula(causal):
    mixer = built(f"gmlp(length={LENGTH}, causal={causal})")

    def naive(x: Tensor) -> Tensor:
        u, v = (F.gelu(through(each, x)) for each in mixer.uv.values())
        centred = v - v.mean(-1, keepdim=True)
        v = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        v = v * mixer.norm.weight + mixer.norm.bias
        gate = [mixer.bias[i] + sum(mixer.weight[i, j] * v[j]
                                    for j in range(i + 1 if mixer.causal else TIME))
                for i in range(TIME)]
        return through(mixer.out, u * torch.stack(gate))

    is_formula(mixer, naive, X)


@torch.no_grad()
def test_gmlp_begins_with_an_open_gate():
    mixer = GMLP(init(), length=64).double()
    u, rows = normal(64, BATCH, D, seed=1), normal(BATCH, 64, D, seed=2)
    ratio = mixer.gated(u, rows) / u
    assert 0 < float((ratio - 1).abs().max()) < 1e-3
    mixer.weight.zero_()
    assert torch.equal(mixer.gated(u, rows), u)


@CAUSAL
@pytest.mark.parametrize("expansion", [1, 3])
def test_mlp_mixer_is_torchs_linear_layers_over_time(expansion, causal):
    """Values and gradients; a shorter sequence uses the first rows and columns."""
    mixer = built(f"mlp_mixer(length={LENGTH}, expansion={expansion}, causal={causal})")

    def masked(weight: Tensor) -> Tensor:
        part = weight[:, :TIME, :TIME]
        return torch.stack([each.tril() for each in part]) if mixer.causal else part

    def naive(x: Tensor) -> Tensor:
        inner = F.gelu(F.linear(x.transpose(0, 2), masked(mixer.w1).flatten(0, 1),
                                mixer.b1[:, :TIME].flatten()))
        outer = masked(mixer.w2).transpose(0, 1).flatten(1)
        return F.linear(inner, outer, mixer.b2[:TIME]).transpose(0, 2)

    is_formula(mixer, naive, X)
