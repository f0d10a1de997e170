"""Conversion between values by field name and stream words; comparison of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sterna.hw.emit.payloads import Fields, pack_words, read_field

__all__ = ["Values", "check", "read_words", "words_of"]


def check(name: str, got: Any, expected: Any) -> None:
    """Compare integers, or arrays of them of the same shape, value by value.

    ``name`` is the tensor, for the message: ``layer0.glu.p``. AssertionError if a value differs,
    naming the first one, if the shapes differ, or if there is no value: an empty comparison is not
    a pass.

    >>> check("layer0.glu.p", [1, 2, 4], [1, 2, 3])
    Traceback (most recent call last):
    AssertionError: layer0.glu.p[2]: expected 3, got 4 (1 of 3 values differ)
    """
    ours, theirs = np.asarray(got), np.asarray(expected)
    if ours.shape != theirs.shape:
        raise AssertionError(f"{name}: expected the shape {theirs.shape}, got {ours.shape}")
    if not ours.size:
        raise AssertionError(f"{name}: there is no value to compare")
    wrong = np.argwhere(ours != theirs)
    if len(wrong):
        at = tuple(wrong[0].tolist())
        where = f"[{', '.join(map(str, at))}]" if at else ""
        raise AssertionError(
            f"{name}{where}: expected {theirs[at]}, got {ours[at]} "
            f"({len(wrong)} of {ours.size} values differ)")


Values = Mapping[str, Any]
"""Numbers and arrays by field name."""
_INT64_MAX = np.iinfo(np.int64).max


def words_of(stream: str, fields: Fields, values: Values | Any) -> list[int]:
    """Return the words of a stream for some values.

    ``values`` has a number or an array of integers for each field; it is a bare array if the
    payload is one field without a name. A row ``[n]`` is split into words, the last one padded with
    zeros; an array with the field's dimensions from ``params.json`` is one word, and with an
    additional leading dimension one word per entry. A number is in all words; for ``last``, in the
    last one. ValueError if a field is missing, unknown or of a different length than the others, or
    its values are not integers or do not fit.
    """
    if not isinstance(values, Mapping):
        if list(fields) != [""]:
            raise ValueError(
                f"{stream} takes values by field ({', '.join(fields)}), "
                f"got {type(values).__name__}")
        values = {"": values}
    for what, names in (("has no field", set(values) - set(fields)),
                        ("wants a value for field", set(fields) - set(values))):
        if names:
            raise ValueError(
                f"{stream} {what} {min(names)!r}: its fields are {', '.join(fields)}")
    arrays = {name: _integers(stream, name, value) for name, value in values.items()}
    rows = {name: _rows(stream, fields, name, array)
            for name, array in arrays.items() if array.ndim}
    counts = {name: len(row) for name, row in rows.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"{stream}: the values of all fields must fill the same number of words, got "
            + ", ".join(f"{count} of {name!r}" for name, count in counts.items()))
    count = next(iter(counts.values()), 1)
    for name, array in arrays.items():
        if not array.ndim:
            row = np.full((count, fields[name].elements), array)
            if name == "last":
                row[:-1] = 0
            rows[name] = row
    try:
        return pack_words(fields, rows)
    except ValueError as error:
        raise ValueError(f"{stream}: {error}") from error


def read_words(fields: Fields, words: Sequence[int]) -> Any:
    """Return the values of words by field: int64 ``[words, *dimensions of the field]``.

    A bare array if the payload is one field without a name.
    """
    values = {name: read_field(words, bits).reshape(len(words), *bits.dims)
              for name, bits in fields.items()}
    return values[""] if list(values) == [""] else values


def _integers(stream: str, name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iub" or (array.ndim and not array.size):
        raise ValueError(
            f"{stream}, field {name!r}: expected integers of up to 64 bits, got "
            f"{'none' if not array.size else f'values of type {array.dtype}'}")
    if array.dtype == np.uint64 and array.max() > _INT64_MAX:
        raise ValueError(
            f"{stream}, field {name!r}: expected values up to {_INT64_MAX}, got {array.max()}")
    return array.astype(np.int64)


def _rows(stream: str, fields: Fields, name: str, array: np.ndarray) -> np.ndarray:
    """The elements of an array, word by word; int64 ``[words, elements]``."""
    dims, elements = fields[name].dims, fields[name].elements
    if array.ndim == 1:
        filled = np.zeros(-(-array.size // elements) * elements, dtype=np.int64)
        filled[:array.size] = array
        return filled.reshape(-1, elements)
    if array.shape not in (dims, (len(array), *dims)):
        raise ValueError(
            f"{stream}, field {name!r}: expected a row, or the shape {(*dims,)} or "
            f"{('words', *dims)}, got {array.shape}")
    return array.reshape(-1, elements)
