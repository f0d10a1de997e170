"""What is sent to a unit, phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.testbench.activations import Activations
from sterna.hw.testbench.job import Pause, Phase
from sterna.hw.testbench.payloads import UnitPorts, pack_words
from sterna.hw.testbench.scoreboard import ExpectedTensor, ScoredPhase
from sterna.model.quantized import QuantizedModel

__all__ = ["Oracles", "PhaseBuilder", "Stimulus", "last_flags"]

Oracles: TypeAlias = tuple[str, np.ndarray, np.ndarray | None]
"""Tensor name, and its values of the integer reference and of onnxruntime, if it has them."""


@dataclass(frozen=True, slots=True)
class Stimulus:
    """How a kind of unit is tried.

    Parameters
    ----------
    tensors
        Tap names of its inputs and outputs in a model.
    phases
        Makes the phases from a model, its emitted unit and those tensors of a text.
    """

    tensors: Callable[[QuantizedModel], list[str]]
    phases: Callable[[QuantizedModel, EmittedUnit, Activations], list[ScoredPhase]]


class PhaseBuilder:
    """Puts a phase together, vector by vector: words to send, and tensors to expect.

    Parameters
    ----------
    ports
        Ports of the unit.
    """

    def __init__(self, ports: UnitPorts) -> None:
        self._ports = ports
        self._inputs: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}
        self._expected: list[ExpectedTensor] = []
        self._steps: list[dict[str, int]] = []
        self._answered = False      # whether all that was sent has what is expected of it

    def words(self, stream: str, size: int, field: str) -> int:
        """Words in which a vector of ``size`` elements travels in a field of a stream."""
        return -(-size // self._elements(stream, field))

    def send(self, stream: str, values: Mapping[str, np.ndarray | int]) -> None:
        """Append the words of a vector to an input stream.

        Parameters
        ----------
        stream
            Input stream.
        values
            For each field of its payload a vector, which is cut into words and filled up
            with zeros, or a number that all of its words carry.
        """
        if self._answered:
            self._step()
        count = max(self.words(stream, value.size, field)
                    for field, value in values.items() if isinstance(value, np.ndarray))
        packed = {}
        for field, value in values.items():
            elements = np.zeros(count * self._elements(stream, field), dtype=np.int64)
            if isinstance(value, np.ndarray):
                elements[:value.size] = value
            else:
                elements[:] = value
            packed[field] = elements.reshape(count, -1)
        self._inputs.setdefault(stream, []).extend(
            pack_words(self._ports.fields[stream], packed))

    def expect(self, token: int, stream: str, values: Mapping[str, Oracles]) -> None:
        """Append the words of one or more tensors, side by side, to an output stream.

        ``stream`` is an output stream, or ``acts[1]`` for those words of ``acts`` that
        belong to sequence 1.
        """
        base = stream.partition("[")[0]
        count = max(self.words(base, reference.size, field)
                    for field, (_, reference, _) in values.items())
        first = self._counts.get(stream, 0)
        for field, (tensor, reference, onnx) in values.items():
            self._expected.append(ExpectedTensor(
                token, tensor, stream, first, count, self._ports.fields[base][field],
                reference, onnx))
        self._counts[stream] = first + count
        self._answered = True

    def phase(
        self, name: str, *, reset: bool = False, random_pauses: bool = True,
        levels: Mapping[str, int] | None = None, pulse: tuple[str, ...] = (),
        pauses: Mapping[str, Pause] | None = None,
    ) -> ScoredPhase:
        """Return the phase of everything so far."""
        self._step()
        outputs: dict[str, int] = {}
        for stream, count in self._counts.items():
            base = stream.partition("[")[0]
            outputs[base] = outputs.get(base, 0) + count
        return ScoredPhase(
            Phase(name, self._inputs, outputs, reset=reset, random_pauses=random_pauses,
                  levels=dict(levels or {}), pulse=list(pulse), pauses=dict(pauses or {})),
            self._expected, list(self._steps))

    def cut(
        self, name: str, keep: Mapping[str, int], *, cut_after: int = 0,
        levels: Mapping[str, int] | None = None,
    ) -> ScoredPhase:
        """Return a phase that ends early: ``keep`` words of each stream, nothing expected."""
        return ScoredPhase(Phase(
            name, {stream: self._inputs[stream][:count] for stream, count in keep.items()}, {},
            cut_after=cut_after, levels=dict(levels or {})))

    def _step(self) -> None:
        """Note that a phase could end here."""
        self._answered = False
        self._steps.append(
            {**{stream: len(words) for stream, words in self._inputs.items()}, **self._counts})

    def _elements(self, stream: str, field: str) -> int:
        """Elements of a field in each word."""
        bits = self._ports.fields[stream][field]
        return (bits.high - bits.low + 1) // bits.element_bits


def last_flags(words: int) -> np.ndarray:
    """``last`` of the words of a vector: 1 on the last one.

    >>> last_flags(3).tolist()
    [0, 0, 1]
    """
    return np.arange(words) // max(words - 1, 1) if words > 1 else np.ones(1, dtype=np.int64)
