"""What every mixer must do, whatever it computes: over all that are registered."""

from __future__ import annotations

import math

import pytest
import torch
from mixer_parts import DFF, LENGTH, D, built, init, normal, pattern_of, run

from sterna.model.config import ModelConfig
from sterna.model.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS
from sterna.model.pattern import Choice, parse_pattern
from sterna.model.stack.block import Block
from sterna.model.stack.language_model import LanguageModel
from sterna.model.study.contract import check_contract, shaken

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
    "grumml(fully_mml=true)",
    *(pattern_of(name, causal="false") for name in NAMES if "causal" in TOKEN_MIXERS.options(name)),
]
"""Options that lead to other code, beside the small ones of every name."""
KINDS = pytest.mark.parametrize("ternary", [True, False], ids=["ternary", "float"])


@KINDS
@pytest.mark.parametrize("pattern", [*MIXERS, *FURTHER])
def test_a_mixer_keeps_the_contract(pattern: str, ternary: bool) -> None:
    """Causality, cutting, steps, words of state."""
    check_contract(built(pattern, ternary=ternary), normal(LENGTH, BATCH, D, seed=1))


@KINDS
@pytest.mark.parametrize("pattern", CAUSAL)
@torch.no_grad()
def test_a_state_has_memory_of_its_own_and_is_not_written_to(pattern: str, ternary: bool) -> None:
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


