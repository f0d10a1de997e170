"""Sparse attention against loops written for reading, and what each form is known to fulfil."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.mixers.attention.dot_product import Attention
from sterna.model.mixers.sparse.bigbird import BigBird
from sterna.model.mixers.sparse.linformer import Linformer
from sterna.model.mixers.sparse.local import Local
from sterna.model.mixers.sparse.lsh import hash_buckets
from sterna.model.mixers.sparse.masked import Masked
from sterna.model.mixers.sparse.reformer import Reformer
from sterna.model.mixers.sparse.sinkhorn import Sinkhorn, sinkhorn_normalise
from sterna.model.mixers.sparse.strided import Strided
from sterna.model.network.heads import merge_heads, rotate, split_heads
from sterna.model.network.mixer import TokenMixer
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import TOKEN_MIXERS
from sterna.model.pattern import parse_pattern

D, T, BATCH = 16, 12, 2


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def built(pattern: str, seed: int = 0) -> TokenMixer:
    """A float mixer in float64 whose weights are all drawn anew, so that none is zero."""
    init = MixerInit(D, ternary=False, generator=torch.Generator().manual_seed(seed))
    mixer = TOKEN_MIXERS.build(parse_pattern(pattern)[0], init).double()
    with torch.no_grad():
        for index, parameter in enumerate(mixer.parameters()):
            parameter.copy_(0.4 * numbers(*parameter.shape, seed=100 * seed + index))
    return mixer


def run(mixer: TokenMixer, x: Tensor) -> Tensor:
    return mixer(x, mixer.initial_state(x))[0]


def assert_same(
    mixer: TokenMixer, twin: Callable[[Tensor], Tensor], x: Tensor, *,
    parameters: Sequence[Tensor] | None = None,
) -> None:
    """The same values, and the same gradients to the input and every parameter."""
    leaf = x.clone().requires_grad_()
    parameters = list(mixer.parameters()) if parameters is None else parameters
    weights = numbers(*x.shape, seed=99)
    results = []
    for function in (lambda each: run(mixer, each), twin):
        y = function(leaf)
        results.append((y, *torch.autograd.grad((y * weights).sum(), [leaf, *parameters])))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


def linear(layer: torch.nn.Module, x: Tensor) -> Tensor:
    assert isinstance(layer, torch.nn.Linear)
    return x @ layer.weight.t() + layer.bias


def heads_of(mixer: Attention, x: Tensor, *, turned: bool = True) -> list[Tensor]:
    """Queries, keys and values ``[batch, heads, time, width]``, the first two with RoPE."""
    q, k, v = (split_heads(linear(each, x), mixer.heads) for each in mixer.qkv.values())
    at = torch.arange(x.shape[0])
    return [rotate(q, at), rotate(k, at), v] if turned else [q, k, v]


def naive_attention(
    mixer: Attention, x: Tensor, keys_of: Callable[[int], Sequence[int]],
) -> Tensor:
    """One query after the other, over a list of keys; a key listed twice counts twice."""
    q, k, v = heads_of(mixer, x)
    rows = []
    for i in range(x.shape[0]):
        keys = list(keys_of(i))
        scores = torch.stack([(q[:, :, i] * k[:, :, j]).sum(-1) for j in keys], dim=-1)
        weights = (scores / math.sqrt(mixer.width)).softmax(dim=-1)
        rows.append(sum(weights[..., [at]] * v[:, :, j] for at, j in enumerate(keys)))
    return linear(mixer.out, merge_heads(torch.stack(rows, dim=2)))


def block_neighbours(i: int) -> list[int]:
    return [j for j in range(T) if i // 5 - 1 <= j // 5 and j <= i]


def block_neighbours_both_sides(i: int) -> list[int]:
    return [j for j in range(T) if i // 5 - 1 <= j // 5 <= i // 5 + 1]


def band_and_stripes(i: int) -> list[int]:
    return sorted({*range(max(0, i - 3), i + 1), *range(i % 4, i + 1, 4)})


@pytest.mark.parametrize(("pattern", "keys_of"), [
    ("local(block=5, heads=2)", block_neighbours),
    ("local(block=5, heads=2, causal=false)", block_neighbours_both_sides),
    ("strided(stride=4, heads=2)", band_and_stripes),
])
def test_patterns_are_attention_over_lists_of_keys(
        pattern: str, keys_of: Callable[[int], list[int]]) -> None:
    mixer = built(pattern)
    assert isinstance(mixer, Masked)
    assert_same(mixer, lambda x: naive_attention(mixer, x, keys_of), numbers(T, BATCH, D, seed=1))
    counts = [len(keys_of(i)) for i in range(T)]
    if mixer.causal:
        assert [mixer.seen(length + 1) for length in range(T)] == counts
    else:
        assert mixer.seen(T) == math.ceil(sum(counts) / T)


@pytest.mark.parametrize(("pattern", "full"), [
    (f"local(block={T})", "attention"),
    (f"local(block={T}, causal=false)", "attention(causal=false)"),
    ("strided(stride=1)", "attention"),
    (f"strided(stride={T})", "attention"),
    ("bigbird(block=2, random=2, causal=false)", "attention(causal=false)"),
    ("bigbird(block=2, random=3)", "attention"),
    (f"sinkhorn(block={T})", "attention(causal=false)"),
])
def test_a_pattern_that_covers_everything_is_full_attention(pattern: str, full: str) -> None:
    mixer, attention = built(pattern), built(full)
    shared = {name: value for name, value in mixer.state_dict().items() if name != "draw"}
    attention.load_state_dict(shared)
    assert_same(mixer, lambda x: naive_attention(
        mixer, x, lambda i: range(i + 1 if mixer.causal else T)), numbers(T, BATCH, D, seed=2))
    x = numbers(T, BATCH, D, seed=3)
    torch.testing.assert_close(run(mixer, x), run(attention, x), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_what_covers_less_is_not_full_attention() -> None:
    """So that the test before can fail: a block, a stride or a random block less."""
    x = numbers(T, BATCH, D, seed=3)
    for pattern in (f"local(block={T // 2 - 1})", "strided(stride=3)", "bigbird(block=2, random=2)",
                    f"sinkhorn(block={T // 2})", "bigbird(block=2, random=1, causal=false)"):
        mixer = built(pattern)
        full = built("attention" if mixer.causal else "attention(causal=false)")
        full.load_state_dict({name: value for name, value in mixer.state_dict().items()
                              if name != "draw"})
        assert (run(mixer, x) - run(full, x)).abs().max() > 1e-3, pattern


@torch.no_grad()
def test_local_forgets_a_block_when_the_next_but_one_begins() -> None:
    mixer = built("local(block=3)")
    x = numbers(8, 1, D, seed=4)
    state, kept = mixer.initial_state(x), []
    for token in x:
        _, state = mixer.step(token, state)
        kept.append(state[0].shape[2])
    assert kept == [1, 2, 3, 4, 5, 3, 4, 5]
    assert [mixer.state_words(n + 1) for n in range(8)] == [2 * D * each for each in kept]


def test_two_hops_of_strided_attention_reach_every_earlier_token() -> None:
    mixer = built("strided(stride=4)")
    assert isinstance(mixer, Strided)
    at = torch.arange(30)
    one = mixer.pattern(at, at)
    everything = torch.ones(30, 30, dtype=torch.bool).tril()
    assert not torch.equal(one, everything)
    assert torch.equal((one.int() @ one.int()) > 0, everything)
    parts = ((at[:, None] - at < 4) & everything), ((at[:, None] - at) % 4 == 0) & everything
    assert torch.equal(one, parts[0] | parts[1])    # the band before a stripe, in that order
    assert torch.equal((parts[0].int() @ parts[1].int()) > 0, everything)


def bigbird(options: str, seed: int = 0) -> BigBird:
    mixer = built(f"bigbird({options})", seed)
    assert isinstance(mixer, BigBird)
    return mixer


@pytest.mark.parametrize("random", [0, 2, 3])
def test_rows_of_bigbird_have_the_blocks_of_the_paper(random: int) -> None:
    n = 12
    mask = bigbird(f"random={random}, causal=false").blocks(torch.arange(n), n)
    assert mask.sum(1).tolist() == [n, 4 + random, *(n - 4) * [5 + random], 4 + random, n]
    assert mask[:, [0, -1]].all()
    assert all(mask.diagonal(k).all() for k in (-1, 0, 1))
    causal = bigbird(f"random={random}").blocks(torch.arange(n), n)
    assert torch.equal(causal, causal.tril())
    assert causal.sum(1).tolist() == [1, 2, *(3 + min(random, b - 2) for b in range(2, n))]
    assert causal[:, 0].all()
    assert all(causal.diagonal(k).all() for k in (-1, 0))


@pytest.mark.parametrize("causal", [True, False])
def test_bigbird_is_dense_attention_under_its_mask(causal: bool) -> None:
    """Of 8 blocks, the last not full; torch's own function as the other side."""
    mixer = bigbird(f"block=3, random=1, heads=2, causal={str(causal).lower()}")
    n = 22
    blocks = mixer.blocks(torch.arange(8), 8)
    assert blocks.sum() < (36 if causal else 60)    # some are left out
    mask = blocks.repeat_interleave(3, 0).repeat_interleave(3, 1)[:n, :n]
    mask = mask.tril() if causal else mask

    def twin(x: Tensor) -> Tensor:
        q, k, v = heads_of(mixer, x)
        return linear(mixer.out, merge_heads(
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))

    assert_same(mixer, twin, numbers(n, BATCH, D, seed=5))
    counts = mask.sum(1)
    seen = [mixer.seen(length + 1) for length in range(n)] if causal else [mixer.seen(n)]
    assert seen == (counts.tolist() if causal else [math.ceil(counts.sum() / n)])


