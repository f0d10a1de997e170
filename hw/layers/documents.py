"""What the folder of a matrix or layer says, and the words of the test that it carries."""

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

__all__ = [
    "WEIGHTS_FILE", "act_values", "layer_sections", "layer_summary", "layer_vectors",
    "matrix_sections", "matrix_summary", "matrix_vectors", "result_values", "vector_values"]

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


_KINDS = {"linear": "A BitLinear", "mlgru": "An MLGRU", "glu": "A GLU"}


def matrix_summary(params: MatrixUnitParams) -> str:
    """What the unit does, in a sentence."""
    engine = params.engine
    what = (f"a ternary matrix of {engine.shapes[0][0]} rows and {engine.shapes[0][1]} columns"
            if len(engine.shapes) == 1 else f"{len(engine.shapes)} ternary matrices")
    result = "sums" if params.post is None else "scaled, rounded and saturated results"
    return (f"The product of {what} with vectors of {engine.mac.act_bits}-bit activations: "
            f"an array of {engine.mac.rows} x {engine.mac.cols}, {result}.")


def matrix_sections(params: MatrixUnitParams) -> str:
    """How to use it."""
    engine = params.engine
    out = "sums" if params.post is None else "results"
    table = "\n".join(
        f"| {index} | {rows} | {columns} | {engine.act_words(index)} | {engine.groups(index)} | "
        f"{params.latencies[index]} | {params.periods[index]} |"
        for index, (rows, columns) in enumerate(engine.shapes))
    which = (" `matrix` says with which one it is multiplied; it is read with the first word, and "
             f"travels with its `{out}`." if engine.index_bits else "")
    weights = "" if engine.rom else _WEIGHTS.format(
        file=WEIGHTS_FILE, bits=engine.mac.word_bits)
    meaning = ""
    if params.post is not None:
        output = params.post.slots[0][0].output
        meaning = (f" `y` is `sum * scale + bias`, rounded half up and saturated, in {output.bits} "
                   f"bits, {output.frac} of them after the point.")
    return _MATRIX.format(
        lanes=params.lanes, rows=params.rows, out=out, table=table, which=which,
        meaning=meaning, weights=weights)


def layer_summary(layer: Layer, params: LayerUnitParams) -> str:
    """What the unit does, in a sentence."""
    kind = "mlgru" if params.has_state else "linear" if params.cell is None else "glu"
    array = params.post.engine.mac
    return (f"{_KINDS[kind]} from {layer.columns} to {layer.rows} channels, numeric profile "
            f"{layer.profile.name}: norm, ternary matrices, scale and bias; an array of "
            f"{array.rows} x {array.cols}.")


def layer_sections(layer: Layer, params: LayerUnitParams) -> str:
    """How to use it."""
    start = (" `start` with the first word says that the vector begins a sequence; the first "
             "vector after a reset begins one in any case." if params.has_state else "")
    return _LAYER.format(
        rows=params.rows, words=-(-layer.columns // params.rows), columns=layer.columns,
        outputs=layer.rows, groups=-(-layer.rows // params.rows), output=layer.output,
        bits=params.norm.y_bits, start=start, latency=params.latency,
        period=params.period)


_MATRIX = """\
## What to send

A vector comes as `acts` (activations in each word: {lanes}); the rest of its last word may be
anything.{which} Its results leave as `{out}` (rows in each word: {rows}), `last` with the last
word; rows beyond the end of the matrix are 0.{meaning} A vector may come in while the one before it
is multiplied.

| matrix | rows | columns | words in | words out | latency | cycles per vector |
|---|---|---|---|---|---|---|
{table}

Latency: cycles from the first word taken to the last word offered, when nothing waits. Cycles per
vector: of vectors of the same matrix one after the other.
{weights}"""

_WEIGHTS = """
## Weights

The weights of a matrix come through `weights`, for every vector anew: the words of `{file}` from
its `first_line` on, in order. `params.json` gives, under `weights`, `first_line` and `lines` of
every matrix. A word has {bits} bits. It is looked at only while a vector is multiplied.
"""

_LAYER = """\
## What to send

A vector comes as `x` (channels: {columns}; words: {words} of {rows}), each a signed number of
{bits} bits; what one step of it stands for does not matter, for the first thing that happens is a
norm. Fill up the last word, which has `last`, with zeros.{start}

Its results leave as `y` (channels: {outputs}; words: {groups}), `last` with the last word; channels
beyond the end are 0. They have {output.bits} bits, {output.frac} of them after the point. From the
first word taken to the last word offered it takes {latency} cycles, when nothing waits, and a
vector may come every {period}.
"""
