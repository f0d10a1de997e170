"""Expected outputs of a unit, tensor by tensor, and their comparison with the actual ones.

An :class:`ExpectedTensor` links a range of output words to a named tensor of the integer
reference, and to the same tensor computed by onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sterna.hw.emit.payloads import FieldBits, read_field
from sterna.hw.testbench.job import Phase, SimulationError
from sterna.model.quantized.compare import Comparison, Difference, compare

__all__ = ["Checks", "ExpectedTensor", "ScoredPhase", "check_phase", "count_words"]


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """One tensor of one token, and the position of its values in the output words."""

    # index of the token in the phase's text, and the tensor's tap name
    token: int
    tensor: str
    stream: str  # output stream
    # range of output words
    first_word: int
    words: int
    bits: FieldBits  # the field of each word that holds the values
    # Values of the integer reference, flat. Elements beyond them are padding.
    reference: np.ndarray
    # values of onnxruntime, flat; None if the inputs are not from a model
    onnx: np.ndarray | None = None

    def read(self, outputs: Mapping[str, list[int]]) -> np.ndarray:
        """The tensor as the gateware computed it."""
        words = outputs[self.stream][self.first_word:self.first_word + self.words]
        if len(words) != self.words:
            raise SimulationError(
                f"{self.stream} ends after {len(outputs[self.stream])} words, before "
                f"{self.tensor} of token {self.token}")
        return read_field(words, self.bits).reshape(-1)[:self.reference.size]

    def compare(self, oracle: np.ndarray, outputs: Mapping[str, list[int]]) -> Comparison:
        """Compare the outputs with one of the oracles."""
        return compare(self.tensor, oracle.reshape(1, -1), self.read(outputs)[None],
                       first_token=self.token)


@dataclass(frozen=True, slots=True)
class ScoredPhase:
    """A phase and all expected outputs."""

    phase: Phase
    expected: list[ExpectedTensor] = field(default_factory=list)
    # Points where the phase could end early, with all inputs answered: words of each stream up to
    # there.
    steps: Sequence[Mapping[str, int]] = ()


@dataclass(frozen=True, slots=True)
class Checks:
    """Outcome of comparing outputs with both oracles."""

    reference: Comparison = field(default_factory=Comparison)
    onnx: Comparison = field(default_factory=Comparison)

    def __add__(self, other: Checks) -> Checks:
        return Checks(self.reference + other.reference, self.onnx + other.onnx)

    @property
    def passed(self) -> bool:
        """Whether values were compared with both oracles, and none differed."""
        return self.reference.passed and self.onnx.passed

    @property
    def first(self) -> Difference | None:
        return self.reference.first or self.onnx.first

    def as_dict(self) -> dict[str, int]:
        return {"reference_values": self.reference.values,
                "reference_mismatches": self.reference.mismatches,
                "onnx_values": self.onnx.values, "onnx_mismatches": self.onnx.mismatches}


def check_phase(scored: ScoredPhase, outputs: Mapping[str, list[int]]) -> Checks:
    """Compare the output words of a phase with both oracles."""
    return sum(
        (Checks(e.compare(e.reference, outputs),
                Comparison() if e.onnx is None else e.compare(e.onnx, outputs))
         for e in scored.expected), Checks())


def count_words(expected: Sequence[ExpectedTensor], stream: str) -> int:
    """Words of a stream up to the end of the last expected tensor."""
    return max((e.first_word + e.words for e in expected if e.stream == stream), default=0)
