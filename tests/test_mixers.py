"""What every mixer must do, whatever it computes: over all that are registered."""

from __future__ import annotations

import math

import pytest
import torch
from mixer_parts import DFF, KINDS, LENGTH, D, built, init, normal, pattern_of

from sterna.model.config import ModelConfig
from sterna.model.pattern import Choice, parse_pattern
from sterna.model.torch.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS
from sterna.model.torch.stack.block import Block
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.study.contract import check_contract

BATCH = 2
NAMES = [name for name in TOKEN_MIXERS.names() if not name.startswith("shift")]
MIXERS = [pattern_of(name) for name in NAMES]
CAUSAL = [each for each in MIXERS if built(each).causal]
OTHERS = [each for each in MIXERS if each not in CAUSAL]
FURTHER = [
    "attention(heads=2, rope=false)", "relu_attention(heads=2)", "gqa(heads=4, groups=2)",
    "mqa(heads=4)", "window(size=1)", "window(size=5, heads=2)", "sinks(sinks=2, size=4, heads=2)",
    "sinks(sinks=3, size=1, heads=2)", "sinks(sinks=2, size=4, rope=false)", "sinks(sinks=0)",
    "local(block=1)", "local(block=5, rope=false)", "bigbird(block=3, random=1)",
    "reformer(bucket=2, buckets=4, heads=2, causal=true)", "linear(rope=false, heads=2)",
    "performer(features=6)", f"mlp_mixer(length={LENGTH}, expansion=3)", "hgrn2(expand=4)",
    f"synthesizer_random(length={LENGTH}, rank=3)", "lru(state_dim=5, fully_mml=false)",
    "grumml(fully_mml=true)", "mlgru(gains=true, bounds=true, swish=true, bias=false)",
    *(pattern_of(name, causal="false") for name in NAMES if "causal" in TOKEN_MIXERS.options(name)),
]
"""Options that lead to other code, beside the small ones of every name."""


@KINDS
@pytest.mark.parametrize("pattern", [*MIXERS, *FURTHER])
def test_a_mixer_keeps_the_contract(pattern, ternary):
    """Causality, cutting, steps, words of state."""
    check_contract(built(pattern, ternary=ternary), normal(LENGTH, BATCH, D, seed=1))


@KINDS
@pytest.mark.parametrize("pattern", CAUSAL)
@torch.no_grad()
def test_a_state_has_memory_of_its_own_and_is_not_written_to(pattern, ternary):
    """A slice of a sequence would hold all of it, in memory and in a checkpoint."""
    mixer, x = built(pattern, ternary=ternary), normal(LENGTH, BATCH, D, seed=1)
    _, state = mixer(x, mixer.initial_state(x))
    if mixer.longest is None:
        before = [each.clone() for each in state]
        _, after = mixer(x[:7], state)
        _, stepped = mixer.step(x[7], after)
        assert all(map(torch.equal, before, state))
        state = (*state, *after, *stepped)
    for each in state:
        assert each.untyped_storage().nbytes() == each.numel() * each.element_size(), each.shape


@pytest.mark.parametrize("pattern", OTHERS)
def test_what_is_not_causal_has_no_step_and_predicts_no_token(pattern):
    mixer, x = built(pattern), normal(LENGTH, BATCH, D)
    with pytest.raises(ValueError, match="is not causal: it has no step"):
        mixer.step(x[0], ())
    with pytest.raises(ValueError, match="is not causal, so it cannot predict the next token"):
        LanguageModel(ModelConfig(d=D, layers=1, dff=16, mixer=pattern))


MACS = dict.fromkeys(NAMES, 4.0) | {
    "fnet": 0, "mlp_mixer": 0, "grumml": 2, "synthesizer_random": 2, "gmlp": 3, "reformer": 3,
    "synthesizer_dense": 3 + LENGTH / D, "lru": 5, "gru": 7}
"""Ternary MACs of a token as the docstrings have them, for one head, in units of d^2."""


