"""Reversible blocks: inputs found again, the gradients of plain autograd, and its memory saved."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator

import pytest
import torch
from mixer_parts import normal
from torch import Tensor

from sterna.model.config import ModelConfig
from sterna.model.torch.network.mixer import State
from sterna.model.torch.stack.block import run_reversible
from sterna.model.torch.stack.language_model import LanguageModel, ModelState

MIXERS = "mlgru + attention + local(block=3) + reformer(bucket=2, buckets=4, causal=true)"
"""States that stay, that grow, that are forgotten, and one with whole numbers in it."""
T, BATCH = 7, 2


def lively(layers: int = 4, mixer: str = MIXERS, weights: str = "ternary") -> LanguageModel:
    """A model in float64 of parameters that are all drawn anew, so that none is zero."""
    model = LanguageModel(ModelConfig(
        d=16, layers=layers, dff=24, vocab=20, mixer=mixer, weights=weights,
        residual="reversible"), seed=1).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(0.3 * normal(*parameter.shape, seed=number))
    return model


def tokens(seed: int, length: int = T) -> Tensor:
    return torch.randint(0, 20, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def naive_run(
    model: LanguageModel, x: Tensor, states: ModelState,
) -> tuple[Tensor, tuple[State, ...]]:
    """The equations, with everything kept for the way back."""
    x1, x2, after = x, x, []
    for block, before in zip(model.blocks(), states, strict=True):
        mixed, state = block.mixer(block.norms[0](x2), before)
        x1 = x1 + mixed
        x2 = x2 + block.channel(block.norms[1](x1))
        after.append(state)
    return (x1 + x2) / 2, tuple(after)


def warm_states(model: LanguageModel) -> tuple[State, ...]:
    """States after a few tokens, leaves that want a gradient where they can have one."""
    with torch.no_grad():
        _, states = model(tokens(3))
    return tuple(tuple(
        each.clone().requires_grad_() if each.is_floating_point() else each for each in state)
        for state in states)


def flat(states: tuple[State, ...]) -> list[Tensor]:
    return [each for each in itertools.chain(*states) if each.is_floating_point()]


def both(
    model: LanguageModel, x: Tensor, states: ModelState,
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Output and states after, by blocks that are run back and with everything kept."""
    for function in (lambda: run_reversible(model.blocks(), x, states),
                     lambda: naive_run(model, x, states)):
        y, after = function()
        yield y, flat(after)


@pytest.mark.parametrize("weights", ["ternary", "float"])
def test_gradients_are_those_of_plain_autograd(weights: str) -> None:
    """To the input, every parameter and every state that came in, from outputs and states."""
    model = lively(weights=weights)
    x, states = normal(T, BATCH, 16, seed=4).requires_grad_(), warm_states(model)
    inputs = [x, *flat(states), *itertools.chain(*(b.parameters() for b in model.blocks()))]
    results = []
    for y, after in both(model, x, states):
        held = [each.untyped_storage().nbytes() / each.nbytes for each in after]
        loss = sum((each * normal(*each.shape, seed=5)).sum() for each in (y, *after))
        results.append([y, *after, *torch.autograd.grad(loss, inputs)])
        if len(results) == 1:      # a state that is a slice does not hold the sequence
            assert held == [1] * len(held)
    assert len(results[0]) > 40
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("part", ["outputs", "states"])
def test_a_loss_may_use_outputs_or_states_alone_and_parameters_may_be_frozen(part: str) -> None:
    model = lively()
    frozen = [parameter for name, parameter in model.layers.named_parameters() if ".v." in name]
    assert frozen
    for parameter in frozen:
        parameter.requires_grad_(False)
    trained = [p for block in model.blocks() for p in block.parameters() if p.requires_grad]
    results = []
    for y, after in both(model, normal(T, BATCH, 16, seed=6), model.initial_state(BATCH)):
        loss = sum(each.square().sum() for each in ([y] if part == "outputs" else after))
        results.append(torch.autograd.grad(
            loss, trained, allow_unused=True, materialize_grads=True))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


