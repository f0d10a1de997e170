"""Phases for the ternary MAC array: a model's own weights and activations, and extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sterna.hw.emit.fields import FieldBits
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.testbench.activations import Activations
from sterna.hw.testbench.job import Phase
from sterna.hw.testbench.payloads import UnitPorts
from sterna.hw.testbench.scoreboard import ExpectedTensor, ScoredPhase, count_words, delay
from sterna.hw.testbench.stimulus import Stimulus
from sterna.hw.units.mac.base.params import MacParams
from sterna.hw.units.mac.packing import beat_payloads, pack_projection
from sterna.hw.units.mac.verilog import WEIGHTS_FILE
from sterna.model.config import ModelConfig
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.integer import ternary_matmul

__all__ = ["MAC_STIMULUS", "mac_phases"]


def mac_tensors(model: QuantizedModel) -> list[str]:
    """Taps of the activations and of the sums of every projection."""
    names = list(model.config.projections())
    norms = dict.fromkeys(f"{model.config.norm_of(name)}.q" for name in names)
    return [*norms, *(f"{name}.acc" for name in names)]


def mac_phases(model: QuantizedModel, emitted: EmittedUnit, acts: Activations) -> list[ScoredPhase]:
    """Make the phases; the weight words are read from the emitted weight image."""
    params: MacParams = emitted.params
    words = _weight_words(emitted, params)
    groups = [params.beats_per_group(columns)
              for rows, columns in model.config.projections().values()
              for _ in range(params.groups(rows))]
    bits = UnitPorts.of(emitted.manifest).fields["sums"][""]
    everything = [
        _token(model.config, params, bits, words, acts, token)
        for token in range(acts.tokens)]
    beats, expected = _join(everything)
    first_beats, first_expected = everything[0]
    extreme_beats, extreme_expected = _extremes(params, bits)
    rest = first_beats[:_inside_a_row(model.config, params)]

    def phase(
        name: str, beats: list[int], expected: list[ExpectedTensor], *, reset: bool = False,
        random_pauses: bool = True, steps: Sequence[Mapping[str, int]] = (),
    ) -> ScoredPhase:
        return ScoredPhase(
            Phase(name, {"beats": beats}, {"sums": count_words(expected, "sums")}, reset=reset,
                  random_pauses=random_pauses), expected, steps)

    return [
        phase("real activations", beats, expected, steps=_steps(groups)),
        phase("no pauses", first_beats, first_expected, random_pauses=False),
        phase("cut in mid-row", rest, []),
        phase("after a reset in mid-row", first_beats, first_expected, reset=True),
        phase("extremes", extreme_beats, extreme_expected,
              steps=_steps([params.max_beats] * len(extreme_expected))),
    ]


def _weight_words(emitted: EmittedUnit, params: MacParams) -> dict[str, list[int]]:
    """Weight words of every projection, from the emitted memory image."""
    lines = emitted.text(WEIGHTS_FILE).split()
    words = {}
    for name, entry in emitted.manifest["weights"]["projections"].items():
        first = entry["first_line"]
        words[name] = [int(line, 16) for line in lines[first:first + entry["lines"]]]
        if any(word >> params.word_bits for word in words[name]):
            raise ValueError(f"{emitted.folder / WEIGHTS_FILE}: a word of {name} is too wide")
    return words


def _steps(groups: Sequence[int]) -> list[dict[str, int]]:
    """After each group of rows, which takes so many beats, a word of sums comes."""
    return [{"beats": int(beats), "sums": sums}
            for sums, beats in enumerate(np.cumsum(groups), 1)]


def _inside_a_row(config: ModelConfig, params: MacParams) -> int:
    """Beats up to the middle of a row of the first matrix with the most beats a row."""
    beats = 0
    for rows, columns in config.projections().values():
        if params.beats_per_group(columns) == params.max_beats:
            return beats + max(1, params.max_beats // 2)
        beats += params.groups(rows) * params.beats_per_group(columns)
    return 1


def _token(
    config: ModelConfig, params: MacParams, bits: FieldBits, words: dict[str, list[int]],
    acts: Activations, token: int,
) -> tuple[list[int], list[ExpectedTensor]]:
    beats: list[int] = []
    expected: list[ExpectedTensor] = []
    for name, (rows, _) in config.projections().items():
        q = acts.reference[f"{config.norm_of(name)}.q"][token]
        beats += beat_payloads(words[name], q, params)
        tensor = f"{name}.acc"
        expected.append(ExpectedTensor(
            token, tensor, "sums", count_words(expected, "sums"), params.groups(rows), bits,
            acts.reference[tensor][token], acts.onnx[tensor][token]))
    return beats, expected


def _join(
    parts: list[tuple[list[int], list[ExpectedTensor]]],
) -> tuple[list[int], list[ExpectedTensor]]:
    beats: list[int] = []
    expected: list[ExpectedTensor] = []
    for part_beats, part_expected in parts:
        expected += delay(part_expected, {"sums": count_words(expected, "sums")})
        beats += part_beats
    return beats, expected


def _extremes(params: MacParams, bits: FieldBits) -> tuple[list[int], list[ExpectedTensor]]:
    """Every corner of the accumulator, and single lanes that must not leak."""
    n = params.max_columns
    low, high = -(1 << (params.act_bits - 1)), (1 << (params.act_bits - 1)) - 1
    one_hot = np.zeros((params.rows, n), dtype=np.int8)
    one_hot[np.arange(params.rows), np.arange(params.rows) * (n - 1) // max(params.rows - 1, 1)
            ] = 1
    weights = {
        "ones": np.ones((params.rows, n), dtype=np.int8),
        "minus ones": -np.ones((params.rows, n), dtype=np.int8),
        "zeros": np.zeros((params.rows, n), dtype=np.int8),
        "one hot": one_hot,
        "alternating": np.where(np.indices((params.rows, n)).sum(axis=0) % 2, 1, -1
                                ).astype(np.int8),
    }
    vectors = {
        "lowest": np.full(n, low), "highest": np.full(n, high), "zero": np.zeros(n),
        "ramp": np.arange(n) % (high - low + 1) + low,
    }
    beats: list[int] = []
    expected: list[ExpectedTensor] = []
    for weight_name, weight in weights.items():
        words = pack_projection(weight, params)
        for vector_name, vector in vectors.items():
            q = vector.astype(np.int64)
            beats += beat_payloads(words, q, params)
            reference = ternary_matmul(q, weight.T.astype(np.float64))
            expected.append(ExpectedTensor(
                0, f"extreme({weight_name} x {vector_name})", "sums", len(expected), 1, bits,
                reference))
    return beats, expected


MAC_STIMULUS = Stimulus(mac_tensors, mac_phases)
