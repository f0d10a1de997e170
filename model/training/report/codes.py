"""Shares of ternary codes by projection and step: a CSV file while a run goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sterna.model.training.report.csv_rows import csv_text, read_rows
from sterna.model.training.report.step_file import StepFile

__all__ = ["CodeShares", "CodesWriter", "read_codes"]

_COLUMNS = ("step", "projection", "flips", "zeros")


@dataclass(frozen=True, slots=True)
class CodeShares:
    """Of the codes of a matrix: the share that one step changed, and the share that is zero."""

    flips: float
    zeros: float


class CodesWriter(StepFile):
    """A ``codes.csv``: at some steps, a row for each projection."""

    head = csv_text([_COLUMNS])

    @staticmethod
    def entries(path: Path) -> Iterable[tuple[int, str]]:
        """Step and rows of every entry of such a file; ValueError as of :func:`read_codes`."""
        return [(step, _rows(step, shares)) for step, shares in read_codes(path).items()]

    def add(self, step: int, shares: Mapping[str, CodeShares]) -> None:
        """Append the shares of a step, by projection; at once on disk."""
        self.append(_rows(step, shares))


def _rows(step: int, shares: Mapping[str, CodeShares]) -> str:
    return csv_text((step, name, f"{each.flips:.6g}", f"{each.zeros:.5f}")
                    for name, each in shares.items())


def read_codes(path: str | Path) -> dict[int, dict[str, CodeShares]]:
    """Return the rows of a ``codes.csv`` by step and projection.

    Raises
    ------
    ValueError
        If the file cannot be read, or a row is not one of such a file. The last may be cut off.
    """
    found: dict[int, dict[str, CodeShares]] = {}
    for place, row in read_rows(path, _COLUMNS):
        step, name, flips, zeros = row
        try:
            found.setdefault(int(step), {})[name] = CodeShares(float(flips), float(zeros))
        except ValueError as error:
            raise ValueError(f"{place}: {row} is no row of {', '.join(_COLUMNS)}") from error
    return found
