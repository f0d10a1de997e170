"""Shares of ternary codes by projection and step: a CSV file while a run goes on."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sterna.model.files import write_atomically

__all__ = ["CodeShares", "CodesWriter", "read_codes"]

_COLUMNS = ("step", "projection", "flips", "zeros")


@dataclass(frozen=True, slots=True)
class CodeShares:
    """Of the codes of a matrix: the share that one step changed, and the share that is zero."""

    flips: float
    zeros: float


class CodesWriter:
    """Appends to a ``codes.csv``: a row for each projection.

    Parameters
    ----------
    path
        The file; replaced, unless a run is resumed.
    resume_step
        Rows up to this step are kept.
    """

    def __init__(self, path: str | Path, resume_step: int = 0) -> None:
        path = Path(path)
        kept = {step: shares for step, shares in read_codes(path).items()
                if step <= resume_step} if resume_step and path.exists() else {}
        head = io.StringIO(newline="")
        csv.writer(head).writerow(_COLUMNS)
        for step, shares in kept.items():
            csv.writer(head).writerows(_rows(step, shares))
        write_atomically(path, head.getvalue())
        self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115

    def add(self, step: int, shares: Mapping[str, CodeShares]) -> None:
        """Append the shares of a step, by projection; at once on disk."""
        csv.writer(self._file).writerows(_rows(step, shares))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _rows(step: int, shares: Mapping[str, CodeShares]) -> list[tuple[object, ...]]:
    return [(step, name, f"{each.flips:.6g}", f"{each.zeros:.5f}")
            for name, each in shares.items()]


def read_codes(path: str | Path) -> dict[int, dict[str, CodeShares]]:
    """Return the rows of a ``codes.csv`` by step and projection.

    Raises
    ------
    ValueError
        If the file cannot be read, or a row is not one of such a file. The last may be cut off.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except OSError as error:
        raise ValueError(f"{path}: cannot read the codes ({error.strerror})") from error
    if tuple(header) != _COLUMNS:
        raise ValueError(f"{path}: the columns must be {', '.join(_COLUMNS)}, got {header}")
    found: dict[int, dict[str, CodeShares]] = {}
    for number, row in enumerate(rows, start=2):
        if len(row) != len(_COLUMNS) and number == len(rows) + 1:
            break       # a run was killed while it wrote
        try:
            step, name, flips, zeros = row
            found.setdefault(int(step), {})[name] = CodeShares(float(flips), float(zeros))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {row} is no row of {_COLUMNS}") from error
    return found