def most_saved(model: LanguageModel) -> int:
    """The most numbers that autograd holds at a time, forth and back, parameters aside."""
    held, most = 0, 0
    parameters = {each.data_ptr() for each in model.parameters()}

    class Packed:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal held, most
            self.tensor = tensor
            size = 0 if tensor.data_ptr() in parameters else tensor.numel()
            held += size
            most = max(most, held)
            weakref.finalize(self, self.release, size)

        @staticmethod
        def release(size: int) -> None:
            nonlocal held
            held -= size

    with torch.autograd.graph.saved_tensors_hooks(Packed, lambda packed: packed.tensor):
        logits, _ = model(tokens(8, 24))
        logits.square().sum().backward()
    del logits
    assert held == 0
    return most


@pytest.mark.parametrize("mixer", ["mlgru", "attention"])
def test_what_is_kept_for_the_way_back_does_not_grow_with_depth(mixer: str) -> None:
    def plain(model: LanguageModel) -> LanguageModel:
        config = {**model.config.to_json(), "residual": "plain"}
        return LanguageModel(ModelConfig(**config)).double()

    models = {layers: lively(layers, mixer) for layers in (1, 2, 6)}
    kept = {layers: most_saved(model) for layers, model in models.items()}
    state = BATCH * models[1].blocks()[0].mixer.state_words(0)
    assert kept[2] - kept[1] == state       # the states that went in, and nothing else
    assert kept[6] - kept[2] == 4 * state
    stream = 24 * BATCH * 16
    growth = most_saved(plain(models[6])) - most_saved(plain(models[2]))
    assert growth > 4 * 10 * stream


@torch.no_grad()
def test_a_reversible_model_reads_token_by_token_and_in_pieces() -> None:
    model = lively()
    text = tokens(9, 11)
    whole, last = model(text)
    first, state = model(text[:, :4])
    second, state = model(text[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-9, atol=1e-9)
    state = model.initial_state(BATCH)
    for t in range(11):
        logits, state = model.step(text[:, t], state)
        torch.testing.assert_close(logits, whole[:, t], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state, last, rtol=1e-9, atol=1e-9)
    with torch.enable_grad():
        torch.testing.assert_close(model(text)[0], whole, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_both_halves_begin_as_the_embedding_and_end_as_their_mean() -> None:
    model = lively(weights="float")
    embedded = model.embedding(tokens(10).t())
    y, _ = naive_run(model, embedded, model.initial_state(BATCH))
    expected = model.head(model.norm(y)).transpose(0, 1)
    torch.testing.assert_close(model(tokens(10))[0], expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_the_stream_of_reversible_blocks_is_not_limited() -> None:
    model = lively(mixer="mlgru")
    x = torch.full((1, BATCH, 16), 40.0, dtype=torch.float64)
    y, _ = run_reversible(model.blocks(), x, model.initial_state(BATCH))
    assert y.abs().max() > 20
    limited, _ = model.blocks()[0](x, model.initial_state(BATCH)[0])
    assert limited.abs().max() <= 16


def test_the_residual_is_a_field_of_the_shape_and_leaves_the_integer_form() -> None:
    plain, reversible = (ModelConfig(d=16, layers=1, dff=16, residual=each)
                         for each in ("plain", "reversible"))
    assert "residual" not in plain.to_json()
    assert ModelConfig(**reversible.to_json()) == reversible
    assert plain.has_integer_form
    assert not reversible.has_integer_form
    with pytest.raises(ValueError, match="residual must be plain or reversible, got 'both'"):
        ModelConfig(d=16, layers=1, dff=16, residual="both")
    with pytest.raises(ValueError, match="residual reversible needs norm pre, got norm post"):
        ModelConfig(d=16, layers=1, dff=16, residual="reversible", norm="post")
