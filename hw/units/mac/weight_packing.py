"""Packing: ternary matrices into weight words, activations into beats, sums back out.

A *weight word* is the part of a beat that depends on the weights only: the low
``params.word_bits`` bits of the payload of ``beats``. A weight memory holds one word per
beat, in the order required by the array: all beats of the first group of rows, then the
next group. Field offsets follow the Amaranth layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sterna.hw.parts.bits import to_bits, to_ints
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_codes import PAIRS, TRITS

__all__ = ["CODES", "beat_payloads", "pack_projection", "row_codes", "row_trits"]


CODES = {
    ArrayStyle.GENERIC: TRITS, ArrayStyle.ECP5_CHAIN: TRITS, ArrayStyle.XC7_PAIR: PAIRS}
"""The code of each style."""


def row_codes(trits: np.ndarray, style: ArrayStyle) -> np.ndarray:
    """Return the codes of weights ``[..., cols]`` for a row in a beat; uint8.

    Columns are padded with zeros to whole codes.

    >>> row_codes(np.array([1, -1, -1, 1]), ArrayStyle.GENERIC).tolist()
    [1, 3, 3, 1]
    >>> row_codes(np.array([1, 0, -1, 1, 0]), ArrayStyle.XC7_PAIR).tolist()
    [1, 11, 0]
    """
    trits = np.asarray(trits)
    if not np.isin(trits, (-1, 0, 1)).all():
        raise ValueError("weights must be -1, 0 or 1")
    size = len(CODES[style][0])
    places = 3 ** np.arange(size)
    codes = np.zeros(3 ** size, dtype=np.uint8)
    for code, combination in CODES[style].items():
        codes[(np.array(combination) + 1) @ places] = code
    filling = [(0, 0)] * (trits.ndim - 1) + [(0, -trits.shape[-1] % size)]
    padded = np.pad(trits.astype(np.int64), filling).reshape(*trits.shape[:-1], -1, size)
    return codes[(padded + 1) @ places]


def row_trits(codes: np.ndarray, cols: int, style: ArrayStyle) -> np.ndarray:
    """Undo :func:`row_codes`; int8 ``[..., cols]``."""
    combinations = CODES[style]
    codes, size = np.asarray(codes), len(combinations[0])
    if codes.ndim < 1 or codes.shape[-1] != -(-cols // size):
        raise ValueError(f"{cols} columns take {-(-cols // size)} codes, got shape {codes.shape}")
    bad = codes[~np.isin(codes, list(combinations))]
    if bad.size:
        raise ValueError(f"code {bad.flat[0]} is none of {', '.join(map(str, combinations))}")
    trits = np.zeros((max(combinations) + 1, size), dtype=np.int8)
    trits[list(combinations)] = list(combinations.values())
    flat = trits[codes].reshape(*codes.shape[:-1], -1)
    if flat[..., cols:].any():
        raise ValueError("the filling after the last column is not zero")
    return flat[..., :cols]


def pack_projection(weight: np.ndarray, params: MacParams) -> list[int]:
    """Pack a ternary matrix into the weight words of the array.

    There are ``groups(rows) * beats_per_group(columns)`` words. Rows and columns are padded with
    zero weights, which change no sum.

    >>> [hex(word) for word in pack_projection(np.array([[1, -1, -1]]), MacParams(1, 2, 4))]
    ['0x2d', '0x83']
    """
    weight = np.asarray(weight)
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(f"weight must be a matrix, got shape {weight.shape}")
    _check_columns(weight.shape[1], params)
    groups, beats = params.groups(weight.shape[0]), params.beats_per_group(weight.shape[1])
    tiles = np.pad(weight, (
        (0, -weight.shape[0] % params.rows), (0, -weight.shape[1] % params.cols),
    )).reshape(groups, params.rows, beats, params.cols)
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
    padded = np.pad(acts, (0, -acts.size % params.cols)).reshape(beats, params.cols)
    offset = params.beat_layout["acts"].offset
    high = [value << offset for value in to_ints(to_bits(padded, params.act_bits))]
    return [word | high[index % beats] for index, word in enumerate(words)]


def _check_columns(columns: int, params: MacParams) -> None:
    if columns > params.max_columns:
        raise ValueError(
            f"the array takes up to {params.max_columns} columns, the matrix has {columns}")
