"""Attention to sums, by hash and over sorted blocks, against loops written for reading."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from test_mixers_sparse import (
    BATCH,
    D,
    T,
    assert_same,
    built,
    heads_of,
    linear,
    naive_attention,
    numbers,
    run,
)
from torch import Tensor

from sterna.model.mixers.sparse.linformer import Linformer
from sterna.model.mixers.sparse.lsh import hash_buckets
from sterna.model.mixers.sparse.reformer import Reformer
from sterna.model.mixers.sparse.sinkhorn import Sinkhorn, sinkhorn_normalise
from sterna.model.network.heads import merge_heads, rotate, split_heads
from sterna.model.network.projection import MixerInit


def test_linformer_with_as_many_sums_as_tokens_is_full_attention() -> None:
    mixer = built(f"linformer(length={T}, k={T}, heads=2)")
    assert isinstance(mixer, Linformer)
    with torch.no_grad():
        mixer.to_keys.copy_(torch.eye(T))
        mixer.to_values.copy_(torch.eye(T))
    others = [value for name, value in mixer.named_parameters() if not name.startswith("to_")]
    assert_same(mixer, lambda x: naive_attention(mixer, x, lambda i: range(T)),
                numbers(T, BATCH, D, seed=6), parameters=others)


@pytest.mark.parametrize("shared", [True, False])
def test_linformer_attends_to_sums_of_keys(shared: bool) -> None:
    mixer = built(f"linformer(length={T + 3}, k=4, heads=2, shared={str(shared).lower()})")
    assert isinstance(mixer, Linformer)
    assert (mixer.to_keys is mixer.to_values) == shared

    def twin(x: Tensor) -> Tensor:
        q, k, v = heads_of(mixer, x)
        keys, values = (
            torch.stack([sum(weights[row, j] * each[:, :, j] for j in range(T))
                         for row in range(4)], dim=2)
            for weights, each in ((mixer.to_keys, k), (mixer.to_values, v)))
        weights = torch.softmax(q @ keys.transpose(-1, -2) / math.sqrt(mixer.width), dim=-1)
        return linear(mixer.out, merge_heads(weights @ values))

    assert_same(mixer, twin, numbers(T, BATCH, D, seed=7))


def naive_reformer(
    mixer: Reformer, x: Tensor, keys_of: Callable[[list[int], int], list[int]],
) -> Tensor:
    """Shared-QK attention of query i to ``keys_of(hashes, i)``, rounds merged as in equation 3
    of the paper: a sum over rounds of exponentials, divided by the sum of all."""
    q, v = (split_heads(linear(each, x), mixer.heads) for each in mixer.qkv.values())
    q = rotate(q, torch.arange(x.shape[0]))
    hashes = hash_buckets(q, mixer.rotations)
    sequences = []
    for batch in range(x.shape[1]):
        heads = []
        for head in range(mixer.heads):
            rows = []
            for i in range(x.shape[0]):
                query, above, below = q[batch, head, i], 0.0, 0.0
                for a_round in range(mixer.rounds):
                    keys = keys_of(hashes[batch, a_round, head].tolist(), i)
                    for j in keys:
                        if j == i:      # a weight of e^-50000, which is 0
                            continue
                        key = q[batch, head, j] / q[batch, head, j].norm()
                        weight = torch.exp(query @ key / math.sqrt(len(query)))
                        above, below = above + weight * v[batch, head, j], below + weight
                # Alone in every round it is its own value: the weights, however small, cancel.
                rows.append(above / below if below else v[batch, head, i])
            heads.append(torch.stack(rows))
        sequences.append(torch.cat(heads, dim=-1))
    return linear(mixer.out, torch.stack(sequences, dim=1))


def reformer(options: str) -> Reformer:
    mixer = built(f"reformer({options})")
    assert isinstance(mixer, Reformer)
    return mixer


def test_reformer_with_chunks_of_half_the_text_is_full_shared_attention() -> None:
    mixer = reformer(f"bucket={T // 2}, rounds=1, heads=2")
    assert_same(mixer, lambda x: naive_reformer(mixer, x, lambda _, i: list(range(T))),
                numbers(T, 1, D, seed=8))


def in_sorted_chunks(hashes: list[int], i: int) -> list[int]:
    """Tokens by hash, then by place; in chunks of 3, the one before the first being the last."""
    order = sorted(range(len(hashes)), key=lambda j: (hashes[j], j))
    chunks = [order[start:start + 3] for start in range(0, len(order), 3)]
    own = next(index for index, chunk in enumerate(chunks) if i in chunk)
    return [*chunks[own - 1], *chunks[own]]


def newest_of_own_hash(hashes: list[int], i: int) -> list[int]:
    return [j for j in range(i + 1) if hashes[j] == hashes[i]][-6:]


@pytest.mark.parametrize(("options", "keys_of", "length"), [
    ("bucket=3, buckets=4, rounds=2, heads=2", in_sorted_chunks, 12),
    ("bucket=3, buckets=4, rounds=3", in_sorted_chunks, 14),    # the last chunk is not full
    ("bucket=3, buckets=2, rounds=2, heads=2, causal=true", newest_of_own_hash, 20),
    ("bucket=3, buckets=8, rounds=3, causal=true", newest_of_own_hash, 14),
])
def test_reformer_attends_by_hash(
        options: str, keys_of: Callable[[list[int], int], list[int]], length: int) -> None:
    mixer = reformer(options)
    x = numbers(length, 1, D, seed=9)
    assert_same(mixer, lambda x: naive_reformer(mixer, x, keys_of), x)
    every = naive_reformer(mixer, x, lambda _, i: list(
        range(i + 1 if mixer.causal else length)))
    assert (run(mixer, x) - every).abs().max() > 1e-3    # hashes did leave keys out


@torch.no_grad()
def test_a_token_alone_in_the_reformer_sees_itself() -> None:
    for options in ("causal=true", "causal=false"):
        mixer, x = reformer(options), numbers(1, BATCH, D, seed=10)
        expected = linear(mixer.out, linear(mixer.qkv.v, x))
        torch.testing.assert_close(run(mixer, x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ternary", [True, False], ids=["ternary", "float"])
def test_the_causal_reformer_may_be_cut_anywhere(ternary: bool) -> None:
    """It is no default, so the tests of every mixer do not see it."""
    init = MixerInit(D, ternary=ternary, generator=torch.Generator().manual_seed(3))
    mixer = Reformer(init, bucket=2, buckets=4, causal=True, heads=2).double()
    with torch.no_grad():
        mixer.out.weight.copy_(numbers(D, D, seed=3))
    x = numbers(T, BATCH, D, seed=11).requires_grad_()
    whole, last = mixer(x, mixer.initial_state(x))
    with torch.no_grad():
        for sizes in ([5, 7], [1, 10, 1]):
            state, pieces = mixer.initial_state(x), []
            for piece in x.split(sizes):
                y, state = mixer(piece, state)
                pieces.append(y)
            torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-10, atol=1e-10)
        state = mixer.initial_state(x)
        for t in range(T):
            y, state = mixer.step(x[t], state)
            torch.testing.assert_close(y, whole[t], rtol=1e-10, atol=1e-10)
            assert sum(each[0].numel() for each in state) == mixer.state_words(t + 1)
    torch.testing.assert_close(state, last, rtol=1e-10, atol=1e-10)
    (gradient,) = torch.autograd.grad(whole[6].square().sum(), x)
    assert bool(gradient[:6].any())
    assert not bool(gradient[7:].any())


def test_vectors_share_a_bucket_by_their_angle() -> None:
    """8 buckets. At right angles both choices are independent, so 1 in 8 exactly; 0 for opposite
    vectors; for others the frequencies that the field measured. Bounds of 5 deviations."""
    draws = 20_000
    rotations = numbers(draws, 2, 4, seed=12)

    def frequency(degrees: float) -> float:
        angle = math.radians(degrees)
        pair = torch.tensor([[1.0, 0.0], [3 * math.cos(angle), 3 * math.sin(angle)]])
        first, second = hash_buckets(pair.double()[None, None], rotations)[0, :, 0].T
        return float((first == second).double().mean())

    assert frequency(0) == 1.0
    assert frequency(180) == 0.0
    for degrees, p, rounded in (
            (5, 0.93, 5e-3), (30, 0.62, 5e-3), (90, 1 / 8, 0), (150, 2e-3, 5e-4)):
        deviation = math.sqrt(p * (1 - p) / draws)
        assert abs(frequency(degrees) - p) < 5 * deviation + rounded, degrees
    falling = [frequency(degrees) for degrees in (0, 20, 40, 60, 90, 120, 150)]
    assert all(a - b > 5 * math.sqrt(0.5 / draws) for a, b in itertools.pairwise(falling))


def test_rows_of_sinkhorn_come_near_1_and_columns_are_exact() -> None:
    logits = numbers(50, 8, 8, seed=13)
    worst = []
    for iterations in (1, 5, 20):
        result = sinkhorn_normalise(logits, iterations)
        assert (result > 0).all()
        torch.testing.assert_close(result.sum(-2), torch.ones(50, 8).double(), rtol=0, atol=1e-14)
        worst.append(float((result.sum(-1) - 1).abs().amax(-1).median()))
    assert 0.05 < worst[0] < 1
    assert 1e-5 < worst[1] < 1e-2
    assert worst[2] < 1e-7
    # Rows come near by the square of the limit's second singular value (Knight 2008).
    limit = sinkhorn_normalise(logits[0], 500)
    rate = float(torch.linalg.svdvals(limit)[1]) ** 2
    errors = [float((sinkhorn_normalise(logits[0], k).sum(-1) - 1).norm()) for k in (8, 9)]
    assert errors[1] / errors[0] == pytest.approx(rate, rel=0.02)


def test_sinkhorn_tends_to_the_best_permutation_as_it_cools() -> None:
    scores = numbers(5, 5, seed=14)
    best = max(itertools.permutations(range(5)),
               key=lambda order: sum(float(scores[row, order[row]]) for row in range(5)))
    target = torch.eye(5, dtype=torch.float64)[list(best)]
    errors = [float((sinkhorn_normalise(scores / tau, 500) - target).abs().max())
              for tau in (1.0, 0.2, 0.02)]
    assert errors[0] > 0.3
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3


@pytest.mark.parametrize("length", [12, 10])    # of the latter the last block is not full
def test_sinkhorn_attends_to_the_own_block_and_a_mixture_of_blocks(length: int) -> None:
    mixer = built("sinkhorn(block=4, iterations=3, tau=0.3, heads=2)")
    assert isinstance(mixer, Sinkhorn)

    def twin(x: Tensor) -> Tensor:
        raw_q, raw_k, _ = heads_of(mixer, x, turned=False)
        q, k, v = heads_of(mixer, x)
        starts = range(0, length, 4)
        mean_q, mean_k = (torch.stack([each[:, :, s:s + 4].mean(2) for s in starts], dim=2)
                          for each in (raw_q, raw_k))
        order = torch.exp(mean_q @ mean_k.transpose(-1, -2) / math.sqrt(mixer.width) / 0.3)
        for _ in range(3):
            order = order / order.sum(-1, keepdim=True)
            order = order / order.sum(-2, keepdim=True)
        rows = []
        for i in range(length):
            keys, values = ([sum(
                order[:, :, i // 4, block, None] * each[:, :, start + place]
                for block, start in enumerate(starts) if start + place < length)
                for place in range(4)] for each in (k, v))
            own = range(i // 4 * 4, min(i // 4 * 4 + 4, length))
            keys, values = keys + [k[:, :, j] for j in own], values + [v[:, :, j] for j in own]
            scores = torch.stack([(q[:, :, i] * key).sum(-1) for key in keys], dim=-1)
            weights = (scores / math.sqrt(mixer.width)).softmax(-1)
            rows.append(sum(weights[..., [at]] * value for at, value in enumerate(values)))
        return linear(mixer.out, merge_heads(torch.stack(rows, dim=2)))

    assert_same(mixer, twin, numbers(length, BATCH, D, seed=15))
