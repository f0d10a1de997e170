"""The figures of a training run: a CSV file while it runs, and reading it back."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from sterna.model.files import write_atomically

__all__ = ["COLUMNS", "MetricsWriter", "read_metrics"]

COLUMNS = ("step", "seconds", "tokens", "train_bpb", "heldout_bpb", "lr", "flips", "zeros")
"""Columns of a ``metrics.csv``; a cell without a figure is empty. Flips are the share of all
ternary codes that this one step changed, zeros the share that is 0 after it."""

_FORMER_COLUMNS = COLUMNS[:6]


class MetricsWriter:
    """Appends rows to a ``metrics.csv``, each at once on disk.

    Parameters
    ----------
    path
        The file; replaced, unless a run is resumed.
    resume_step
        Rows up to this step are kept: a resumed run repeats those after its checkpoint.
    """

    def __init__(self, path: str | Path, resume_step: int = 0) -> None:
        path = Path(path)
        kept: list[dict[str, float]] = []
        if resume_step and path.exists():
            columns = read_metrics(path)
            rows = zip(*(columns[name] for name in COLUMNS), strict=True) if columns else ()
            kept = [dict(zip(COLUMNS, row, strict=True)) for row in rows
                    if row[0] <= resume_step]
        head = io.StringIO(newline="")
        csv.writer(head).writerow(COLUMNS)
        csv.writer(head).writerows(_cells(row) for row in kept)
        write_atomically(path, head.getvalue())
        self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115

    def add(self, row: Mapping[str, float | None]) -> None:
        """Append one row; a figure that is missing, None or NaN leaves its cell empty."""
        csv.writer(self._file).writerow(_cells(row))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _cells(row: Mapping[str, float | None]) -> list[str]:
    formats = {"step": ".0f", "tokens": ".0f", "seconds": ".2f", "lr": ".6g", "flips": ".6g"}
    cells = []
    for name in COLUMNS:
        value = row.get(name)
        known = value is not None and value == value
        cells.append(format(value, formats.get(name, ".5f")) if known else "")
    return cells


def read_metrics(path: str | Path) -> dict[str, list[float]]:
    """Return the columns of a ``metrics.csv``; empty cells are NaN, and so are columns that files
    did not have when they were written.

    Raises
    ------
    ValueError
        If the file cannot be read, lacks a column, or a cell is not a number.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            rows = list(reader)
    except OSError as error:
        raise ValueError(f"{path}: cannot read the metrics ({error.strerror})") from error
    if tuple(header) not in (COLUMNS, _FORMER_COLUMNS):
        raise ValueError(f"{path}: the columns must be {', '.join(COLUMNS)}, got {header}")
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            # A run that was killed may leave half a line behind; only the last can be.
            if number == len(rows) + 1:
                break
            raise ValueError(
                f"{path}, line {number}: expected {len(header)} cells, got {len(row)}")
        row += [""] * (len(COLUMNS) - len(row))
        for name, cell in zip(COLUMNS, row, strict=True):
            try:
                columns[name].append(float(cell) if cell else float("nan"))
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {number}: {name} is not a number: {cell!r}") from error
    return columns
