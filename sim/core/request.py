"""What to run on a core, and what came out of it; the same for every simulator."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sterna.hw.core.plan.params import CoreParams
from sterna.hw.core.token_control import BETA_BITS, SEED_BITS
from sterna.model.checks import check_whole

__all__ = ["CoreJob", "CoreProgress", "CoreRun", "CoreStream", "Hold", "check_jobs"]

_LIMIT_BITS = 16


class CoreStream(enum.IntEnum):
    """A stream of a core that can be held up."""

    PROMPTS = 0
    TOKENS = 1
    LOGITS = 2
    WEIGHT_REQUESTS = 3
    WEIGHTS = 4


@dataclass(frozen=True, slots=True)
class CoreJob:
    """A prompt of one sequence, and what is asked for.

    A job begins when the sequence is idle, and sets the control before its first token.

    Parameters
    ----------
    prompt
        Tokens, at least one.
    limit
        Tokens to generate after each token with ``predict``; with 0 only logits come out.
    start
        Whether the first token begins a sequence; otherwise the one before goes on.
    predict
        For each token of the prompt, whether logits are asked for; None asks for those
        after the last token.
    stop_token
        Token that ends a generation early; None if there is none.
    beta
        Inverse temperature, :attr:`sterna.model.quantized.sampling.Sampler.beta`; 0 is greedy.
    seed
        Seed of the sampler, loaded if ``start``.

    Raises
    ------
    ValueError
        If a number is out of its range or ``predict`` has another length.

    >>> CoreJob((5, 6, 7), limit=20).predictions
    (False, False, True)
    """

    prompt: tuple[int, ...]
    limit: int = 0
    start: bool = True
    predict: tuple[bool, ...] | None = None
    stop_token: int | None = None
    beta: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        check_whole("limit", self.limit, 0, (1 << _LIMIT_BITS) - 1)
        check_whole("beta", self.beta, 0, (1 << BETA_BITS) - 1)
        check_whole("seed", self.seed, 0, (1 << SEED_BITS) - 1)
        if not self.prompt:
            raise ValueError("a prompt needs a token at least")
        if self.predict is not None and len(self.predict) != len(self.prompt):
            raise ValueError(
                f"predict must have one entry per token of the prompt, "
                f"got {len(self.predict)} for {len(self.prompt)}")

    @property
    def predictions(self) -> tuple[bool, ...]:
        """``predict``, written out."""
        if self.predict is not None:
            return self.predict
        return (*(False for _ in self.prompt[1:]), True)


@dataclass(frozen=True, slots=True)
class Hold:
    """A long stall: one end of a stream does nothing for ``cycles`` cycles from ``first`` on."""

    stream: CoreStream
    first: int
    cycles: int
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class CoreProgress:
    """Where a run is.

    Parameters
    ----------
    cycle
        Cycles simulated.
    taken
        Prompt tokens taken, all sequences together.
    tokens
        For each sequence the tokens it wrote since the last report.
    """

    cycle: int
    taken: int
    tokens: list[list[int]]


@dataclass(frozen=True, slots=True)
class CoreRun:
    """What came out of a core. Every list has an entry per sequence; cycle 0 is the first.

    Parameters
    ----------
    tokens
        Generated tokens, int64 ``[n]``.
    lasts
        Whether each was the last of its generation, bool ``[n]``.
    token_cycles
        Cycle in which each was taken, int64 ``[n]``.
    logits
        int64 ``[vectors, vocab]``; no vectors if the core has no such port.
    logit_cycles
        Cycle in which the last word of each vector was taken, int64 ``[vectors]``.
    prompt_cycles
        Cycle in which each token of the prompts was taken, int64 ``[m]``.
    cycles
        Cycles until everything was idle.
    busy_cycles
        How far the core's own counter went.
    finished
        Whether the jobs were run to their end.
    """

    tokens: list[np.ndarray]
    lasts: list[np.ndarray]
    token_cycles: list[np.ndarray]
    logits: list[np.ndarray] = field(repr=False)
    logit_cycles: list[np.ndarray]
    prompt_cycles: list[np.ndarray]
    cycles: int
    busy_cycles: int
    finished: bool = True

    def generations(self, sequence: int) -> Iterator[list[int]]:
        """Yield the tokens that a sequence wrote after each token with ``predict``."""
        written: list[int] = []
        for token, last in zip(
                self.tokens[sequence].tolist(), self.lasts[sequence], strict=True):
            written.append(token)
            if last:
                yield written
                written = []
        if written:
            yield written


def check_jobs(params: CoreParams, jobs: Sequence[Sequence[CoreJob]]) -> None:
    """Check that jobs can run on a core.

    Raises
    ------
    ValueError
        If there is not a list for each sequence, or a token is not in the vocabulary.
    """
    if len(jobs) != params.streams:
        raise ValueError(
            f"jobs must hold a list for each of {params.streams} sequences, got {len(jobs)}")
    vocab = params.config.vocab
    for sequence, queue in enumerate(jobs):
        for job in queue:
            stop = () if job.stop_token is None else (job.stop_token,)
            for token in (*job.prompt, *stop):
                if not 0 <= token < vocab:
                    raise ValueError(
                        f"tokens must be from 0 to {vocab - 1}, sequence {sequence} has {token}")
