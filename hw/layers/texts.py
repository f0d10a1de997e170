"""What the README of a folder says of the words that a matrix or layer takes and gives."""

from __future__ import annotations

from sterna.hw.layers.layer_unit import LayerUnitParams
from sterna.hw.layers.matrix_unit import MatrixUnitParams
from sterna.hw.layers.vectors import WEIGHTS_FILE
from sterna.model.layers import Layer

__all__ = ["layer_sections", "layer_summary", "matrix_sections", "matrix_summary"]

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
