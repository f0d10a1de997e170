"""Phases for the ternary MAC array: a model's own weights and activations, and extremes."""

from __future__ import annotations

import numpy as np

from sterna.hw.packer import beat_payloads, pack_projection
from sterna.hw.params import MacParams
from sterna.model.config import ModelConfig
from sterna.model.integer import ternary_matmul
from sterna.model.quantized import QuantizedModel
from sterna.sim.activations import Activations
from sterna.sim.job import Phase
from sterna.sim.plan import Expected, Plan

__all__ = ["mac_plans"]


def mac_plans(
    model: QuantizedModel, params: MacParams, words: dict[str, list[int]], acts: Activations,
) -> list[Plan]:
    """Plan the phases.

    Parameters
    ----------
    model
        The quantised model.
    params
        Geometry of the array.
    words
        Weight words of every projection, as read from the emitted weight image.
    acts
        Tensors of the text that is run.
    """
    everything = [
        _token(model.config, params, words, acts, token) for token in range(acts.tokens)]
    beats, expected = _join(everything)
    first_beats, first_expected = everything[0]
    extreme_beats, extreme_expected = _extremes(params)
    return [
        Plan(Phase("real activations", beats, _words(expected)), expected),
        Plan(Phase("no pauses", first_beats, _words(first_expected), stalls=False),
             first_expected),
        Plan(Phase("cut in mid-row", first_beats[:_inside_a_row(model.config, params)], 0)),
        Plan(Phase("after a reset in mid-row", first_beats, _words(first_expected), reset=True),
             first_expected),
        Plan(Phase("extremes", extreme_beats, _words(extreme_expected)), extreme_expected),
    ]


def _inside_a_row(config: ModelConfig, params: MacParams) -> int:
    """Beats up to the middle of a row of the first matrix with the most beats a row."""
    beats = 0
    for rows, columns in config.projections().values():
        if params.beats_per_group(columns) == params.max_beats:
            return beats + max(1, params.max_beats // 2)
        beats += params.groups(rows) * params.beats_per_group(columns)
    return 1


def _words(expected: list[Expected]) -> int:
    return sum(e.words for e in expected)


def _token(
    config: ModelConfig, params: MacParams, words: dict[str, list[int]], acts: Activations,
    token: int,
) -> tuple[list[int], list[Expected]]:
    beats: list[int] = []
    expected: list[Expected] = []
    for name, (rows, _) in config.projections().items():
        q = acts.reference[f"{config.norm_of(name)}.q"][token]
        beats += beat_payloads(words[name], q, params)
        tensor = f"{name}.acc"
        expected.append(_expect(
            params, token, tensor, _words(expected), params.groups(rows),
            acts.reference[tensor][token], acts.onnx[tensor][token]))
    return beats, expected


def _expect(
    params: MacParams, token: int, tensor: str, first: int, count: int,
    reference: np.ndarray, onnx: np.ndarray | None,
) -> Expected:
    return Expected(token, tensor, first, count, 0, params.sum_bits, params.rows,
                    reference, onnx)


def _join(parts: list[tuple[list[int], list[Expected]]]) -> tuple[list[int], list[Expected]]:
    beats: list[int] = []
    expected: list[Expected] = []
    for part_beats, part_expected in parts:
        shift = _words(expected)
        beats += part_beats
        expected += [
            Expected(e.token, e.tensor, e.first_word + shift, e.words, e.offset, e.width,
                     e.lanes, e.reference, e.onnx) for e in part_expected]
    return beats, expected


def _extremes(params: MacParams) -> tuple[list[int], list[Expected]]:
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
    expected: list[Expected] = []
    for weight_name, weight in weights.items():
        words = pack_projection(weight, params)
        for vector_name, vector in vectors.items():
            q = vector.astype(np.int64)
            beats += beat_payloads(words, q, params)
            reference = ternary_matmul(q, weight.T.astype(np.float64))
            expected.append(_expect(
                params, 0, f"extreme({weight_name} x {vector_name})", len(expected), 1,
                reference, None))
    return beats, expected
