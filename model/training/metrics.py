"""The figures of a training run in CSV files that grow while it goes on, and reading them back:
losses in ``metrics.csv``, shares of ternary codes in ``codes.csv``. Without torch.
"""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sterna.model.files import read_text, write_atomically

__all__ = [
    "COLUMNS", "CodeShares", "CodesWriter", "MetricsWriter", "StepFile", "read_codes",
    "read_metrics",
]


def _csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines of a CSV file.

    >>> _csv_text([("step", "lr"), (10, 0.5)])
    'step,lr\\r\\n10,0.5\\r\\n'
    """
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _read_rows(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows below the header of a CSV file, each after its place: ``x.csv, line 2``.

    A last line without an end is left out: a run was killed while it wrote that.
    """
    text = read_text(path, at_least=0).decode()
    lines = io.StringIO(text[:text.rfind("\n") + 1], newline="")
    try:
        header, *rows = [*csv.reader(lines)] or [[]]
    except csv.Error as error:
        raise ValueError(f"{path}: not a CSV file ({error})") from error
    if header != [*columns]:
        raise ValueError(f"{path}: the columns must be {', '.join(columns)}, got {header}")
    for number, row in enumerate(rows, start=2):
        place = f"{path}, line {number}"
        if len(row) != len(header):
            raise ValueError(f"{place}: expected {len(header)} cells, got {len(row)}")
        yield place, row


class StepFile(ABC):
    """A file of entries, each of a step, in the order of the steps; a subclass says what an entry
    is.

    A resumed run repeats the steps after its checkpoint, so entries up to ``resume_step`` are kept.
    """

    head = ""
    """What the file begins with."""

    def __init__(self, path: str | Path, resume_step: int = 0) -> None:
        path = Path(path)
        kept = [text for step, text in self.entries(path)
                if step <= resume_step] if resume_step and path.exists() else []
        write_atomically(path, self.head + "".join(kept))
        self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115  (until close())

    @staticmethod
    @abstractmethod
    def entries(path: Path) -> Iterable[tuple[float, str]]:
        """Step and text of every entry of such a file; ValueError if it cannot be read."""

    def append(self, text: str) -> None:
        """Append the text of an entry; at once on disk."""
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


COLUMNS = ("step", "seconds", "tokens", "train_bpb", "heldout_bpb", "lr", "flips", "zeros",
           "gradient_norm", "skipped")
"""Columns of a ``metrics.csv``; a cell without a figure is empty. Flips are the share of all
ternary codes that this one step changed, zeros the share that is 0 after it. The norm of the
gradient is that before it is clipped; skipped are the steps so far that changed nothing, as
their gradient was not finite."""


class MetricsWriter(StepFile):
    """A ``metrics.csv``: at some steps, a row of figures."""

    head = _csv_text([COLUMNS])

    @staticmethod
    def entries(path: Path) -> Iterable[tuple[float, str]]:
        """Step and row of every entry of such a file; ValueError as of :func:`read_metrics`."""
        columns = read_metrics(path)
        return [(row[0], _csv_text([_cells(dict(zip(COLUMNS, row, strict=True)))]))
                for row in zip(*columns.values(), strict=True)]

    def add(self, row: Mapping[str, float | None]) -> None:
        """Append a row, at once on disk; a figure that is missing, None or NaN leaves its cell
        empty."""
        self.append(_csv_text([_cells(row)]))


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
    """Return the columns of a ``metrics.csv``; empty cells are NaN."""
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
    for place, row in _read_rows(path, COLUMNS):
        for name, cell in zip(COLUMNS, row, strict=True):
            try:
                columns[name].append(float(cell) if cell else float("nan"))
            except ValueError as error:
                raise ValueError(f"{place}: {name} is not a number: {cell!r}") from error
    return columns


_COLUMNS = ("step", "projection", "flips", "zeros")


@dataclass(frozen=True, slots=True)
class CodeShares:
    """Of the codes of a matrix: the share that one step changed, and the share that is zero."""

    flips: float
    zeros: float


class CodesWriter(StepFile):
    """A ``codes.csv``: at some steps, a row for each projection."""

    head = _csv_text([_COLUMNS])

    @staticmethod
    def entries(path: Path) -> Iterable[tuple[int, str]]:
        """Step and rows of every entry of such a file; ValueError as of :func:`read_codes`."""
        return [(step, _rows(step, shares)) for step, shares in read_codes(path).items()]

    def add(self, step: int, shares: Mapping[str, CodeShares]) -> None:
        """Append the shares of a step, by projection; at once on disk."""
        self.append(_rows(step, shares))


def _rows(step: int, shares: Mapping[str, CodeShares]) -> str:
    return _csv_text((step, name, f"{each.flips:.6g}", f"{each.zeros:.5f}")
                    for name, each in shares.items())


def read_codes(path: str | Path) -> dict[int, dict[str, CodeShares]]:
    """Return the rows of a ``codes.csv`` by step and projection."""
    found: dict[int, dict[str, CodeShares]] = {}
    for place, row in _read_rows(path, _COLUMNS):
        step, name, flips, zeros = row
        try:
            found.setdefault(int(step), {})[name] = CodeShares(float(flips), float(zeros))
        except ValueError as error:
            raise ValueError(f"{place}: {row} is no row of {', '.join(_COLUMNS)}") from error
    return found
