"""Attention of every kind, each held to a twin written for reading: a list of keys per query."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from mixer_parts import D, assert_same, built, is_formula, normal, run, through
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sterna.model.torch.mixers.attention import Attention, merge_heads, rotate, split_heads
from sterna.model.torch.mixers.sparse import Reformer, hash_buckets, sinkhorn_normalise
from sterna.model.torch.network.projection import MixerInit

T, BATCH = 12, 2
Cache = list[tuple[int, int]]
"""The keys that a query sees, each with the distance that its rotation is for."""


def tokens(time: int = T, *, batch: int = BATCH, seed: int = 1) -> Tensor:
    return normal(time, batch, D, seed=seed)


def cache_of(sees: Callable[[int, int], bool]) -> Callable[[int], Cache]:
    """All keys j that ``sees(i, j)`` says query i sees, at their distances in the text."""
    return lambda i: [(j, i - j) for j in range(T) if sees(i, j)]


every = cache_of(lambda i, j: True)
earlier = cache_of(lambda i, j: j <= i)


def newest(size: int) -> Callable[[int], Cache]:
    return cache_of(lambda i, j: i - size < j <= i)


def streaming_llm(sinks: int, size: int) -> Callable[[int], Cache]:
    """A cache as the paper describes it, filled token by token; a position is an index in it."""
    def after(i: int) -> Cache:
        cache: list[int] = []
        for j in range(i + 1):
            cache.append(j)
            if len(cache) > sinks + size:
                del cache[sinks]
        return [(j, len(cache) - 1 - index) for index, j in enumerate(cache)]
    return after


def naive_attention(
    mixer: Attention, x: Tensor, seen: Callable[[int], Cache],
    weigh: Callable[[Tensor], Tensor] = lambda scores: torch.softmax(scores, 0),
) -> Tensor:
    """One query, head and sequence at a time; rotation as a product of complex numbers."""
    q, k, v = (through(each, x) for each in mixer.qkv.values())
    width, half, share = mixer.width, mixer.width // 2, mixer.heads // mixer.kv_heads
    turns = 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)

    def as_complex(vector: Tensor) -> Tensor:
        return torch.complex(vector[:half], vector[half:])

    rows = []
    for i, b, h in itertools.product(range(len(x)), range(x.shape[1]), range(mixer.heads)):
        own = slice(h * width, (h + 1) * width)
        theirs = slice(h // share * width, (h // share + 1) * width)
        scores = []
        for j, distance in seen(i):
            angle = turns * (distance if mixer.rope else 0)
            product = (as_complex(q[i, b, own]) * as_complex(k[j, b, theirs]).conj()
                       * torch.polar(torch.ones_like(angle), angle))
            scores.append(product.real.sum() / math.sqrt(width))
        weights = weigh(torch.stack(scores))
        rows.append(sum(w * v[j, b, theirs] for w, (j, _) in zip(weights, seen(i), strict=True)))
    return through(mixer.out, torch.stack(rows).reshape(len(x), x.shape[1], -1))


def relu_mean(scores: Tensor) -> Tensor:
    return F.relu(scores) / len(scores)


TWINS = {
    "attention(heads=2)": (earlier,),
    "attention(heads=1, rope=false)": (earlier,),
    "attention(heads=2, causal=false)": (every,),
    "relu_attention(heads=2)": (earlier, relu_mean),
    "relu_attention(heads=2, causal=false)": (every, relu_mean),
    "gqa(heads=4, groups=2)": (earlier,),
    "mqa(heads=4)": (earlier,),
    "window(size=5, heads=2)": (newest(5),),
    "window(size=1)": (newest(1),),
    f"window(size={T}, heads=2)": (earlier,),
    "sinks(sinks=2, size=4, heads=2)": (streaming_llm(2, 4),),
    "sinks(sinks=3, size=1, heads=2)": (streaming_llm(3, 1),),
    "sinks(sinks=2, size=4, rope=false)": (streaming_llm(2, 4),),
    "sinks(sinks=0, size=5, heads=2)": (newest(5),),
    "local(block=5, heads=2)": (cache_of(lambda i, j: j <= i and i // 5 - 1 <= j // 5),),
    "local(block=5, heads=2, causal=false)": (cache_of(lambda i, j: abs(i // 5 - j // 5) <= 1),),
    "strided(stride=4, heads=2)": (
        cache_of(lambda i, j: j <= i and (i - j < 4 or (i - j) % 4 == 0)),),
    "strided(stride=1)": (earlier,),
    "bigbird(block=2, random=3)": (earlier,),                       # as much as there is
    "bigbird(block=2, random=2, causal=false)": (every,),
    "ring(heads=2)": (earlier,),
}


@pytest.mark.parametrize("pattern", TWINS)
def test_values_gradients_and_keys_seen_are_those_of_the_naive_twin(pattern):
    """Pieces and steps are the same, which tests/test_mixers.py sees to."""
    mixer, seen = built(pattern), TWINS[pattern][0]
    parameters = [value for name, value in mixer.named_parameters() if name != "qkv.k.bias"]
    # Adding to the bias of the keys moves all scores of a softmax alike: without rotation that
    # gradient is zero.
    assert_same(lambda x: run(mixer, x), lambda x: naive_attention(mixer, x, *TWINS[pattern]),
                tokens(), parameters, within=1e-11)
    counts = [len(seen(i)) for i in range(T)]
    if mixer.causal:
        assert [mixer.seen(length + 1) for length in range(T)] == counts
    else:
        assert mixer.seen(T) == math.ceil(sum(counts) / T)


def test_scores_of_turned_vectors_depend_on_the_distance_and_an_odd_channel_stays():
    q, k, place = normal(T, D + 1), normal(T, D + 1, seed=2), torch.arange(T)

    def scores(of_q: int, of_k: int) -> Tensor:
        return rotate(q, place + of_q) @ rotate(k, place + of_k).t()

    torch.testing.assert_close(scores(20_137, 20_137), scores(0, 0))
    assert not torch.allclose(scores(137, 0), scores(0, 0))
    assert torch.equal(rotate(q, place)[:, -1], q[:, -1])


@pytest.mark.parametrize(("pattern", "seen", "turned"), [
    ("attention(heads=2)", 20, 2), ("relu_attention(heads=2)", 20, 2),
    ("gqa(heads=4, groups=2)", 20, 1.5), ("mqa(heads=4)", 20, 1.25),
    ("window(size=6, heads=2)", 6, 7), ("sinks(sinks=3, size=6, heads=2)", 9, 10)])
def test_multiplications_are_those_that_torch_counts(pattern, seen, turned):
    mixer, x = built(pattern), tokens(20, batch=1)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        state = mixer(x[:-1], mixer.initial_state(x))[1]
        with FlopCounterMode(display=False) as counter:
            mixer.step(x[-1], state)
    weights = sum(part.weight.numel() for part in (*mixer.qkv.values(), mixer.out))
    assert counter.get_total_flops() == 2 * (weights + 2 * seen * D)
    # Turning is no matrix product: two for each channel of a query and of a key.
    assert mixer.multiplies(20) == weights + 2 * seen * D + turned * 2 * D


def test_a_class_that_forgets_must_say_so():
    class Forgetful(Attention):
        def kept(self, keys: Tensor) -> Tensor:
            return keys[:, :, -3:]

    with pytest.raises(AssertionError, match="forgets"):
        run(Forgetful(MixerInit(D)).double(), tokens())


def test_local_forgets_a_block_when_the_next_but_one_begins():
    mixer = built("local(block=3)")
    assert [mixer.state_words(n + 1) for n in range(8)] == [
        2 * D * each for each in (1, 2, 3, 4, 5, 3, 4, 5)]


@pytest.mark.parametrize("random", [0, 2, 3])
def test_rows_of_bigbird_have_the_blocks_of_the_paper(random):
    n = 12
    mask = built(f"bigbird(random={random}, causal=false)").blocks(torch.arange(n), n)
    assert mask.sum(1).tolist() == [n, 4 + random, *(n - 4) * [5 + random], 4 + random, n]
    assert mask[:, [0, -1]].all()
    assert all(mask.diagonal(k).all() for k in (-1, 0, 1))
    causal = built(f"bigbird(random={random})").blocks(torch.arange(n), n)
    assert torch.equal(causal, causal.tril())
    assert causal.sum(1).tolist() == [1, 2, *(3 + min(random, b - 2) for b in range(2, n))]
    assert causal[:, 0].all()
    assert all(causal.diagonal(k).all() for k in (-1, 0))


@pytest.mark.parametrize("causal", [True, False])
def test_bigbird_is_dense_attention_under_its_mask(causal):
    """Of 8 blocks, the last not full."""
    mixer = built(f"bigbird(block=3, random=1, heads=2, causal={str(causal).lower()})")
    n = 22
    blocks = mixer.blocks(torch.arange(8), 8)
    assert blocks.sum() < (36 if causal else 60)    # some are left out
    mask = blocks.repeat_interleave(3, 0).repeat_interleave(3, 1)[:n, :n]
    mask = mask.tril() if causal else mask

    is_formula(mixer, lambda x: naive_attention(
        mixer, x, lambda i: [(j, i - j) for j in mask[i].nonzero().flatten().tolist()]), tokens(n))
    counts = mask.sum(1)
    seen = [mixer.seen(length + 1) for length in range(n)] if causal else [mixer.seen(n)]
    assert seen == (counts.tolist() if causal else [math.ceil(counts.sum() / n)])


def test_random_blocks_follow_from_a_number_that_is_saved():
    """And not from what comes later, as the contract in tests/test_mixers.py sees to."""
    mixer, other = built("bigbird(random=2)"), built("bigbird(random=2)", seed=1)
    whole = mixer.blocks(torch.arange(40), 40)
    assert torch.equal(mixer.blocks(torch.tensor([17]), 18), whole[17:18, :18])
    assert not torch.equal(other.blocks(torch.arange(40), 40), whole)
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(other.blocks(torch.arange(40), 40), whole)


def test_random_blocks_are_drawn_evenly_and_apart_for_every_row():
    """Within 5 standard deviations of a binomial count, for every block and pair of rows."""
    mixer, draws, rows, chosen = built("bigbird(random=2)"), 2000, torch.tensor([9, 10]), []
    for draw in range(draws):
        mixer.draw.fill_(draw)
        chosen.append(mixer.blocks(rows, 11))
    often = torch.stack(chosen).double()
    for row, others in ((0, range(1, 8)), (1, range(1, 9))):
        p = 2 / len(others)
        deviation = math.sqrt(draws * p * (1 - p))
        assert ((often[:, row, list(others)].sum(0) - draws * p).abs() < 5 * deviation).all()
    p = 2 / 7 * 2 / 8
    both = (often[:, 0, 1:8] * often[:, 1, 1:8]).sum(0)
    assert ((both - draws * p).abs() < 5 * math.sqrt(draws * p * (1 - p))).all()


def heads_of(mixer: Attention, x: Tensor, *, turned: bool = True) -> list[Tensor]:
    """Queries, keys and values ``[batch, heads, time, width]``, the first two with RoPE."""
    q, k, v = (split_heads(through(each, x), mixer.heads) for each in mixer.qkv.values())
    at = torch.arange(x.shape[0])
    return [rotate(q, at), rotate(k, at), v] if turned else [q, k, v]


@pytest.mark.parametrize("shared", [True, False])
def test_linformer_attends_to_sums_of_keys(shared):
    mixer = built(f"linformer(length={T + 3}, k=4, heads=2, shared={str(shared).lower()})")
    assert (mixer.to_keys is mixer.to_values) == shared

    def twin(x: Tensor) -> Tensor:
        q, k, v = heads_of(mixer, x)
        keys, values = (
            torch.stack([sum(weights[row, j] * each[:, :, j] for j in range(T))
                         for row in range(4)], dim=2)
            for weights, each in ((mixer.to_keys, k), (mixer.to_values, v)))
        weights = torch.softmax(q @ keys.transpose(-1, -2) / math.sqrt(mixer.width), dim=-1)
        return through(mixer.out, merge_heads(weights @ values))

    is_formula(mixer, twin, tokens())


def naive_reformer(
    mixer: Reformer, x: Tensor, keys_of: Callable[[list[int], int], list[int]],
) -> Tensor:
    """Shared-QK attention of query i to ``keys_of(hashes, i)``, rounds merged as in equation 3
    of the paper: a sum over rounds of exponentials, divided by the sum of all."""
    q, v = (split_heads(through(each, x), mixer.heads) for each in mixer.qkv.values())
    q = rotate(q, torch.arange(x.shape[0]))
    hashes = hash_buckets(q, mixer.rotations)
    rows = []
    for i, batch, head in itertools.product(
            range(x.shape[0]), range(x.shape[1]), range(mixer.heads)):
        query, above, below = q[batch, head, i], 0.0, 0.0
        for a_round in range(mixer.rounds):
            for j in keys_of(hashes[batch, a_round, head].tolist(), i):
                if j == i:      # a weight of e^-50000, which is 0
                    continue
                key = q[batch, head, j] / q[batch, head, j].norm()
                weight = torch.exp(query @ key / math.sqrt(len(query)))
                above, below = above + weight * v[batch, head, j], below + weight
        # Alone in every round it is its own value: the weights, however small, cancel.
        rows.append(above / below if below else v[batch, head, i])
    return through(mixer.out, torch.stack(rows).reshape(*x.shape))


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
    ("bucket=6, rounds=1, heads=2", lambda hashes, i: list(range(12)), 12),
])
def test_reformer_attends_by_hash(options, keys_of, length):
    mixer, x = built(f"reformer({options})"), tokens(length)
    is_formula(mixer, lambda x: naive_reformer(mixer, x, keys_of), x)
    whole = naive_reformer(mixer, x, lambda _, i: list(range(i + 1 if mixer.causal else length)))
    hides = keys_of in (in_sorted_chunks, newest_of_own_hash)
    assert bool((run(mixer, x) - whole).abs().max() > 1e-3) == hides


@torch.no_grad()
def test_a_token_alone_in_the_reformer_sees_itself():
    for options in ("causal=true", "causal=false"):
        mixer, x = built(f"reformer({options})"), tokens(1)
        torch.testing.assert_close(
            run(mixer, x), through(mixer.out, through(mixer.qkv.v, x)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("degrees", "p", "rounded"), [
    (0, 1, 0), (5, 0.93, 5e-3), (30, 0.62, 5e-3), (90, 1 / 8, 0), (150, 2e-3, 5e-4), (180, 0, 0)])
def test_vectors_share_a_bucket_by_their_angle(degrees, p, rounded):
    """8 buckets. At right angles both choices are independent, so 1 in 8 exactly; 0 for opposite
    vectors; for others the frequencies that the field measured. Bounds of 5 deviations."""
    draws, angle = 20_000, math.radians(degrees)
    pair = torch.tensor([[1.0, 0.0], [3 * math.cos(angle), 3 * math.sin(angle)]])
    rotations = normal(draws, 2, 4, seed=12)
    first, second = hash_buckets(pair.double()[None, None], rotations)[0, :, 0].T
    frequency = float((first == second).double().mean())
    assert abs(frequency - p) <= 5 * math.sqrt(p * (1 - p) / draws) + rounded


def test_sinkhorn_gives_rows_near_1_exact_columns_and_as_it_cools_the_best_permutation():
    logits, ones = normal(50, 5, 5, seed=13), torch.ones(50, 5).double()
    off = []
    for iterations in (1, 5, 20):
        result = sinkhorn_normalise(logits, iterations)
        assert (result > 0).all()
        torch.testing.assert_close(result.sum(-2), ones, rtol=0, atol=1e-14)
        off.append(float((result.sum(-1) - ones).abs().amax(-1).median()))
    assert 0.05 < off[0] < 1
    assert 1e-5 < off[1] < 1e-2
    assert off[2] < 1e-7
    best = max(itertools.permutations(range(5)), key=lambda order: float(
        logits[0, range(5), order].sum()))
    target = torch.eye(5, dtype=torch.float64)[list(best)]
    errors = [float((sinkhorn_normalise(logits[0] / tau, 500) - target).abs().max())
              for tau in (1.0, 0.2, 0.02)]
    assert errors[0] > 0.3
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-2


@pytest.mark.parametrize("length", [12, 10])    # of the latter the last block is not full
def test_sinkhorn_attends_to_the_own_block_and_a_mixture_of_blocks(length):
    mixer = built("sinkhorn(block=4, iterations=3, tau=0.3, heads=2)")

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
        return through(mixer.out, merge_heads(torch.stack(rows, dim=2)))

    is_formula(mixer, twin, tokens(length))
