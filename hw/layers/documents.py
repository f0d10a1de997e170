"""Texts of the folder of a matrix or layer, and the words of its test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from amaranth.hdl import Shape

from sterna.hw.core.compute.trace import trace_section
from sterna.hw.core.cycles.model import MemoryTiming
from sterna.hw.core.image.reader import port_section
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import Fields, UnitPorts, pack_words
from sterna.hw.emit.selftest.folder_test import FileWords, VectorPhase, Vectors
from sterna.hw.layers.cycles import UnitCycles
from sterna.hw.layers.layer_params import LayerParams
from sterna.hw.testbench.stimulus import last_flags
from sterna.model.layers import BitLinearLayer, GluLayer, Layer, MatrixLayer, MlgruLayer

__all__ = [
    "act_values", "layer_sections", "layer_summary", "layer_vectors", "matrix_sections",
    "matrix_summary", "matrix_vectors", "patience", "result_values", "result_words",
    "vector_values"]

_MOST_VALUES = 6000
"""No further vector is added to a phase with so many values sent and expected."""


def act_values(params: LayerParams, acts: np.ndarray, matrix: int = 0) -> dict[str, np.ndarray]:
    """Fields of the words of ``acts`` for a vector, by name.

    ``acts`` are integers ``[columns]``; the last word is padded with zeros.
    """
    words = _words(acts, params.quant_lanes)
    return {"q": words, **_index(params.matrix_field, matrix, len(words))}


def vector_values(
    params: LayerParams, x: np.ndarray, *, start: bool = False, sequence: int = 0,
) -> dict[str, np.ndarray]:
    """Fields of the words of ``vectors`` for a vector, by name.

    ``x`` are integers ``[columns]``; with ``start`` the vector begins a sequence.
    """
    words = _words(x, params.post_lanes)
    return {"x": words, **({"start": np.full(len(words), start)} if params.has_state else {}),
            **_index(params.sequence_field, sequence, len(words))}


def result_values(
    params: LayerParams, results: np.ndarray, index: int = 0,
) -> dict[str, np.ndarray]:
    """Fields of the words of ``sums`` or ``results`` for ``results [rows]``, by name.

    ``index``: of the matrix or, for a layer, of the sequence.
    """
    limits = params.limits
    words = _words(results, params.rows).reshape(-1, params.post_lanes)
    field = params.sequence_field if limits.normalizes else params.matrix_field
    return {"y" if limits.requantizes else "sum": words, "last": last_flags(len(words)),
            **_index(field, index, len(words))}


def _index(field: Mapping[str, Shape], index: int, words: int) -> dict[str, np.ndarray]:
    return {name: np.full(words, index) for name in field}


def matrix_vectors(layers: Sequence[MatrixLayer], emitted: EmittedUnit) -> Vectors:
    """Test every matrix with random activations, and as many as fit with extreme ones."""
    params, ports = emitted.params, UnitPorts.of(emitted.manifest)
    rng = np.random.default_rng(0)
    out = "results" if params.limits.requantizes else "sums"
    inputs: list[int | FileWords] = []
    expected: list[int] = []
    size = 0
    for kind in (None, -128, 127, None):
        for matrix, layer in enumerate(layers):
            size += layer.columns + layer.rows
            if kind is None or size < _MOST_VALUES:
                acts = (rng.integers(-128, 128, layer.columns) if kind is None
                        else np.full(layer.columns, kind))
                inputs += pack_words(ports.fields["acts"], act_values(params, acts, matrix))
                expected += pack_words(
                    ports.fields[out], result_values(params, layer(acts), matrix))
        if size >= _MOST_VALUES:
            break
    return Vectors(
        [VectorPhase("random and extreme activations", {"acts": inputs}, {out: expected})],
        patience=patience(emitted))


def layer_vectors(layer: Layer, emitted: EmittedUnit) -> Vectors:
    """Random vectors for each sequence, restarted once, including an all-zero and an extreme
    one."""
    params, ports = emitted.params, UnitPorts.of(emitted.manifest)
    rng = np.random.default_rng(0)
    limit = 1 << (layer.bits - 1)
    count = params.sequences
    many = max(2, min(6, _MOST_VALUES // (layer.columns + layer.rows) // count))
    inputs: list[int | FileWords] = []
    expected: list[int] = []
    states = [layer.start()] * count
    for index in range(many):
        results = []
        for sequence in range(count):
            x = rng.integers(-limit, limit, layer.columns) >> index
            x = {2: np.zeros_like(x), 4: np.full_like(x, -limit)}.get(index, x)
            start = index in (0, 3)
            y, states[sequence] = layer.step(
                x[None], layer.start() if start else states[sequence])
            inputs += pack_words(ports.fields["vectors"], vector_values(
                params, x, start=start, sequence=sequence))
            results.append((sequence, y[0]))
        expected += result_words(params, ports.fields["results"], results)
    return Vectors(
        [VectorPhase("random and extreme vectors", {"vectors": inputs}, {"results": expected})],
        patience=patience(emitted))


def result_words(
    params: LayerParams, fields: Fields, results: Sequence[tuple[int, np.ndarray]],
) -> list[int]:
    """Words of ``results`` for the results of each sequence in a round: the sequences of a phase
    take turns, a group of rows each."""
    words: list[int] = []
    for first in range(0, params.sequences, params.batch):
        each = [pack_words(fields, result_values(params, y, sequence))
                for sequence, y in results[first:first + params.batch]]
        beats = params.row_beats
        words += [word for start in range(0, len(each[0]), beats)
                  for own in each for word in own[start:start + beats]]
    return words


def _words(values: np.ndarray, size: int) -> np.ndarray:
    """Split a vector into words of ``size`` values, the last one padded with zeros."""
    return np.pad(values, (0, -len(values) % size)).reshape(-1, size)


def patience(emitted: EmittedUnit) -> int:
    """Cycles without a transfer that count as a hang, allowing for pauses and for the initial read
    of an image."""
    image = 1 << emitted.params.address_bits if emitted.params.port_bits else 0
    return 2000 + 8 * (image + max(each["latency"] for each in emitted.manifest["cycles"]))


def matrix_summary(params: LayerParams) -> str:
    program = params.limits.program
    what = (f"a ternary matrix of {program[0].rows} rows and {program[0].columns} columns"
            if len(program) == 1 else f"{len(program)} ternary matrices")
    result = "scaled, rounded and saturated results" if params.limits.requantizes else "sums"
    return (f"The product of {what} with vectors of {params.profile.act_bits}-bit activations: "
            f"an array of {params.rows} x {params.cols}, {result}.")


def matrix_sections(params: LayerParams, cycles: Sequence[UnitCycles]) -> str:
    limits = params.limits
    out = "results" if limits.requantizes else "sums"
    table = "\n".join(
        f"| {index} | {each.rows} | {each.columns} | "
        f"{params.words_in(index, params.quant_lanes)} | {params.words_out(index)} | "
        f"{own.latency} | {own.period:g} |"
        for index, (each, own) in enumerate(zip(limits.program, cycles, strict=True)))
    which = (" `matrix` says with which one it is multiplied; it is read with the first word, and "
             f"travels with its `{out}`." if params.matrix_field else "")
    output = params.profile.logit
    meaning = (f" `y` is `sum * scale + bias`, rounded half up and saturated, in {output.bits} "
               f"bits, {output.frac} of them after the point." if limits.requantizes else "")
    return _MATRIX.format(
        lanes=params.quant_lanes, rows=params.post_lanes, out=out, table=table, which=which,
        meaning=meaning)


def layer_summary(layer: Layer, params: LayerParams) -> str:
    kinds: dict[type, str] = {
        MlgruLayer: "An MLGRU", GluLayer: "A GLU", BitLinearLayer: "A BitLinear"}
    return (f"{kinds.get(type(layer), 'A network of layers')} from {layer.columns} to {layer.rows} "
            f"channels, numeric profile {layer.profile.name}: norm, ternary matrices, scale and "
            f"bias; an array of {params.rows} x {params.cols}.")


def layer_sections(layer: Layer, params: LayerParams, cycles: UnitCycles) -> str:
    start = (" `start` with the first word says that the vector begins a sequence; the first "
             "vector of each after a reset begins one in any case." if params.has_state else "")
    meaning = (
        f"bits after the point, channel by channel: {', '.join(map(str, layer.fraction_bits))}"
        if layer.fraction_bits is not None else
        f"{layer.input.frac} of them after the point" if layer.input else _NORMED)
    several = _SEQUENCES.format(
        last=params.sequences - 1, batch=params.batch) if params.sequences > 1 else ""
    return _LAYER.format(
        lanes=params.post_lanes, words=params.words_in(0, params.post_lanes),
        columns=layer.columns, outputs=layer.rows,
        groups=params.words_out(len(params.limits.program) - 1), output=layer.output,
        bits=layer.bits, meaning=meaning, start=start, latency=cycles.latency,
        period=cycles.period, sequences=several,
        memory=_MEMORY if params.port_bits else "") + (
            f"\n{trace_section(params)}" if params.trace else "") + (
            f"\n{port_section(params)}" if params.port_bits else "")


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
"""

_NORMED = "what one step of it stands for does not matter, for a norm comes first"

_LAYER = """\
## What to send

A vector comes as `x` (channels: {columns}; words: {words} of {lanes}), each a signed number of
{bits} bits; {meaning}.
Fill up the last word with zeros.{start}

Its results leave as `y` (channels: {outputs}; words: {groups}), `last` with the last word; channels
beyond the end are 0. They have {output.bits} bits, {output.frac} of them after the point. From the
first word taken to the last word offered it takes {latency} cycles, when nothing waits, and a
vector may come every {period:g}{memory}.
{sequences}"""

_MEMORY = f""", with a memory that gives a word
per cycle, {MemoryTiming().latency} cycles after it is asked for"""

_SEQUENCES = """
## Sequences

`sequence` is the number of a vector's sequence, from 0 to {last}, the same in all of its words,
which come one after the other. Sequences are worked on by {batch}: once a vector of each has come,
they go through together, and another vector of one is taken when the results of all of them have
left the post-processor. Their results take turns, the rows of the array of each.
"""