@KINDS
@pytest.mark.parametrize("name", NAMES)
def test_costs_count_the_weights_once(name, ternary):
    mixer, other = (built(pattern_of(name), ternary=each) for each in (ternary, not ternary))
    for length in (1, LENGTH):
        assert mixer.macs(length) == (MACS[name] * D * D if ternary else 0)
        assert mixer.multiplies(length) >= mixer.products(length) >= 0
        assert (mixer.macs(length) + mixer.multiplies(length)
                == other.macs(length) + other.multiplies(length))


N = 1024


@pytest.mark.parametrize(("pattern", "products", "words"), [
    ("attention", 2 * N * D + 4 * D, 2 * N * D),
    ("local(block=32)", 2 * 64 * D + 2 * D + 64 * 2 * D, 2 * 32 * D),
    ("strided(stride=32)", 2 * (32 + 31) * D + 4 * D, 2 * N * D),
    ("bigbird", 2 * 6 * 16 * D + 4 * D, 2 * N * D), ("linformer", 4 * 64 * D + 4 * D, 0),
    ("reformer", (2 * 2 * 64 + 2 * 8 + 2) * D, 0), ("sinkhorn", (4 * 32 + 2 * 32 + 1 + 4) * D, 0),
    ("mlgru", 3 * D, D), ("mlgru(bounds=true)", 4 * D, D), ("grumml", 3 * D, D), ("gru", 3 * D, D),
    ("hgrn2(expand=4)", 3 * 4 * D, 4 * D), ("hgrn2(bound=0.5)", 3 * 16 * D + D, 16 * D),
    ("lru(state_dim=5)", (4 + 2) * 5, 2 * 5),
    ("synthesizer_dense(heads=2)", N * D, N * D), ("synthesizer_random(heads=2)", N * D, N * D),
    ("gmlp", (N + 1) * D, N * D), ("mlp_mixer(expansion=3)", 2 * 3 * N * D, 4 * N * D),
    ("fnet", 2 * D * (4 + 10), 0),
    ("linear(heads=2)", 2 * 8 * D + 2 * 8 + 4 * D, 8 * D + 2 * 8 + 1),
    ("linear(heads=2, rope=false)", 2 * 8 * D + 2 * 8, 8 * D + 2 * 8),
    ("performer(heads=2)", 2 * 16 * D + 2 * 16 + 4 * D + 2 * D * 17, 16 * D + 2 * 16 + 1),
])
def test_products_and_state_after_1024_tokens_are_those_of_the_docstrings(pattern, products, words):
    """By hand: of RoPE 4 d, two for every channel of a query and of a key."""
    assert (built(pattern).products(N), built(pattern).state_words(N)) == (products, words)


@pytest.mark.parametrize("name", [*NAMES, *CHANNEL_MIXERS.names()])
def test_the_seed_alone_says_how_a_mixer_starts(name):
    registry = TOKEN_MIXERS if name in NAMES else CHANNEL_MIXERS
    starts = []
    for elsewhere, seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(elsewhere)
        starts.append(registry.build(Choice(name), init(ternary=True, seed=seed)).state_dict())
    same, other = ([torch.equal(value, each[at]) for at, value in starts[0].items()]
                   for each in starts[1:])
    assert all(same)
    assert not all(other) or name == "fnet"


