"""What a conversation must be, word for word: the same turns under onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence

from sterna.export.runtime.runtime import OnnxStep
from sterna.hw.core.plan.request import Request
from sterna.sim.core.reference import Oracle

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
        self._oracle = Oracle(graph, graph.info.profile.logit.frac)
        self._temperature, self._seed = temperature, seed
        self.forget()

    def forget(self) -> None:
        """Begin a sequence with the next line."""
        self._start = True
        self._pending: list[int] = []

    def say(self, text: Sequence[int], tokens: int, *, line_end: bool = False) -> list[int]:
        """Return the tokens that follow a line.

        The last one of a line's text is run when the next line comes, as it is on a board.
        """
        given = [*self._pending, *text]
        if line_end or not given:
            given.append(_LINE_END)
        written = self._oracle.answer(Request(
            tuple(given), tokens, self._temperature, self._seed, self._start)).generated
        self._start, self._pending = False, written[-1:]
        return written
