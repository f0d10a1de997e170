"""The unit ``mlgru``: its sizes, the texts of its folder, its stimulus."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from sterna.hw.emit.folder import EmittedUnit, UnitDesign
from sterna.hw.emit.payloads import Fields, UnitPorts, pack_words
from sterna.hw.testbench.job import Phase
from sterna.hw.testbench.scoreboard import ExpectedTensor, ScoredPhase
from sterna.hw.testbench.stimulus import SPREAD, Activations, Stimulus, last_flags
from sterna.hw.units.mlgru import MlgruParams, MlgruUnit
from sterna.hw.units.spec import UnitSpec
from sterna.model.profile import NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import IntegerRecords
from sterna.model.quantized.records import mlgru_cell

__all__ = ["MLGRU"]


def mlgru_design(model: QuantizedModel, params: MlgruParams) -> UnitDesign:
    unit = MlgruUnit(params, model.sigmoid.tolist())
    spacing = params.beat_spacing
    rate = ("A beat is taken every cycle" if spacing == 1
            else f"At most one beat is taken in every {spacing} cycles")
    return UnitDesign(
        unit, "mlgru_unit",
        derived=("beats_per_layer", "words", "candidate_step", "state_step", "latency",
                 "beat_spacing"),
        summary=(f"The MLGRU of {params.layers} layers of {params.channels} channels, "
                 f"{params.lanes} channels per beat, numeric profile {model.profile.name}; the "
                 "states live inside."),
        sections=_MLGRU_SECTIONS.format(params=params, rate=rate))


_MLGRU_SECTIONS = """\
## What to send

Per token {params.words} beats: layer by layer, in a layer channel by channel, {params.lanes} at
a time. `f`, `c` and `g` are the pre-activations of the forget gate, the candidate and the output
gate. `start` marks the first beat of a new sequence: every state then counts as zero for this
token. It may come at any time; the rest of a token that it interrupts must not be sent. The first
beat after a reset starts a sequence in any case.

