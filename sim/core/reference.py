"""What a core is asked to do, and what a model that is an oracle answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sterna.model.quantized.compare import Comparison, Difference, compare
from sterna.model.quantized.sampling import Sampler
from sterna.sim.core.request import CoreJob

__all__ = ["Answer", "Request", "Stepper", "answer", "compare_logits", "compare_tokens"]


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
        As for :class:`~sterna.model.quantized.sampling.Sampler`. The seed counts with ``start``.
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
    def job(self) -> CoreJob:
        """The request as a core takes it."""
        return CoreJob(
            self.prompt, self.tokens, self.start, self.predict, self.stop,
            Sampler(temperature=self.temperature).beta, self.seed)


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


class Stepper(Protocol):
    """A model that runs token by token: the integer reference, or an ONNX graph."""

    def start(self, batch: int = 1) -> Any:
        """The state at the start of a sequence."""

    def step(self, tokens: Any, state: Any) -> tuple[Any, Any]:
        """Advance by a token; return logits and state."""


def answer(stepper: Stepper, requests: Sequence[Request], logit_frac: int = 8) -> list[Answer]:
    """Answer the requests of one sequence, one after the other.

    Parameters
    ----------
    stepper
        The model that answers.
    requests
        What is asked.
    logit_frac
        Fraction bits of its logits.

    Raises
    ------
    ValueError
        If a token is outside the vocabulary, or a temperature or seed out of range.
    """
    state = stepper.start(1)
    generator = 1
    answers = []
    for request in requests:
        sampler = Sampler(
            temperature=request.temperature, logit_frac=logit_frac,
            seed=request.seed if request.start else generator)
        if request.start:
            state = stepper.start(1)
        result = Answer(request)

        def step(token: int, predict: bool, result: Answer = result) -> None:
            nonlocal state
            logits, state = stepper.step(np.array([token]), state)
            result.run.append(token)
            result.predict.append(predict)
            if predict:
                result.logits.append(np.asarray(logits[0], dtype=np.int64))

        for token, predict in zip(request.prompt, request.predict, strict=True):
            step(token, predict)
        while len(result.generated) < request.tokens:
            chosen = sampler(result.logits[-1])
            result.generated.append(chosen)
            if chosen == request.stop:
                break
            if len(result.generated) < request.tokens:
                step(chosen, True)
        result.state = np.asarray(state[:, 0], dtype=np.int64)
        generator = sampler.state
        answers.append(result)
    return answers


def compare_tokens(answer: Answer, got: Sequence[int]) -> Comparison:
    """Compare generated tokens with those of an answer; they follow its prompt."""
    expected, first = answer.generated, len(answer.request.prompt)
    if len(expected) != len(got):
        at = first + min(len(expected), len(got))
        return Comparison(len(expected), 1, Difference(
            at, None, "number of tokens", (0,), len(expected), len(got)))
    if not expected:
        return Comparison()
    return compare(
        "tokens", np.array(expected)[:, None], np.array(got)[:, None], first_token=first)


def compare_logits(answer: Answer, got: np.ndarray) -> Comparison:
    """Compare logits ``[predictions, vocab]`` with those of an answer."""
    expected, first = np.stack(answer.logits), answer.predict.index(True)
    if expected.shape != got.shape:
        at = first + min(len(expected), len(got))
        return Comparison(expected.size, 1, Difference(
            at, None, "number of logits", (0,), expected.size, got.size))
    return compare("logits", expected, got, first_token=first)
