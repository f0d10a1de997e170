"""Requests to a core: the same for the oracles, the cycle model and every simulator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sterna.model.checks import whole_number
from sterna.model.quantized.sampling import Sampler

__all__ = ["LIMIT_BITS", "Request"]

LIMIT_BITS = 16
"""Bits of the requested number of tokens."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt for one sequence, and how to continue it.

    A core begins with a request when its sequence is idle.

    >>> Request((5, 6, 7), tokens=20).predictions
    (False, False, True)
    """

    prompt: tuple[int, ...]  # tokens, at least one
    tokens: int = 0  # tokens to generate after each token with `predict`; 0 requests logits only
    # As for :class:`~sterna.model.quantized.sampling.Sampler`. The seed applies with `start`.
    temperature: float = 0.0
    seed: int = 1
    # whether the prompt begins a sequence; if not, it continues the last one
    start: bool = True
    # for each token of the prompt, whether logits are requested; None requests those after the
    # last token only
    predict: tuple[bool, ...] | None = None
    stop_token: int | None = None  # token after which a generation ends early; None for none

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, Iterable):
            raise ValueError(f"a prompt must be a row of tokens, got {self.prompt!r}")
        prompt = tuple(whole_number("a token of the prompt", token, 0) for token in self.prompt)
        if not prompt:
            raise ValueError("a prompt must have at least one token, got an empty one")
        object.__setattr__(self, "prompt", prompt)
        tokens = whole_number("tokens", self.tokens, 0, (1 << LIMIT_BITS) - 1)
        object.__setattr__(self, "tokens", tokens)
        Sampler(temperature=self.temperature, seed=self.seed)
        if self.predict is not None:
            object.__setattr__(self, "predict", _booleans(self.predict, len(prompt)))
        if self.stop_token is not None:
            stop_token = whole_number("stop_token", self.stop_token, 0)
            object.__setattr__(self, "stop_token", stop_token)

    @property
    def predictions(self) -> tuple[bool, ...]:
        """``predict``, written out."""
        return tuple(map(self.predicts_after, range(len(self.prompt))))

    def predicts_after(self, position: int) -> bool:
        """Whether logits are requested after a token of the prompt."""
        if self.predict is not None:
            return self.predict[position]
        return position == len(self.prompt) - 1

    @property
    def beta(self) -> int:
        """Inverse temperature in the core's format; 0 is greedy."""
        return Sampler(temperature=self.temperature).beta

    def check_vocab(self, vocab: int) -> None:
        """Raise ValueError if a token is not in the vocabulary."""
        stop = () if self.stop_token is None else (self.stop_token,)
        for token in (*self.prompt, *stop):
            if token >= vocab:
                raise ValueError(f"a request has token {token}, the model knows 0 to {vocab - 1}")


def _booleans(predict: object, count: int) -> tuple[bool, ...]:
    """``predict`` as a tuple, checked: one boolean for each token of the prompt."""
    rule = "predict must have one boolean per token of the prompt"
    if not isinstance(predict, Iterable):
        raise ValueError(f"{rule}, got {predict!r}")
    entries = tuple(predict)
    if len(entries) != count:
        raise ValueError(f"{rule}, got {len(entries)} for {count}")
    for entry in entries:
        if entry not in (False, True):
            raise ValueError(f"{rule}, got {entry!r}")
    return tuple(map(bool, entries))
