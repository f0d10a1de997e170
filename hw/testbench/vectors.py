"""From the phases of a stimulus to the words that an emitted folder keeps for its own test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sterna.hw.emit.selftest.vectors import VectorPhase, Vectors
from sterna.hw.parts.bits import to_bits, to_ints
from sterna.hw.testbench.payloads import UnitPorts
from sterna.hw.testbench.scoreboard import ExpectedTensor, ScoredPhase, count_words

__all__ = ["MOST_DIGITS", "short_vectors", "vector_phase"]

MOST_DIGITS = 3000
"""Hexadecimal digits after which a phase in a folder ends: some kB in all."""


def short_vectors(ports: UnitPorts, phases: Sequence[ScoredPhase]) -> Vectors:
    """Return the first phase, which has a model's own data, and the last, its extremes.

    Either is cut after the step with which it gets too long for a folder.

    Parameters
    ----------
    ports
        Ports of the unit.
    phases
        As a unit's stimulus makes them.
    """
    tried = [each for each in phases if each.expected]
    chosen = [tried[0], *tried[1:][-1:]]
    return Vectors([vector_phase(ports, each, MOST_DIGITS) for each in chosen])


def vector_phase(
    ports: UnitPorts, scored: ScoredPhase, most_digits: int | None = None,
) -> VectorPhase:
    """Return the words of a phase and those that must come out of it.

    Bits of an output word that no tensor claims, padding among them, are not compared.

    Parameters
    ----------
    ports
        Ports of the unit.
    scored
        The phase, and everything that is expected of it.
    most_digits
        The phase ends with the step that exceeds so many hexadecimal digits; None for no such
        limit.
    """
    phase = scored.phase
    ends: Mapping[str, int] = {
        **{name: len(words) for name, words in phase.inputs.items()},
        **{each.stream: count_words(scored.expected, each.stream) for each in scored.expected}}
    for step in scored.steps if most_digits else ():
        ends = step
        digits = sum(count * -(-_width(ports, name) // 4) for name, count in step.items())
        if digits > (most_digits or 0):
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
        levels=phase.levels, pulse=phase.pulse)


def _width(ports: UnitPorts, key: str) -> int:
    """Bits of a word of a stream, or of ``stream[sequence]``."""
    return 1 + max(bits.high for bits in ports.fields[key.partition("[")[0]].values())


def _bits_of(expected: ExpectedTensor) -> tuple[list[int], list[int]]:
    """The bits that a tensor has in each of its words, and which bits those are."""
    bits = expected.bits
    elements = (bits.high - bits.low + 1) // bits.element_bits
    values = np.zeros(expected.words * elements, dtype=np.int64)
    known = np.zeros(values.size, dtype=np.int64)
    values[:expected.reference.size] = expected.reference
    known[:expected.reference.size] = -1
    packed = [to_ints(to_bits(each.reshape(expected.words, elements), bits.element_bits))
              for each in (values, known)]
    found = [[word << bits.low for word in words] for words in packed]
    return found[0], found[1]
