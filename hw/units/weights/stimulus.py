"""Phases for the weight memory: every projection in the order of use, and single words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sterna.hw.emit.documents import field_bits
from sterna.hw.emit.fields import FieldBits
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.testbench.activations import Activations
from sterna.hw.testbench.job import Phase
from sterna.hw.testbench.payloads import UnitPorts, pack_words, read_field
from sterna.hw.testbench.scoreboard import ExpectedTensor, ScoredPhase, count_words
from sterna.hw.testbench.stimulus import Stimulus
from sterna.hw.units.mac.base.params import MacParams
from sterna.hw.units.mac.packing import pack_projection
from sterna.model.quantized import QuantizedModel

__all__ = ["WEIGHTS_STIMULUS", "weights_phases", "weights_tensors"]

WordRun = tuple[str, int, int, int]
"""Projection, number of its first word in the memory, words to skip, words to read."""


def weights_tensors(model: QuantizedModel) -> list[str]:
    """No tap: weights are no tensors of a text."""
    return []


def weights_phases(
    model: QuantizedModel, emitted: EmittedUnit, acts: Activations,
) -> list[ScoredPhase]:
    """Make the phases; the words are compared with the model's weights, packed anew.

    Parameters
    ----------
    model
        The quantised model.
    emitted
        The memory as it was emitted; its manifest says where each projection begins.
    acts
        Not used.
    """
    params = MacParams(**emitted.manifest["array"])
    index = emitted.manifest["weights"]["projections"]
    packed = {name: pack_projection(projection.weight, params)
              for name, projection in model.projections.items()}
    whole = [(name, entry["first_line"], 0, entry["lines"]) for name, entry in index.items()]
    # The last word of each projection, one at a time and backwards.
    single = [(name, first, words - 1, 1) for name, first, _, words in reversed(whole)]
    ports = UnitPorts.of(emitted.manifest)

    def phase(
        name: str, requests: Sequence[WordRun], *, reset: bool = False, random_pauses: bool = True,
    ) -> ScoredPhase:
        expected: list[ExpectedTensor] = []
        for request in requests:
            expected += _expect(params, packed, request, count_words(expected, "beats"))
        sent = pack_words(ports.fields["requests"], {
            "first": np.array([first + skip for _, first, skip, _ in requests]),
            "count": np.array([count for *_, count in requests])})
        return ScoredPhase(
            Phase(name, {"requests": sent}, {"beats": count_words(expected, "beats")},
                  reset=reset, random_pauses=random_pauses), expected,
            [{"requests": number, "beats": int(beats)} for number, beats in enumerate(
                np.cumsum([count for *_, count in requests]), 1)])

    first = phase("after a reset in mid-run", whole[:3], reset=True)
    return [
        phase("every projection", whole),
        phase("no pauses", whole, random_pauses=False),
        phase("single words", single),
        ScoredPhase(Phase("cut in mid-run", {"requests": first.phase.inputs["requests"][:2]}, {},
                   cut_after=2)),
        first,
    ]


def _expect(
    params: MacParams, packed: dict[str, list[int]], request: WordRun, after: int,
) -> Iterable[ExpectedTensor]:
    """Each field of the words of a request, under the name of the projection."""
    name, _, skip, count = request
    words = packed[name][skip:skip + count]
    for bits in field_bits(params.beat_layout):
        if bits.name != "acts":
            bits = FieldBits(bits.name, bits.low, bits.high, bits.dims, bits.element_bits, False)
            yield ExpectedTensor(0, f"{name}.{bits.name}", "beats", after, count, bits,
                           read_field(words, bits).reshape(-1))


WEIGHTS_STIMULUS = Stimulus(weights_tensors, weights_phases)
