"""What a core is asked to do, and what the integer reference answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sterna.model.integer import IntegerModel
from sterna.model.quantized import QuantizedModel
from sterna.model.sampling import Sampler

__all__ = ["Answer", "Request", "answer", "answer_all"]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt for one sequence of a core, and how to go on from it.

    Parameters
    ----------
    prompt
        Tokens, at least one.
    tokens
        Tokens to generate after the prompt; 0 asks for logits only.
    temperature, seed
        As for :class:`~sterna.model.sampling.Sampler`. The seed counts with ``start``.
    start
        Whether the prompt begins a sequence; if not, it goes on where the last one ended.
    every
        Ask for the logits after every token of the prompt, not after the last one alone;
        with ``tokens=0``.
    stop
        Token after which generation ends early; None for none.

    Raises
    ------
    ValueError
        If the prompt is empty, or ``every`` goes with tokens to generate.
    """

    prompt: tuple[int, ...]
    tokens: int = 0
    temperature: float = 0.0
    seed: int = 1
    start: bool = True
    every: bool = False
    stop: int | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("a prompt must have at least one token")
        if not 0 <= self.tokens < 1 << 16:
            raise ValueError(f"tokens must be from 0 to {(1 << 16) - 1}, got {self.tokens}")
        if self.every and self.tokens:
            raise ValueError(
                f"logits after every token of the prompt go with tokens=0, got {self.tokens}")

    @property
    def predict(self) -> tuple[bool, ...]:
        """For each token of the prompt, whether logits are asked for."""
        return (self.every,) * (len(self.prompt) - 1) + (True,)

    @property
    def beta(self) -> int:
        """The temperature as the gateware takes it."""
        return Sampler(temperature=self.temperature).beta


@dataclass(slots=True)
class Answer:
    """What follows from a request.

    Parameters
    ----------
    request
        The request.
    run
        Tokens that the model ran: the prompt, and all generated tokens but the last.
    predict
        For each of them, whether the head ran.
    generated
        Tokens generated.
    logits
        Logits of every prediction, int64 ``[predictions, vocab]``.
    state
        State at the end, int64 ``[layers, d]``.
    """

    request: Request
    run: list[int] = field(default_factory=list)
    predict: list[bool] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    state: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def answer(model: QuantizedModel, requests: Sequence[Request]) -> list[Answer]:
    """Answer the requests of one sequence, one after the other.

    Raises
    ------
    ValueError
        If a token is outside the vocabulary, or a temperature or seed out of range.
    """
    reference = IntegerModel(model)
    frac = model.profile.logit.frac
    state = reference.start()
    generator = 1
    answers = []
    for request in requests:
        sampler = Sampler(
            temperature=request.temperature, logit_frac=frac,
            seed=request.seed if request.start else generator)
        if request.start:
            state = reference.start()
        result = Answer(request)

        def step(token: int, predict: bool, result: Answer = result) -> None:
            nonlocal state
            logits, state = reference.step(np.array([token]), state)
            result.run.append(token)
            result.predict.append(predict)
            if predict:
                result.logits.append(logits[0])

        for token, predict in zip(request.prompt, request.predict, strict=True):
            step(token, predict)
        while len(result.generated) < request.tokens:
            chosen = sampler(result.logits[-1])
            result.generated.append(chosen)
            if chosen == request.stop:
                break
            if len(result.generated) < request.tokens:
                step(chosen, True)
        result.state = state[:, 0]
        generator = sampler.state
        answers.append(result)
    return answers


def answer_all(
    model: QuantizedModel, requests: Sequence[Sequence[Request]],
) -> list[list[Answer]]:
    """Answer the requests of every sequence."""
    return [answer(model, each) for each in requests]
