"""Packing: ternary matrices into weight words, activations into beats, sums back out.

A *weight word* is the part of a beat that depends on the weights only: the low
``params.word_bits`` bits of the payload of ``beats``. A weight memory holds one word per
beat, in the order in which the array takes them: all beats of the first group of rows,
then the next group. Offsets of fields come from the Amaranth layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sterna.hw.parts.bits import to_bits, to_ints
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_codes import PAIRS, TRITS, pack, unpack

__all__ = ["CODES", "beat_payloads", "pack_projection", "row_codes", "row_trits"]


CODES = {
    ArrayStyle.GENERIC: TRITS, ArrayStyle.ECP5_CHAIN: TRITS, ArrayStyle.XC7_PAIR: PAIRS}
"""The code of each style."""


def row_codes(trits: np.ndarray, style: ArrayStyle) -> np.ndarray:
    """Return the codes of weights ``[..., cols]``, as a row takes them in a beat; uint8.

    >>> row_codes(np.array([1, -1, -1, 1]), ArrayStyle.GENERIC).tolist()
    [1, 3, 3, 1]
    """
    return pack(trits, CODES[style])


def row_trits(codes: np.ndarray, cols: int, style: ArrayStyle) -> np.ndarray:
    """Undo :func:`row_codes`; int8 ``[..., cols]``."""
    return unpack(codes, cols, CODES[style])


def pack_projection(weight: np.ndarray, params: MacParams) -> list[int]:
    """Pack a ternary matrix into the weight words of the array.

    They are ``groups(rows) * beats_per_group(columns)``. Rows and columns are filled up with zero
    weights, which change no sum.

    >>> [hex(word) for word in pack_projection(np.array([[1, -1, -1]]), MacParams(1, 2, 4))]
    ['0x2d', '0x83']
    """
    weight = np.asarray(weight)
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(f"weight must be a matrix, got shape {weight.shape}")
    _check_columns(weight.shape[1], params)
    groups, beats = params.groups(weight.shape[0]), params.beats_per_group(weight.shape[1])
    padded = np.zeros((groups * params.rows, beats * params.cols), dtype=np.int8)
    padded[:weight.shape[0], :weight.shape[1]] = weight
    tiles = padded.reshape(groups, params.rows, beats, params.cols)
    counts = np.zeros((groups, beats, params.rows), dtype=np.int64)
    counts[:, 0] = (tiles == -1).sum(axis=(-2, -1))
    last = np.zeros((groups, beats, 1), dtype=np.int64)
    last[:, -1] = 1
    fields = {
        "weights": (row_codes(tiles.transpose(0, 2, 1, 3), params.style), params.code_bits),
        "minus_counts": (counts, params.count_bits),
        "last": (last, 1),
    }
    layout = params.beat_layout
    bits = np.zeros((groups * beats, params.word_bits), dtype=np.uint8)
    for name in [name for name in layout.members if name != "acts"]:
        values, width = fields[name]
        field = to_bits(values.reshape(groups * beats, -1), width)
        offset = layout[name].offset
        bits[:, offset:offset + field.shape[1]] = field
    return to_ints(bits)


def beat_payloads(
    words: Sequence[int], acts: np.ndarray, params: MacParams,
) -> list[int]:
    """Return the payloads of ``beats`` that multiply packed rows with activations."""
    acts = np.asarray(acts)
    limit = 1 << (params.act_bits - 1)
    if acts.ndim != 1 or not acts.size:
        raise ValueError(f"acts must be a vector, got shape {acts.shape}")
    _check_columns(acts.size, params)
    if acts.min() < -limit or acts.max() >= limit:
        raise ValueError(
            f"acts must be from {-limit} to {limit - 1}, got {acts.min()} to {acts.max()}")
    beats = params.beats_per_group(acts.size)
    if len(words) % beats:
        raise ValueError(
            f"{acts.size} activations take {beats} beats per group, and {len(words)} words "
            f"are not whole groups")
    padded = np.zeros((beats, params.cols), dtype=np.int64)
    padded.reshape(-1)[:acts.size] = acts
    offset = params.beat_layout["acts"].offset
    high = [value << offset for value in to_ints(to_bits(padded, params.act_bits))]
    return [word | high[index % beats] for index, word in enumerate(words)]


def _check_columns(columns: int, params: MacParams) -> None:
    if columns > params.max_columns:
        raise ValueError(
            f"the array takes up to {params.max_columns} columns, the matrix has {columns}")
