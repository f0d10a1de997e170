"""Attention by fixed and random patterns against loops written for reading."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sterna.model.mixers.attention.dot_product import Attention
from sterna.model.mixers.sparse.bigbird import BigBird
from sterna.model.mixers.sparse.local import Local
from sterna.model.mixers.sparse.masked import Masked
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
