"""The figures of a training run: a CSV file while it runs, and reading it back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sterna.model.training.report.csv_rows import csv_text, read_rows
from sterna.model.training.report.step_file import StepFile

__all__ = ["COLUMNS", "MetricsWriter", "read_metrics"]

COLUMNS = ("step", "seconds", "tokens", "train_bpb", "heldout_bpb", "lr", "flips", "zeros",
           "gradient_norm", "skipped")
"""Columns of a ``metrics.csv``; a cell without a figure is empty. Flips are the share of all
ternary codes that this one step changed, zeros the share that is 0 after it. The norm of the
gradient is that before it is clipped; skipped are the steps so far that changed nothing, as
their gradient was not finite."""

_BUNDLED_COLUMNS = COLUMNS[:6]


class MetricsWriter(StepFile):
    """A ``metrics.csv``: at some steps, a row of figures."""

    head = csv_text([COLUMNS])

    @staticmethod
    def entries(path: Path) -> Iterable[tuple[float, str]]:
        """Step and row of every entry of such a file; ValueError as of :func:`read_metrics`."""
        columns = read_metrics(path)
        return [(row[0], csv_text([_cells(dict(zip(COLUMNS, row, strict=True)))]))
                for row in zip(*columns.values(), strict=True)]

    def add(self, row: Mapping[str, float | None]) -> None:
        """Append a row, at once on disk; a figure that is missing, None or NaN leaves its cell
        empty."""
        self.append(csv_text([_cells(row)]))


def _cells(row: Mapping[str, float | None]) -> list[str]:
    formats = {"step": ".0f", "tokens": ".0f", "seconds": ".2f", "lr": ".6g", "flips": ".6g",
               "gradient_norm": ".6g", "skipped": ".0f"}
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
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
    for place, row in read_rows(path, COLUMNS, _BUNDLED_COLUMNS):
        for name, cell in zip(COLUMNS, row, strict=True):
            try:
                columns[name].append(float(cell) if cell else float("nan"))
            except ValueError as error:
                raise ValueError(f"{place}: {name} is not a number: {cell!r}") from error
    return columns
