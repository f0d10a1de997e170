"""The contract of a token mixer, checked by running it: causality, pieces, steps and state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sterna.model.torch.mixers  # noqa: F401  (registers them)
from sterna.model.pattern import Choice
from sterna.model.torch.network.mixer import State, TokenMixer
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.registry import TOKEN_MIXERS

__all__ = ["ContractError", "check_choice", "check_contract", "shaken"]

_TIME, _BATCH = 24, 2


class ContractError(ValueError):
    """A mixer breaks its contract; the message has the expected and the actual value."""


def shaken(module: nn.Module, generator: torch.Generator, by: float = 0.3) -> nn.Module:
    """The module with every parameter perturbed, so that nothing keeps an initial zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by * torch.randn(
                parameter.shape, dtype=parameter.dtype, generator=generator))
    return module


def check_choice(choice: Choice, d: int) -> None:
    """:func:`check_contract` for a mixer of a pattern, newly made for ``d`` channels in float32; a
    :class:`ContractError` then names it. Projections are float: in the rounding of ternary ones, a
    last bit would decide between codes."""
    generator = torch.Generator().manual_seed(0)
    mixer = TOKEN_MIXERS.build(choice, MixerInit(d, 3 * d, False, generator)).eval()
    shaken(mixer, generator, 0.1)
    time = min(_TIME, mixer.longest or _TIME)
    try:
        check_contract(mixer, torch.randn(time, _BATCH, d, generator=generator), within=1e-3)
    except ContractError as error:
        raise ContractError(f"the mixer {choice} breaks the contract of mixers: {error}") from error


@torch.no_grad()
def check_contract(mixer: TokenMixer, x: Tensor, *, within: float = 1e-9) -> None:
    """Run a mixer over sequences ``x [time, batch, d]`` in every supported way; the first deviation
    from its contract raises :class:`ContractError`.

    A causal one must give the same outputs regardless of later tokens, wherever the sequence is
    cut, and token by token, and its state must have the size ``state_words``. ``within`` is the
    absolute or relative tolerance.
    """
    whole, last = mixer(x, mixer.initial_state(x))
    if whole.shape != x.shape:
        raise ContractError(f"expected an output {list(x.shape)}, got {list(whole.shape)}")
    if not mixer.causal:
        if last or mixer.state_words(len(x)):
            raise ContractError("it is not causal, so expected no state, got one")
        return

    def expect(got: Tensor, expected: Tensor, what: str) -> None:
        if not torch.allclose(got, expected, rtol=within, atol=within, equal_nan=True):
            off = (got - expected).abs().max().item()
            raise ContractError(f"{what}: outputs differ by up to {off:.2g}")

    time = len(x)
    for at in sorted({1, time // 3, time - 1} & set(range(1, time))):
        changed = torch.cat([x[:at], x[at:].roll(1, dims=-1) + 1])
        other, _ = mixer(changed, mixer.initial_state(x))
        expect(other[:at], whole[:at],
               f"it is said to be causal, and its first {at} outputs depend on later tokens")
        first, state = mixer(x[:at], mixer.initial_state(x))
        second, _ = mixer(x[at:], state)
        expect(torch.cat([first, second]), whole, f"read in two pieces, cut after token {at}")
    state = mixer.initial_state(x)
    _check_words(mixer, state, 0)
    for t in range(time):
        y, state = mixer.step(x[t], state)
        expect(y, whole[t], f"read token by token, at token {t + 1}")
        _check_words(mixer, state, t + 1)
    for got, expected in zip(state, last, strict=True):
        expect(got, expected, "the state after the last step")


def _check_words(mixer: TokenMixer, state: State, length: int) -> None:
    words = sum(each[0].numel() for each in state)
    if words != mixer.state_words(length):
        raise ContractError(f"state_words({length}) says {mixer.state_words(length)} numbers, and "
                            f"the state after {length} tokens has {words}")
