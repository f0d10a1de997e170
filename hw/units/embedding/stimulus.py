"""Phases for the embedding: the tokens of a text, and every token there is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.testbench.activations import Activations
from sterna.hw.testbench.payloads import UnitPorts
from sterna.hw.testbench.scoreboard import ScoredPhase
from sterna.hw.testbench.stimulus import Oracles, PhaseBuilder, Stimulus, last_flags
from sterna.hw.units.embedding.params import EmbeddingParams
from sterna.model.quantized import QuantizedModel

__all__ = ["EMBEDDING_STIMULUS", "embedding_phases", "embedding_tensors"]

_MOST_TOKENS = 1024
"""Of a larger vocabulary, this many are tried."""


def embedding_tensors(model: QuantizedModel) -> list[str]:
    """The tap of the embedding."""
    return ["embedding.x"]


def embedding_phases(
    model: QuantizedModel, emitted: EmittedUnit, acts: Activations,
) -> list[ScoredPhase]:
    """Make the phases; with two sequences, the sequences take turns.

    Parameters
    ----------
    model
        The quantised model.
    emitted
        The unit as it was emitted.
    acts
        Tensors of the text that is run, and its tokens.
    """
    params: EmbeddingParams = emitted.params
    ports = UnitPorts.of(emitted.manifest)
    table = model.embedding.astype(np.int64)

    def text(positions: Iterable[int]) -> PhaseBuilder:
        builder = PhaseBuilder(ports)
        for at in positions:
            _add(builder, params, at % params.sequences, at, int(acts.text[at]),
                 ("embedding.x", acts.reference["embedding.x"][at],
                  acts.onnx["embedding.x"][at]))
        return builder

    everything = PhaseBuilder(ports)
    count = min(params.vocab, _MOST_TOKENS)
    for index, token in enumerate(np.linspace(params.vocab - 1, 0, count).astype(np.int64)):
        _add(everything, params, index % params.sequences, index, int(token),
             (f"embedding[{token}]", table[token], None))
    some = text(range(min(acts.tokens, 4)))
    return [
        text(range(acts.tokens)).phase("real tokens"),
        some.phase("no pauses", random_pauses=False),
        some.cut("cut in mid-vector", {"requests": 1}, cut_after=2 + params.words // 2),
        some.phase("after a reset in mid-vector", reset=True),
        everything.phase("every token"),
    ]


def _add(
    builder: PhaseBuilder, params: EmbeddingParams, sequence: int, position: int, token: int,
    x: Oracles,
) -> None:
    request: dict[str, np.ndarray | int] = {"token": np.array([token])}
    stream = "words"
    if params.sequences > 1:
        request["sequence"], stream = sequence, f"words[{sequence}]"
    builder.send("requests", request)
    builder.expect(position, stream, {
        "x": x, "last": (f"{x[0]}.last", last_flags(params.words), None)})


EMBEDDING_STIMULUS = Stimulus(embedding_tensors, embedding_phases)