@pytest.mark.parametrize("pattern", MIXERS)
def test_outputs_depend_on_the_tokens_they_may_see(pattern: str) -> None:
    mixer, x = built(pattern), normal(LENGTH, BATCH, D, seed=2).requires_grad_()
    y = run(mixer, x)
    for at in (0, LENGTH // 2):
        (gradient,) = torch.autograd.grad(y[at].square().sum(), x, retain_graph=True)
        assert bool(gradient[at + 1:].any()) != mixer.causal
    assert bool(gradient[:at + 1].any())


@pytest.mark.parametrize("pattern", OTHERS)
def test_what_is_not_causal_has_no_step_and_predicts_no_token(pattern: str) -> None:
    mixer, x = built(pattern), normal(LENGTH, BATCH, D)
    with pytest.raises(ValueError, match="is not causal: it has no step"):
        mixer.step(x[0], ())
    with pytest.raises(ValueError, match="is not causal, so it cannot predict the next token"):
        LanguageModel(ModelConfig(d=D, layers=1, dff=16, mixer=pattern))


@pytest.mark.parametrize("pattern", MIXERS)
@torch.no_grad()
def test_sequences_of_a_batch_do_not_meet(pattern: str) -> None:
    mixer, x = built(pattern), normal(LENGTH, 3, D, seed=4)
    whole = run(mixer, x)
    for index in range(3):
        one = slice(index, index + 1)
        torch.testing.assert_close(
            run(mixer, x[:, one].contiguous()), whole[:, one], rtol=1e-9, atol=1e-9)


MACS = dict.fromkeys(NAMES, 4.0) | {
    "fnet": 0, "mlp_mixer": 0, "grumml": 2, "synthesizer_random": 2, "gmlp": 3, "reformer": 3,
    "synthesizer_dense": 3 + LENGTH / D, "lru": 5, "gru": 7}
"""Ternary MACs of a token as the docstrings have them, for one head, in units of d^2."""


@KINDS
@pytest.mark.parametrize("name", NAMES)
def test_costs_count_the_weights_once(name: str, ternary: bool) -> None:
    mixer, other = (built(pattern_of(name), ternary=each) for each in (ternary, not ternary))
    for length in (1, LENGTH):
        assert mixer.macs(length) == (MACS[name] * D * D if ternary else 0)
        assert mixer.multiplies(length) >= mixer.products(length) >= 0
        assert (mixer.macs(length) + mixer.multiplies(length)
                == other.macs(length) + other.multiplies(length))


@pytest.mark.parametrize("name", [*NAMES, *CHANNEL_MIXERS.names()])
def test_the_seed_alone_says_how_a_mixer_starts(name: str) -> None:
    registry = TOKEN_MIXERS if name in NAMES else CHANNEL_MIXERS
    starts = []
    for elsewhere, seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(elsewhere)
        starts.append(registry.build(Choice(name), init(ternary=True, seed=seed)).state_dict())
    same, other = ([torch.equal(value, each[at]) for at, value in starts[0].items()]
                   for each in starts[1:])
    assert all(same)
    assert not all(other) or name == "fnet"


@KINDS
@pytest.mark.parametrize("pattern", MIXERS)
def test_every_parameter_gets_a_gradient(pattern: str, ternary: bool) -> None:
    mixer, x = built(pattern, ternary=ternary), normal(LENGTH, BATCH, D, seed=5)
    x.requires_grad_()      # FNet has no parameter
    (run(mixer, x) * normal(LENGTH, BATCH, D, seed=6)).sum().backward()
    for at, parameter in mixer.named_parameters():
        assert parameter.grad is not None, at
        assert bool(parameter.grad.any()), at


@pytest.mark.parametrize("pattern", MIXERS)
def test_a_block_learns_to_copy_the_token_before(pattern: str) -> None:
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


@pytest.mark.parametrize("pattern", [each for each in MIXERS if "length=" in each])
def test_a_sequence_beyond_a_fixed_length_is_refused(pattern: str) -> None:
    mixer, x = built(pattern), normal(LENGTH, BATCH, D, seed=8)
    assert mixer.longest == LENGTH
    message = f"at most {LENGTH} tokens, got {LENGTH + 1}: give it the option length={LENGTH + 1}"
    _, state = mixer(x, mixer.initial_state(x))
    one_more = x[:1] if mixer.causal else torch.cat([x, x[:1]])
    with pytest.raises(ValueError, match=message):
        mixer(one_more, state)


@pytest.mark.parametrize("name", CHANNEL_MIXERS.names())
@KINDS
def test_channel_mixers_take_every_token_by_itself(name: str, ternary: bool) -> None:
    mixer = CHANNEL_MIXERS.build(Choice(name), init(ternary=ternary)).double()
    shaken(mixer, torch.Generator().manual_seed(3))
    x = normal(LENGTH, BATCH, D, seed=9).requires_grad_()
    y = mixer(x)
    assert y.shape == x.shape
    torch.testing.assert_close(mixer(x[3, 1]), y[3, 1], rtol=1e-9, atol=1e-9)
    (gradient,) = torch.autograd.grad(y[3, 1].sum(), x)
    assert bool(gradient[3, 1].any())
    gradient[3, 1] = 0
    assert not bool(gradient.any())


@pytest.mark.parametrize("norm", ["pre", "post"])
@KINDS
@torch.no_grad()
def test_a_language_model_of_any_blocks_reads_token_by_token(norm: str, ternary: bool) -> None:
    config = ModelConfig(d=D, layers=3, dff=DFF, vocab=20, mixer="2*mlgru + attention", norm=norm,
                         weights="ternary" if ternary else "float")
    model = LanguageModel(config, seed=3).double()
    shaken(model, torch.Generator().manual_seed(1))
    tokens = torch.arange(18).reshape(2, 9) % 20
    whole, last = model(tokens)
    state = model.initial_state(2)
    for t in range(9):
        logits, state = model.step(tokens[:, t], state)
        torch.testing.assert_close(logits, whole[:, t], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(state, last, rtol=1e-8, atol=1e-8)
    assert not model.state_is_bounded
    assert LanguageModel(ModelConfig(d=D, layers=1, dff=DFF, norm=norm)).state_is_bounded


@pytest.mark.parametrize(("mixer", "channel"), [
    ("mlgru", "glu"), ("grumml", "glumml(activation=silu)"),
    ("attentionmml", "glumml(activation=silu)")])
def test_heads_are_no_matter_to_an_element_wise_recurrence(mixer: str, channel: str) -> None:
    """Published configurations name a number of heads."""
    tokens = torch.arange(24).reshape(2, 12)
    first, *others = [LanguageModel(ModelConfig(
        d=D, layers=2, dff=DFF, mixer=f"{mixer}(heads={heads})", channel=channel))(tokens)[0]
        for heads in (1, 2, 4)]
    assert all(torch.equal(first, other) for other in others)
    with pytest.raises(ValueError, match=r"d \(16\) must be a multiple of heads \(3\)"):
        built(f"{mixer}(heads=3)")
