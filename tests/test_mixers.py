"""What every mixer must do, whatever it computes: over all that are registered."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import sterna.model.mixers  # noqa: F401  (registers them)
from sterna.model.config import ModelConfig
from sterna.model.network.mixer import State, TokenMixer
from sterna.model.network.projection import MixerInit
from sterna.model.network.registry import CHANNEL_MIXERS, TOKEN_MIXERS
from sterna.model.pattern import Choice
from sterna.model.stack.block import Block
from sterna.model.stack.language_model import LanguageModel

D, LENGTH = 16, 24
SMALL = {"size": 5, "sinks": 2, "block": 4, "stride": 4, "length": LENGTH, "k": 6, "bucket": 6}
"""Options under which a mixer's limits come into play within the sequences tested here."""


def names(*, causal: bool) -> list[str]:
    return [name for name in TOKEN_MIXERS.names()
            if not name.startswith("shift") and built(name).causal == causal]


def built(name: str, *, ternary: bool = True, seed: int = 0) -> TokenMixer:
    """A small mixer in float64, every parameter drawn so that nothing starts at zero."""
    options = tuple((option, SMALL[option]) for option in TOKEN_MIXERS.options(name)
                    if option in SMALL)
    generator = torch.Generator().manual_seed(seed)
    mixer = TOKEN_MIXERS.build(
        Choice(name, options), MixerInit(D, ternary=ternary, generator=generator)).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn(
                parameter.shape, dtype=torch.float64, generator=generator))
    return mixer


