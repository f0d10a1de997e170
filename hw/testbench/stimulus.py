"""Stimulus of a unit, phase by phase; part of it becomes the self-test of an emitted folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts, pack_words
from sterna.hw.emit.selftest.folder_test import VectorPhase, Vectors
from sterna.hw.parts.bits import to_bits, to_ints
from sterna.hw.testbench.job import Phase
from sterna.hw.testbench.scoreboard import ExpectedTensor, ScoredPhase, count_words
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import Comparison
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.taps import TapRecorder

__all__ = [
    "SPREAD", "Activations", "Oracles", "PhaseBuilder", "Stimulus", "last_flags",
    "reference_activations", "short_vectors"]

SPREAD = 256
"""Beats of random values of the whole range: they cover what its ends do not, such as the
segments of a sigmoid, on every lane."""


@dataclass(frozen=True, slots=True)
class Activations:
    """Tensors by tap name, each ``[tokens, channels]``, of both oracles."""

    text: np.ndarray  # the input of the model
    reference: dict[str, np.ndarray]
    onnx: dict[str, np.ndarray]
    agreement: Comparison  # of the two oracles

    @property
    def tokens(self) -> int:
        return len(self.text)


def reference_activations(
    model: QuantizedModel, tokens: np.ndarray, names: list[str],
) -> Activations:
    """The tensors called ``names`` from the integer reference, used for both oracles."""
    taps = TapRecorder(names)
    if names:
        IntegerModel(model).run(tokens[None, :], tap=taps)
    found = {name: taps[name][:, 0] for name in names}
    return Activations(tokens, found, found, Comparison())


Oracles: TypeAlias = tuple[str, np.ndarray, np.ndarray | None]
"""Tensor name, and its values by the integer reference and, if available, by onnxruntime."""


@dataclass(frozen=True, slots=True)
class Stimulus:
    """Stimulus of a kind of unit."""

    tensors: Callable[[QuantizedModel], list[str]]  # tap names of its inputs and outputs in a model
    # makes the phases from a model, its emitted unit and those tensors of a text
    phases: Callable[[QuantizedModel, EmittedUnit, Activations], list[ScoredPhase]]


class PhaseBuilder:
    """Builds a phase vector by vector: words to send and tensors to expect."""

    def __init__(self, ports: UnitPorts) -> None:
        self._ports = ports
        self._inputs: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}
        self._expected: list[ExpectedTensor] = []
        self._steps: list[dict[str, int]] = []
        self._answered = False      # whether the results of all words sent are expected

    def words(self, stream: str, size: int, field: str) -> int:
        """Words for a vector of ``size`` elements in a field of a stream."""
        return -(-size // self._ports.fields[stream][field].elements)

    def send(self, stream: str, values: Mapping[str, np.ndarray | int]) -> None:
        """Append the words of a vector to an input stream.

        ``values`` has for each field of its payload a vector, which is split into words and padded
        with zeros, or a number for all words.
        """
        if self._answered:
            self._step()
        count = max(self.words(stream, value.size, field)
                    for field, value in values.items() if isinstance(value, np.ndarray))
        packed = {}
        for field, value in values.items():
            size = count * self._ports.fields[stream][field].elements
            packed[field] = (np.pad(value, (0, size - value.size))
                             if isinstance(value, np.ndarray) else np.full(size, value)
                             ).reshape(count, -1)
        self._inputs.setdefault(stream, []).extend(
            pack_words(self._ports.fields[stream], packed))

    def expect(self, token: int, stream: str, values: Mapping[str, Oracles]) -> None:
        """Append the words of one or more tensors, side by side, to an output stream."""
        count = max(self.words(stream, reference.size, field)
                    for field, (_, reference, _) in values.items())
        first = self._counts.get(stream, 0)
        for field, (tensor, reference, onnx) in values.items():
            self._expected.append(ExpectedTensor(
                token, tensor, stream, first, count, self._ports.fields[stream][field],
                reference, onnx))
        self._counts[stream] = first + count
        self._answered = True

    def phase(
        self, name: str, *, reset: bool = False, random_pauses: bool = True,
    ) -> ScoredPhase:
        """Return the phase of everything so far."""
        self._step()
        return ScoredPhase(
            Phase(name, self._inputs, self._counts, reset=reset, random_pauses=random_pauses),
            self._expected, list(self._steps))

    def cut(self, name: str, keep: Mapping[str, int]) -> ScoredPhase:
        """Return a phase that ends early: ``keep`` words of each stream, nothing expected."""
        return ScoredPhase(Phase(
            name, {stream: self._inputs[stream][:count] for stream, count in keep.items()}, {}))

    def _step(self) -> None:
        """Record that a phase could end here."""
        self._answered = False
        self._steps.append(
            {**{stream: len(words) for stream, words in self._inputs.items()}, **self._counts})


def last_flags(words: int) -> np.ndarray:
    """``last`` of the words of a vector: 1 on the last one.

    >>> last_flags(3).tolist()
    [0, 0, 1]
    """
    return np.arange(words) // max(words - 1, 1) if words > 1 else np.ones(1, dtype=np.int64)


_MOST_DIGITS = 16_000
"""Hexadecimal digits after which a phase in a folder ends: some 10 kB."""


def short_vectors(ports: UnitPorts, phases: Sequence[ScoredPhase]) -> Vectors:
    """Return the first phase, with data of the model, and the last, with extremes.

    Either is cut after the step that makes it too long for a folder.
    """
    tried = [each for each in phases if each.expected]
    chosen = [tried[0], *tried[1:][-1:]]
    return Vectors([_vector_phase(ports, each) for each in chosen])


def _vector_phase(ports: UnitPorts, scored: ScoredPhase) -> VectorPhase:
    """Return the input words and the expected output words of a phase.

    Bits of an output word outside the tensors, such as padding, are not compared.
    """
    phase = scored.phase
    ends: Mapping[str, int] = {
        **{name: len(words) for name, words in phase.inputs.items()},
        **{each.stream: count_words(scored.expected, each.stream) for each in scored.expected}}
    for step in scored.steps:
        ends = step
        digits = sum(count * -(-_width(ports, name) // 4) for name, count in step.items())
        if digits > _MOST_DIGITS:
            break
    outputs: dict[str, list[int]] = {}
    masks: dict[str, list[int]] = {}
    for each in scored.expected:
        count = ends.get(each.stream, 0)
        if each.first_word >= count:
            continue
        for found, words in zip((outputs, masks), _bits_of(each), strict=True):
            row = found.setdefault(each.stream, [0] * count)
            for at, word in enumerate(words[:count - each.first_word], each.first_word):
                row[at] |= word
    return VectorPhase(
        phase.name,
        {name: words[:ends[name]] for name, words in phase.inputs.items() if ends.get(name)},
        outputs,
        {name: words for name, words in masks.items()
         if any(word != (1 << _width(ports, name)) - 1 for word in words)},
        levels=phase.levels)


def _width(ports: UnitPorts, stream: str) -> int:
    """Bits of a word."""
    return 1 + max(bits.high for bits in ports.fields[stream].values())


def _bits_of(expected: ExpectedTensor) -> tuple[list[int], list[int]]:
    """The bits of a tensor in each of its words, and the mask of those bits."""
    bits = expected.bits
    rest = expected.words * bits.elements - expected.reference.size
    packed = [to_ints(to_bits(np.pad(each, (0, rest)).reshape(expected.words, bits.elements),
                              bits.element_bits))
              for each in (expected.reference, np.full(expected.reference.size, -1))]
    found = [[word << bits.low for word in words] for words in packed]
    return found[0], found[1]
