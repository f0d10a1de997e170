"""What came out of a core that ran requests, and how its streams can be held up."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

__all__ = ["CoreProgress", "CoreRun", "CoreStream", "Hold"]


class CoreStream(enum.IntEnum):
    """A stream of a core that can be held up."""

    PROMPTS = 0
    TOKENS = 1
    LOGITS = 2
    WEIGHT_REQUESTS = 3
    WEIGHTS = 4


@dataclass(frozen=True, slots=True)
class Hold:
    """A long pause: one end of a stream does nothing for ``cycles`` cycles from ``first`` on."""

    stream: CoreStream
    first: int
    cycles: int
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class CoreProgress:
    """Where a run is: cycles simulated, and prompt tokens taken, all sequences together.

    ``tokens`` has for each sequence those it wrote since the last report.
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
        Whether the requests were run to their end.
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
        """Yield the tokens that a sequence wrote after each token with a prediction."""
        written: list[int] = []
        for token, last in zip(
                self.tokens[sequence].tolist(), self.lasts[sequence], strict=True):
            written.append(token)
            if last:
                yield written
                written = []
        if written:
            yield written