def inputs(seed: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(LENGTH, batch, D, dtype=torch.float64, generator=generator)


def words(state: State) -> int:
    """Numbers held for one sequence."""
    return sum(each[0].numel() for each in state)


CAUSAL, OTHERS = names(causal=True), names(causal=False)
KINDS = pytest.mark.parametrize("ternary", [True, False], ids=["ternary", "float"])


@KINDS
@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_a_sequence_may_be_cut_anywhere_and_read_token_by_token(
        name: str, ternary: bool) -> None:
    mixer, x = built(name, ternary=ternary), inputs(1)
    whole, last = mixer(x, mixer.initial_state(x))
    assert whole.shape == x.shape
    for cut in (1, 7, LENGTH - 1):
        first, state = mixer(x[:cut], mixer.initial_state(x))
        second, state = mixer(x[cut:], state)
        torch.testing.assert_close(torch.cat([first, second]), whole, rtol=1e-9, atol=1e-9)
    state = mixer.initial_state(x)
    assert words(state) == mixer.state_words(0)
    for t in range(LENGTH):
        y, state = mixer.step(x[t], state)
        torch.testing.assert_close(y, whole[t], rtol=1e-9, atol=1e-9)
        assert words(state) == mixer.state_words(t + 1), f"after {t + 1} tokens"
        assert all(each.shape[0] == x.shape[1] for each in state)
    for got, expected in zip(state, last, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@KINDS
@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_a_state_has_memory_of_its_own_and_is_not_written_to(name: str, ternary: bool) -> None:
    """A slice of a sequence would hold all of it, in memory and in a checkpoint."""
    mixer, x = built(name, ternary=ternary), inputs(1)
    _, state = mixer(x, mixer.initial_state(x))
    if mixer.longest is None:
        before = [each.clone() for each in state]
        _, after = mixer(x[:7], state)
        _, stepped = mixer.step(x[7], after)
        assert all(map(torch.equal, before, state))
        state = (*state, *after, *stepped)
    for each in state:
        assert each.untyped_storage().nbytes() == each.numel() * each.element_size(), each.shape


@pytest.mark.parametrize("name", CAUSAL)
def test_no_output_depends_on_a_later_token(name: str) -> None:
    mixer, x = built(name), inputs(2, batch=1)
    whole, _ = mixer(x, mixer.initial_state(x))
    changed = x.clone()
    changed[LENGTH // 2:] = inputs(3, batch=1)[LENGTH // 2:]
    other, _ = mixer(changed, mixer.initial_state(x))
    assert torch.equal(whole[:LENGTH // 2], other[:LENGTH // 2])
    assert not torch.allclose(whole[-1], other[-1])
    for at in (0, LENGTH // 2):
        leaf = x.clone().requires_grad_()
        y, _ = mixer(leaf, mixer.initial_state(leaf))
        (gradient,) = torch.autograd.grad(y[at].square().sum(), leaf)
        assert not bool(gradient[at + 1:].any())
    assert bool(gradient[:at + 1].any())


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_causal_says_so_and_looks_ahead(name: str) -> None:
    mixer, x = built(name), inputs(2)
    assert mixer.initial_state(x) == ()
    assert mixer.state_words(LENGTH) == 0
    leaf = x.clone().requires_grad_()
    y, state = mixer(leaf, ())
    assert state == ()
    (gradient,) = torch.autograd.grad(y[0].square().sum(), leaf)
    assert bool(gradient[1:].any())
    with pytest.raises(ValueError, match="is not causal: it has no step"):
        mixer.step(x[0], ())
    with pytest.raises(ValueError, match="is not causal, so it cannot predict the next token"):
        LanguageModel(ModelConfig(d=D, layers=1, dff=16, mixer=name))


@pytest.mark.parametrize("name", [*CAUSAL, *OTHERS])
def test_sequences_of_a_batch_do_not_meet(name: str) -> None:
    mixer, x = built(name), inputs(4, batch=3)
    with torch.no_grad():
        whole, _ = mixer(x, mixer.initial_state(x))
        for index in range(3):
            one = x[:, index:index + 1].contiguous()
            alone, _ = mixer(one, mixer.initial_state(one))
            torch.testing.assert_close(alone, whole[:, index:index + 1], rtol=1e-9, atol=1e-9)


MACS = dict.fromkeys(names(causal=True) + names(causal=False), 4.0) | {
    "fnet": 0, "mlp_mixer": 0, "grumml": 2, "synthesizer_random": 2, "gmlp": 3, "reformer": 3,
    "synthesizer_dense": 3 + LENGTH / D, "lru": 5, "gru": 7}
"""Ternary MACs of a token as the docstrings have them, for one head, in units of d^2."""


@KINDS
@pytest.mark.parametrize("name", [*CAUSAL, *OTHERS])
def test_costs_count_the_weights_once(name: str, ternary: bool) -> None:
    mixer, other = built(name, ternary=ternary), built(name, ternary=not ternary)
    for length in (1, LENGTH):
        assert mixer.macs(length) == (MACS[name] * D * D if ternary else 0)
        assert mixer.multiplies(length) >= mixer.products(length) >= 0
        assert (mixer.macs(length) + mixer.multiplies(length)
                == other.macs(length) + other.multiplies(length))


@pytest.mark.parametrize("name", [*CAUSAL, *OTHERS, *CHANNEL_MIXERS.names()])
def test_the_seed_alone_says_how_a_mixer_starts(name: str) -> None:
    registry = TOKEN_MIXERS if name in TOKEN_MIXERS.names() else CHANNEL_MIXERS
    starts = []
    for elsewhere, seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(elsewhere)
        init = MixerInit(D, 24, generator=torch.Generator().manual_seed(seed))
        starts.append(registry.build(Choice(name), init).state_dict())
    same, other = ([torch.equal(value, each[at]) for at, value in starts[0].items()]
                   for each in starts[1:])
    assert all(same)
    assert not all(other) or name == "fnet"


@KINDS
@pytest.mark.parametrize("name", [*CAUSAL, *OTHERS])
def test_every_parameter_gets_a_gradient(name: str, ternary: bool) -> None:
    mixer, x = built(name, ternary=ternary), inputs(5)
    x.requires_grad_()      # FNet has no parameter
    y, _ = mixer(x, mixer.initial_state(x))
    (y * inputs(6)).sum().backward()
    for at, parameter in mixer.named_parameters():
        assert parameter.grad is not None, at
        assert bool(parameter.grad.any()), at


@pytest.mark.parametrize("name", [*CAUSAL, *OTHERS])
def test_a_block_learns_to_copy_the_token_before(name: str) -> None:
    """In float: the loss of predicting a neighbour falls below that of predicting the mean."""
    config = ModelConfig(d=D, layers=1, dff=24, weights="float")
    generator = torch.Generator().manual_seed(1)
    options = tuple((option, SMALL[option]) for option in TOKEN_MIXERS.options(name)
                    if option in SMALL)
    block = Block(config, Choice(name, options), Choice("glu"),
                  MixerInit(D, 24, ternary=False, generator=generator))
    optimizer = torch.optim.Adam(block.parameters(), lr=1e-2)
    x = inputs(7, batch=4).float()
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


FIXED = [name for name in [*CAUSAL, *OTHERS] if "length" in TOKEN_MIXERS.options(name)]


@pytest.mark.parametrize("name", FIXED)
def test_a_sequence_beyond_a_fixed_length_is_refused(name: str) -> None:
    mixer, x = built(name), inputs(8)
    assert mixer.longest == LENGTH
    message = f"at most {LENGTH} tokens, got {LENGTH + 1}: give it the option length={LENGTH + 1}"
    y, state = mixer(x, mixer.initial_state(x))
    assert y.shape == x.shape
    one_more = x[:1] if mixer.causal else torch.cat([x, x[:1]])
    with pytest.raises(ValueError, match=message):
        mixer(one_more, state)


@pytest.mark.parametrize("name", CHANNEL_MIXERS.names())
@KINDS
def test_channel_mixers_take_every_token_by_itself(name: str, ternary: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    mixer = CHANNEL_MIXERS.build(Choice(name), MixerInit(D, 24, ternary, generator)).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn(
                parameter.shape, dtype=torch.float64, generator=generator))
    x = inputs(9).requires_grad_()
    y = mixer(x)
    assert y.shape == x.shape
    torch.testing.assert_close(mixer(x[3, 1]), y[3, 1], rtol=1e-9, atol=1e-9)
    (gradient,) = torch.autograd.grad(y[3, 1].sum(), x)
    assert bool(gradient[3, 1].any())
    gradient[3, 1] = 0
    assert not bool(gradient.any())


@pytest.mark.parametrize("norm", ["pre", "post"])
@KINDS
def test_a_language_model_of_any_blocks_reads_token_by_token(norm: str, ternary: bool) -> None:
    config = ModelConfig(d=D, layers=3, dff=24, vocab=20, mixer="2*mlgru + attention", norm=norm,
                         weights="ternary" if ternary else "float")
    model = LanguageModel(config, seed=3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(
                parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
        tokens = torch.arange(18).reshape(2, 9) % 20
        whole, last = model(tokens)
        state = model.initial_state(2)
        for t in range(9):
            logits, state = model.step(tokens[:, t], state)
            torch.testing.assert_close(logits, whole[:, t], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(state, last, rtol=1e-8, atol=1e-8)
    assert not model.state_is_bounded
    assert LanguageModel(ModelConfig(d=D, layers=1, dff=24, norm=norm)).state_is_bounded


def test_heads_are_no_matter_to_the_mlgru() -> None:
    """Published configurations name a number of heads; the recurrence is element by element."""
    models = [LanguageModel(ModelConfig(d=D, layers=2, dff=24, mixer=f"mlgru(heads={heads})"))
              for heads in (1, 2, 4)]
    tokens = torch.arange(24).reshape(2, 12)
    first, *others = [model(tokens)[0] for model in models]
    assert all(torch.equal(first, other) for other in others)
