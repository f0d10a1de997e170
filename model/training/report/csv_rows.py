"""Rows of the CSV files that a run leaves: their text, and reading them back."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sterna.model.files import read_text

__all__ = ["csv_text", "read_rows"]


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines of a CSV file.

    >>> csv_text([("step", "lr"), (10, 0.5)])
    'step,lr\\r\\n10,0.5\\r\\n'
    """
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def read_rows(path: str | Path, *headers: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows below the header of a CSV file, each after its place: ``x.csv, line 2``.

    A last line without an end is left out: a run was killed while it wrote that.

    Parameters
    ----------
    path
        The file.
    headers
        What its first line may be: the columns, and those of files of older versions, which have
        only the first of them. Their rows are filled up with empty cells.

    Raises
    ------
    ValueError
        If the file cannot be read, is not UTF-8, or has another header or a row of another length.
    """
    columns = headers[0]
    text = read_text(path, at_least=0).decode()
    lines = io.StringIO(text[:text.rfind("\n") + 1], newline="")
    try:
        header, *rows = [*csv.reader(lines)] or [[]]
    except csv.Error as error:
        raise ValueError(f"{path}: not a CSV file ({error})") from error
    if tuple(header) not in headers:
        raise ValueError(f"{path}: the columns must be {', '.join(columns)}, got {header}")
    for number, row in enumerate(rows, start=2):
        place = f"{path}, line {number}"
        if len(row) != len(header):
            raise ValueError(f"{place}: expected {len(header)} cells, got {len(row)}")
        yield place, row + [""] * (len(columns) - len(row))
