"""What a conversation must be, word for word: the same turns under onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sterna.export.runtime.runtime import OnnxStep
from sterna.model.quantized.sampling import Sampler

__all__ = ["ConversationReference"]

_LINE_END = 10


class ConversationReference:
    """Holds a conversation with a step graph, as a board does with its core.

    Parameters
    ----------
    graph
        A step graph.
    temperature, seed
        As for :class:`~sterna.model.quantized.sampling.Sampler`.
    """

    def __init__(self, graph: OnnxStep, *, temperature: float = 0.0, seed: int = 1) -> None:
        self._graph = graph
        self._sampling = {"temperature": temperature, "seed": seed}
        self.forget()

    def forget(self) -> None:
        """Begin a sequence with the next line."""
        self._sampler = Sampler(
            temperature=self._sampling["temperature"], seed=int(self._sampling["seed"]),
            logit_frac=self._graph.info.profile.logit.frac)
        self._state = self._graph.start()
        self._pending: list[int] = []

    def say(self, text: Sequence[int], tokens: int, *, line_end: bool = False) -> list[int]:
        """Return the tokens that follow a line.

        The last one of a line's text is run when the next line comes, as it is on a board.
        """
        given = [*self._pending, *text]
        if line_end or not given:
            given.append(_LINE_END)
        for token in given:
            logits, self._state = self._graph.step(np.array([token]), self._state)
        written: list[int] = []
        for position in range(tokens):
            if position:
                logits, self._state = self._graph.step(np.array(written[-1:]), self._state)
            written.append(self._sampler(logits[0]))
        self._pending = written[-1:]
        return written
