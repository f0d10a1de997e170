"""Packing: ternary matrices into weight words, activations into beats, sums back out.

A *weight word* is the part of a beat that depends on the weights only: the low
``params.word_bits`` bits of the payload of ``beats``. A weight memory holds one word per
beat, in the order in which the array takes them: all beats of the first group of rows,
then the next group. Offsets of fields come from the Amaranth layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sterna.hw.parts.bits import from_ints, signed_elements, to_bits, to_ints
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_codes import (
    from_codes,
    from_relative,
    missing_ones,
    pack_pairs,
    pack_triples,
    to_codes,
    to_relative,
    unpack_pairs,
    unpack_triples,
)

__all__ = [
    "beat_payloads", "pack_projection", "row_codes", "row_starts", "row_trits", "sum_values"]


def row_codes(trits: np.ndarray, style: ArrayStyle) -> np.ndarray:
    """Return the codes of weights ``[..., cols]``, as a row takes them in a beat; uint8.

    >>> row_codes(np.array([1, -1, -1, 1]), ArrayStyle.GENERIC).tolist()
    [1, 3, 3, 1]
    >>> row_codes(np.array([1, -1, -1, 1]), ArrayStyle.ECP5_TABLE).tolist()
    [26, 1]
    """
    match style:
        case ArrayStyle.XC7_PAIR:
            return pack_pairs(trits)
        case ArrayStyle.XC7_TABLE:
            return pack_triples(trits)
        case ArrayStyle.ECP5_TABLE:
            return to_relative(pack_triples(trits))
    return to_codes(trits)


def row_trits(codes: np.ndarray, cols: int, style: ArrayStyle) -> np.ndarray:
    """Undo :func:`row_codes`; int8 ``[..., cols]``."""
    match style:
        case ArrayStyle.XC7_PAIR:
            return unpack_pairs(codes, cols)
        case ArrayStyle.XC7_TABLE:
            return unpack_triples(codes, cols)
        case ArrayStyle.ECP5_TABLE:
            return unpack_triples(from_relative(codes), cols)
    return from_codes(codes)


def row_starts(trits: np.ndarray, style: ArrayStyle) -> np.ndarray:
    """Return the start values of rows ``[..., beats, cols]``, what complements lack; int64."""
    match style:
        case ArrayStyle.XC7_TABLE:
            return np.zeros(trits.shape[:-2], dtype=np.int64)
        case ArrayStyle.ECP5_TABLE:
            return missing_ones(row_codes(trits, style)).sum(axis=-1)
    return (np.asarray(trits) == -1).sum(axis=(-2, -1))


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
    starts = np.zeros((groups, beats, params.rows), dtype=np.int64)
    starts[:, 0] = row_starts(tiles, params.style)
    last = np.zeros((groups, beats, 1), dtype=np.int64)
    last[:, -1] = 1
    # A vector that takes one beat stays where it is for all groups of rows.
    fresh = np.full((groups, beats, 1), beats > 1)
    fresh[0, 0] = True

    fields = {
        params.weight_name: (
            row_codes(tiles.transpose(0, 2, 1, 3), params.style), params.code_bits),
        params.start_name: (starts, params.start_shape.width),
        "last": (last, 1),
        "fresh": (fresh, 1),
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


def sum_values(payloads: Sequence[int], params: MacParams) -> np.ndarray:
    """Return the sums in payloads of ``sums``; int64 ``[payloads, rows]``.

    Those of a whole matrix are its product, after ``.reshape(-1)[:matrix_rows]``.
    """
    bits = from_ints(payloads, 0, params.rows * params.sum_bits)
    return signed_elements(bits, params.sum_bits)


def _check_columns(columns: int, params: MacParams) -> None:
    if columns > params.max_columns:
        raise ValueError(
            f"the array takes up to {params.max_columns} columns, the matrix has {columns}")