@pytest.mark.parametrize("pattern", MIXERS)
def test_a_block_learns_to_copy_the_token_before(pattern):
    """In float: the loss of predicting a neighbour falls below that of predicting the mean."""
    config = ModelConfig(d=D, layers=1, dff=DFF, weights="float")
    block = Block(config, parse_pattern(pattern)[0], Choice("glu"), init())
    optimizer = torch.optim.Adam(block.parameters(), lr=1e-2)
    x = normal(LENGTH, 4, D, seed=7).float()
    target = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    losses = []
    for _ in range(30):
        y, _ = block(x, block.mixer.initial_state(x))
        loss = (y - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.8 * losses[0]
    for name, parameter in block.named_parameters():
        assert bool(parameter.grad.any()), name


@pytest.mark.parametrize("pattern", [each for each in MIXERS if "length=" in each])
def test_a_sequence_beyond_a_fixed_length_is_refused(pattern):
    mixer, x = built(pattern), normal(LENGTH, BATCH, D, seed=8)
    assert mixer.longest == LENGTH
    message = f"at most {LENGTH} tokens, got {LENGTH + 1}: give it the option length={LENGTH + 1}"
    _, state = mixer(x, mixer.initial_state(x))
    one_more = x[:1] if mixer.causal else torch.cat([x, x[:1]])
    with pytest.raises(ValueError, match=message):
        mixer(one_more, state)


@pytest.mark.parametrize(("mixer", "channel"), [
    ("mlgru", "glu"), ("grumml", "glumml(activation=silu)"),
    ("attentionmml", "glumml(activation=silu)")])
def test_heads_are_no_matter_to_an_element_wise_recurrence(mixer, channel):
    """Published configurations name a number of heads."""
    tokens = torch.arange(24).reshape(2, 12)
    first, *others = [LanguageModel(ModelConfig(
        d=D, layers=2, dff=DFF, mixer=f"{mixer}(heads={heads})", channel=channel))(tokens)[0]
        for heads in (1, 2, 4)]
    assert all(torch.equal(first, other) for other in others)
    with pytest.raises(ValueError, match=r"d \(16\) must be a multiple of heads \(3\)"):
        built(f"{mixer}(heads=3)")


@pytest.mark.parametrize(("pattern", "message"), [
    ("attention(heads=3)", r"d \(16\) must be a multiple of heads \(3\)"),
    ("gqa(heads=4, groups=3)", r"heads \(4\) must be a multiple of groups \(3\)"),
    ("mqa(groups=2)", "has no option 'groups'"),
    ("window(size=0)", "size must be a whole number from 1, got 0"),
    ("sinks(size=0)", "size must be"), ("sinks(sinks=-1)", "sinks must be"),
    ("local(block=0)", "block must be a whole number from 1, got 0"),
    ("strided(stride=0)", "stride must be a whole number from 1, got 0"),
    ("bigbird(random=-1)", "random must be a whole number from 0, got -1"),
    ("linformer(length=32, k=64)", "k must be a whole number from 0 to 32, got 64"),
    ("reformer(buckets=5)", "buckets must be even, got 5"),
    ("reformer(rounds=0)", "rounds must be a whole number from 1, got 0"),
    ("sinkhorn(tau=0)", "tau must be above 0, got 0"),
    ("linear(causal=false, decay=1)", "decay is for causal attention"),
    ("linear(decay=-1)", "decay must be a whole number from 0, got -1"),
    ("performer(features=-1)", "features must be a whole number from 0, got -1"),
    ("synthesizer_random(length=16, rank=17)", "rank must be a whole number from 0 to 16, got 17"),
    ("gmlp(length=0)", "length must be a whole number from 1 to 65536, got 0"),
    ("hgrn2(expand=5)", r"d \(16\) must be a multiple of expand \(5\)"),
    ("hgrn2(expand=0)", "expand"),
    ("hgrn2(bound=1.0)", "bound must be at least 0 and below 1, got 1.0"),
    ("lru(r_min=0.9, r_max=0.5)", "0 <= r_min < r_max <= 1 must hold, got 0.9 and 0.5"),
    ("lru(r_max=1.5)", "r_max <= 1"), ("lru(r_min=-0.1)", "0 <= r_min"),
    ("lru(max_phase=0.0)", "max_phase must be above 0"), ("lru(state_dim=-1)", "state_dim"),
])
def test_options_that_make_no_sense_are_refused(pattern, message):
    with pytest.raises(ValueError, match=message):
        built(pattern)