def test_random_blocks_do_not_depend_on_what_comes_later() -> None:
    mixer = bigbird("random=2")
    whole = mixer.blocks(torch.arange(40), 40)
    for count in (5, 17):
        assert torch.equal(mixer.blocks(torch.arange(count), count), whole[:count, :count])
    assert torch.equal(mixer.blocks(torch.tensor([17]), 18), whole[17:18, :18])
    other = bigbird("random=2", seed=1)
    assert not torch.equal(other.blocks(torch.arange(40), 40), whole)
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(other.blocks(torch.arange(40), 40), whole)


def test_random_blocks_are_drawn_evenly_and_apart_for_every_row() -> None:
    """Within 5 standard deviations of a binomial count, for every block and pair of rows."""
    mixer, draws, rows, chosen = bigbird("random=2"), 2000, torch.tensor([9, 10]), []
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


@pytest.mark.parametrize(("pattern", "message"), [
    ("local(block=0)", "block must be a whole number from 1, got 0"),
    ("strided(stride=0)", "stride must be a whole number from 1, got 0"),
    ("bigbird(random=-1)", "random must be a whole number from 0, got -1"),
    ("linformer(length=32, k=64)", "k must be a whole number from 0 to 32, got 64"),
    ("reformer(buckets=5)", "buckets must be even, got 5"),
    ("reformer(rounds=0)", "rounds must be a whole number from 1, got 0"),
    ("sinkhorn(tau=0)", "tau must be above 0, got 0"),
])
def test_options_out_of_range_are_one_clear_message(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(pattern)


def test_costs_of_sparse_mixers_fall_below_those_of_full_attention() -> None:
    """Written out by hand for d 16, one head, 1,024 tokens; 64 products turn query and key."""
    n, turning = 1024, 4 * D
    assert built("attention").products(n) == 2 * n * D + turning
    assert built("local(block=32)").products(n) == 2 * 64 * D + 2 * D + 64 * 2 * D
    assert built("strided(stride=32)").products(n) == 2 * (32 + 31) * D + turning
    assert built("bigbird").products(n) == 2 * 6 * 16 * D + turning
    assert built("linformer").products(n) == 4 * 64 * D + turning
    assert built("reformer").products(n) == (2 * 2 * 64 + 2 * 8 + 2) * D
    assert built("sinkhorn").products(n) == (4 * 32 + 2 * 32 + 1 + 4) * D
    assert isinstance(built("local"), Local)