{rate}. The results of a beat, `o` (output) and `h` (new
state), are valid {params.latency} cycles after the cycle that took it, plus the cycles in which
results waited to be taken, for the whole pipeline waits with them.
"""


_RESULTS = {"h": "h", "o": "o", "f": "f.sigmoid", "g": "g.sigmoid", "c": "c.silu"}
"""Tap of each field of a result; the last three require a trace."""

Tensors = Mapping[str, np.ndarray]
"""Tap name to values ``[tokens, channels]``."""


def mlgru_tensors(model: QuantizedModel) -> list[str]:
    return [f"layer{layer}.mlgru.{part}" for layer in range(model.config.layers)
            for part in ("f.z", "c.z", "g.z", *_RESULTS.values())]


def mlgru_phases(
    model: QuantizedModel, emitted: EmittedUnit, acts: Activations,
) -> list[ScoredPhase]:
    """Make the phases; the gateware keeps the state for a whole sequence."""
    params: MlgruParams = emitted.params
    ports = UnitPorts.of(emitted.manifest)
    sent, fields = ports.fields["preacts"], ports.fields["states"]
    few = min(acts.tokens, 4)
    real = _sequence(params, sent, acts.reference, acts.tokens)
    short = _sequence(params, sent, acts.reference, few)
    # Ends inside the second token, or the first if there is only one.
    partial = real[:max(1, len(real[:2 * params.words]) - params.words // 2 - 1)]

    def expect(count: int, after: int = 0, words: int | None = None) -> list[ExpectedTensor]:
        return _expected(params, fields, acts.reference, acts.onnx, count, after, words)

    def phase(
        name: str, beats: list[int], expected: list[ExpectedTensor], *, reset: bool = False,
        random_pauses: bool = True,
    ) -> ScoredPhase:
        words = len(beats) if expected else 0
        return ScoredPhase(
            Phase(name, {"preacts": beats}, {"states": words}, reset=reset,
                  random_pauses=random_pauses), expected,
            [{"preacts": count, "states": count} for count in range(1, words + 1)])

    return [
        phase("real sequence", real, expect(acts.tokens)),
        phase("second sequence, no pauses", short, expect(few), random_pauses=False),
        phase("new start in mid-token", partial + short,
              expect(min(few, 2), words=len(partial)) + expect(few, after=len(partial))),
        phase("cut in mid-token", partial, []),
        phase("after a reset in mid-token", short, expect(few), reset=True),
        phase("extremes", *_extreme_phase(model, params, sent, fields)),
    ]


def _sequence(
    params: MlgruParams, fields: Fields, tensors: Tensors, tokens: int,
) -> list[int]:
    """Payloads of the tokens of a sequence."""
    shape = (tokens * params.words, params.lanes)
    values: dict[str, np.ndarray] = {
        part: np.stack([tensors[f"layer{layer}.mlgru.{part}.z"][:tokens]
                        for layer in range(params.layers)], axis=1).reshape(shape)
        for part in ("f", "c", "g")}
    values["start"] = (np.arange(shape[0]) == 0).astype(np.int64)
    return pack_words(fields, values)


def _expected(
    params: MlgruParams, fields: Fields, reference: Tensors, onnx: Tensors | None, tokens: int,
    after: int = 0, words: int | None = None,
) -> list[ExpectedTensor]:
    """Positions of h and o of every token and layer, ``after`` words into the output.

    ``words`` ends the list early, possibly within a layer.
    """
    available = tokens * params.words if words is None else words
    expected: list[ExpectedTensor] = []
    for token in range(tokens):
        for layer in range(params.layers):
            first = token * params.words + layer * params.beats_per_layer
            count = min(params.beats_per_layer, available - first)
            if count <= 0:
                return expected
            flags = last_flags(params.beats_per_layer)[:count]
            expected.append(ExpectedTensor(
                token, f"layer{layer}.mlgru.last", "states", after + first, count, fields["last"],
                flags))
            for part, tap in _RESULTS.items():
                if part not in fields:
                    continue
                tensor = f"layer{layer}.mlgru.{tap}"
                channels = slice(count * params.lanes)
                expected.append(ExpectedTensor(
                    token, tensor, "states", after + first, count, fields[part],
                    reference[tensor][token][channels],
                    None if onnx is None else onnx[tensor][token][channels]))
    return expected


_CORNERS = 8    # tokens with corner values


def _extreme_phase(
    model: QuantizedModel, params: MlgruParams, sent: Fields, fields: Fields,
) -> tuple[list[int], list[ExpectedTensor]]:
    """Extreme pre-activations and the expected results: every combination of lowest, highest, -1,
    0 and 1 on some channel, shifted from token to token, to drive states to both ends and hold
    them there. Then values of every sigmoid segment on every lane, most with a large candidate, in
    sequences of two tokens, or some words less.
    """
    z, rng = model.profile.z, np.random.default_rng(1)
    corners = np.array([z.min, z.max, 0, -1, 1, z.max, z.min])
    tokens = _CORNERS + -(-SPREAD // params.words)
    starts = [0, *range(_CORNERS, tokens, 2), tokens]
    token, channel = np.indices((tokens, params.channels))
    tensors: dict[str, np.ndarray] = {}
    for layer in range(params.layers):
        at = f"layer{layer}.mlgru"
        index = channel + 3 * token + 11 * layer
        f, c, g = (corners[each % 7] for each in (index, index // 7, index // 49 + token))
        for each in (f, c, g):
            each[_CORNERS:] = _everywhere(model.profile, rng, each[_CORNERS:].size, params.lanes
                                          ).reshape(-1, params.channels)
        # A large candidate is weighted, or kept whole.
        large = (token > _CORNERS) & (token % 3 > 0)
        c = np.where(large, np.minimum(np.abs(c) | z.max // 2, z.max), c)
        f = np.where(large & (token % 3 == 1), z.min, f)
        tensors |= {f"{at}.f.z": f, f"{at}.c.z": c, f"{at}.g.z": g}
        cell = IntegerRecords(mlgru_cell(model.profile, at, params.channels), {}, model.sigmoid)
        found: list[dict[str, Any]] = []
        for number in range(tokens):
            if number in starts:
                state = [np.zeros(params.channels, dtype=np.int64)]
            found.append({name: tensors[name][number] for name in tensors if at in name})
            _, state = cell.run(found[-1], state)
        tensors |= {name: np.stack([each[name] for each in found]) for name in found[0]}

    beats: list[int] = []
    expected: list[ExpectedTensor] = []
    for number, (first, end) in enumerate(pairwise(starts)):
        part = {name: values[first:end] for name, values in tensors.items()}
        words = _sequence(params, sent, part, end - first)
        words = words[:max(len(words) - number % 3, 1)]
        expected += _expected(
            params, fields, part, None, end - first, after=len(beats), words=len(words))
        beats += words
    return beats, expected


def _everywhere(
    profile: NumericProfile, rng: np.random.Generator, count: int, lanes: int,
) -> np.ndarray:
    """Pre-activations for parallel lanes: each lane gets one from every segment of a sigmoid
    before a second one from any."""
    segments, step = profile.sigmoid_segments, 1 << profile.sigmoid_step_bits
    rounds = -(-count // (lanes * segments))
    places = rng.permuted(np.tile(np.arange(segments), (rounds, lanes, 1)), axis=2)
    places = places.transpose(0, 2, 1).reshape(-1)[:count]
    return profile.z.min + places * step + rng.integers(0, step, count)


def mlgru_params(
    model: QuantizedModel, *, lanes: int = 8, trace: bool = False,
) -> MlgruParams:
    return MlgruParams(model.profile, model.config.layers, model.config.d, lanes, trace)


MLGRU = UnitSpec(
    "mlgru", "the recurrence with its state memory and sigmoid tables",
    "mlgru_unit", mlgru_params, mlgru_design, Stimulus(mlgru_tensors, mlgru_phases), tokens=64)
