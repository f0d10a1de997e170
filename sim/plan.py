"""What to feed a unit, phase by phase, and what must come out.

An :class:`Expected` ties a range of output words to a named tensor of the integer
reference, and to the same tensor as onnxruntime computed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sterna.hw.bits import from_ints, signed_elements
from sterna.model.compare import Comparison, Difference, compare
from sterna.sim.job import Phase

__all__ = ["Checks", "Expected", "Plan", "check_plan"]


@dataclass(frozen=True, slots=True)
class Expected:
    """One tensor of one token, and where its values are in the output words.

    Parameters
    ----------
    token, tensor
        Index of the token in the phase's text, and the tensor's tap name.
    first_word, words
        Range of output words.
    offset, width, lanes
        Bit field in each word: ``lanes`` signed integers of ``width`` bits.
    reference
        Values of the integer reference, flat. Lanes beyond them are padding.
    onnx
        Values of onnxruntime, flat; None where the inputs are not a model's own.
    """

    token: int
    tensor: str
    first_word: int
    words: int
    offset: int
    width: int
    lanes: int
    reference: np.ndarray
    onnx: np.ndarray | None = None

    def read(self, outputs: list[int]) -> np.ndarray:
        """The tensor as the gateware computed it."""
        words = outputs[self.first_word:self.first_word + self.words]
        bits = from_ints(words, self.offset, self.width * self.lanes)
        return signed_elements(bits, self.width).reshape(-1)[:self.reference.size]

    def compare(self, oracle: np.ndarray, outputs: list[int]) -> Comparison:
        """Compare the outputs with what one of the oracles expects."""
        return compare(self.tensor, oracle[None], self.read(outputs)[None],
                       first_token=self.token)


@dataclass(frozen=True, slots=True)
class Plan:
    """A phase and everything that must come out of it."""

    phase: Phase
    expected: list[Expected] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Checks:
    """Outcome of comparing outputs with both oracles."""

    reference: Comparison = field(default_factory=Comparison)
    onnx: Comparison = field(default_factory=Comparison)

    def __add__(self, other: Checks) -> Checks:
        return Checks(self.reference + other.reference, self.onnx + other.onnx)

    @property
    def passed(self) -> bool:
        """Whether something was compared with each, and nothing differed."""
        return self.reference.passed and self.onnx.passed

    @property
    def first(self) -> Difference | None:
        """The first difference, if there is one."""
        return self.reference.first or self.onnx.first


def check_plan(plan: Plan, outputs: list[int]) -> Checks:
    """Compare the output words of a phase with what its plan expects."""
    return sum(
        (Checks(e.compare(e.reference, outputs),
                Comparison() if e.onnx is None else e.compare(e.onnx, outputs))
         for e in plan.expected), Checks())
