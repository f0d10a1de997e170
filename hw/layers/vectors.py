"""Words for the test that the folder of a matrix or layer carries, by the integer reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sterna.hw.emit.payloads import UnitPorts, pack_words
from sterna.hw.emit.selftest.folder_test import FileWords, VectorPhase, Vectors
from sterna.hw.layers.layer_unit import LayerUnitParams
from sterna.hw.layers.matrix_unit import MatrixUnitParams
from sterna.hw.testbench.stimulus import last_flags
from sterna.model.layers import Layer, MatrixLayer
from sterna.model.layers.layer import input_bits

__all__ = ["WEIGHTS_FILE", "act_values", "layer_vectors", "matrix_vectors", "result_values",
           "vector_values"]

WEIGHTS_FILE = "weights.hex"
_MOST_VALUES = 6000
"""Values sent and expected in a phase after which no further vector is added."""


def act_values(
    params: MatrixUnitParams, acts: np.ndarray, matrix: int = 0,
) -> dict[str, np.ndarray]:
    """Fields of the words of ``acts`` that bring a vector, by name.

    ``acts`` are integers ``[columns]``; the last word is filled up with zeros.
    """
    words = params.engine.act_words(matrix)
    values = {"q": _words(acts, params.lanes)}
    if params.engine.index_bits:
        values["matrix"] = np.full(words, matrix)
    return values


def vector_values(
    params: LayerUnitParams, x: np.ndarray, *, start: bool = False,
) -> dict[str, np.ndarray]:
    """Fields of the words of ``vectors`` that bring a vector, by name.

    ``x`` are integers ``[columns]``; ``start`` says that it begins a sequence.
    """
    words = _words(x, params.rows)
    values = {"x": words, "last": last_flags(len(words))}
    if params.has_state:
        values["start"] = np.full(len(words), start)
    return values


def result_values(
    params: MatrixUnitParams | LayerUnitParams, results: np.ndarray, matrix: int = 0,
) -> dict[str, np.ndarray]:
    """Fields of the words of ``sums`` or ``results`` that bring ``results [rows]``, by name."""
    name = "sum" if isinstance(params, MatrixUnitParams) and params.post is None else "y"
    words = _words(results, params.rows)
    values = {name: words, "last": last_flags(len(words))}
    if isinstance(params, MatrixUnitParams) and params.engine.index_bits:
        values["matrix"] = np.full(len(words), matrix)
    return values


def matrix_vectors(
    layers: Sequence[MatrixLayer], params: MatrixUnitParams, ports: UnitPorts,
) -> Vectors:
    """Every matrix with random activations, and as many as fit with extreme ones."""
    rng = np.random.default_rng(0)
    out = "sums" if params.post is None else "results"
    sent: list[tuple[int, np.ndarray]] = []
    size = 0
    for kind in (None, -128, 127, None):
        for matrix, layer in enumerate(layers):
            size += layer.columns + layer.rows
            if kind is None or size < _MOST_VALUES:
                sent.append((matrix, rng.integers(-128, 128, layer.columns) if kind is None
                             else np.full(layer.columns, kind)))
        if size >= _MOST_VALUES:
            break
    inputs: dict[str, list[int | FileWords]] = {"acts": []}
    expected: list[int] = []
    for matrix, acts in sent:
        inputs["acts"] += pack_words(ports.fields["acts"], act_values(params, acts, matrix))
        results = result_values(params, layers[matrix](acts), matrix)
        expected += pack_words(ports.fields[out], results)
        if not params.engine.rom:
            inputs.setdefault("weights", []).append(FileWords(
                WEIGHTS_FILE, params.engine.first_word(matrix),
                params.engine.matrix_words(matrix)))
    return Vectors([VectorPhase("random and extreme activations", inputs, {out: expected})],
                   patience=_patience(max(params.latencies)))


def layer_vectors(layer: Layer, params: LayerUnitParams, ports: UnitPorts) -> Vectors:
    """Two short sequences of random vectors, with a silent and an extreme one among them."""
    rng = np.random.default_rng(0)
    limit = 1 << (input_bits(layer.profile) - 1)
    many = max(2, min(6, _MOST_VALUES // (layer.columns + layer.rows)))
    inputs: list[int] = []
    expected: list[int] = []
    state = layer.start()
    for index in range(many):
        x = rng.integers(-limit, limit, layer.columns) >> index
        x = {2: np.zeros_like(x), 4: np.full_like(x, -limit)}.get(index, x)
        start = index in (0, 3)
        if start:
            state = layer.start()
        y, state = layer.step(x[None], state)
        inputs += pack_words(ports.fields["vectors"], vector_values(params, x, start=start))
        expected += pack_words(ports.fields["results"], result_values(params, y[0]))
    words = sum(map(params.post.engine.matrix_words, range(len(params.post.slots))))
    return Vectors([VectorPhase("two sequences", {"vectors": inputs}, {"results": expected})],
                   patience=_patience(words * (1 + params.post.engine.mac.fill_steps)))


def _words(values: np.ndarray, size: int) -> np.ndarray:
    """A vector cut into words of ``size`` values, the last one filled up with zeros."""
    padded: np.ndarray = np.zeros(-(-len(values) // size) * size, dtype=np.int64)
    padded[:len(values)] = values
    return padded.reshape(-1, size)


def _patience(cycles: int) -> int:
    """Cycles without a transfer that count as a hang: pauses make every cycle some longer."""
    return 2000 + 8 * cycles
