"""CSV files of a training run, written as it goes, and the plot of its loss: losses in
``metrics.csv``, shares of ternary codes in ``codes.csv``. Without torch.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sterna.model.files import read_text, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "COLUMNS", "CodeShares", "CodesWriter", "MetricsWriter", "StepFile", "draw_loss",
    "loss_limits", "plot_loss", "read_codes", "read_metrics",
]


def _csv_text(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _read_rows(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The rows below the header of a CSV file, each after its location (``x.csv, line 2``); skips
    an unterminated last line, left by a killed run."""
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


class StepFile:
    """A file of entries in step order, each beginning with its step.

    A resumed run repeats the steps after its checkpoint, so entries up to ``resume_step`` are kept.
    """

    head = ""                                       # start of the file
    entry = re.compile(r"^(\d+),.*\n", re.M)        # its step is the first group

    def __init__(self, path: str | Path, resume_step: int = 0) -> None:
        path, kept = Path(path), ""
        if resume_step and path.exists():
            text = read_text(path, at_least=0).decode()
            if not text.startswith(self.head):
                raise ValueError(f"{path}: the columns must be {self.head.strip()}, got "
                                 f"{text[:80].splitlines()[:1]}")
            kept = "".join(found[0] for found in self.entry.finditer(text)
                           if int(found[1]) <= resume_step)
        write_atomically(path, self.head + kept)
        self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115  (until close())

    def append(self, text: str) -> None:
        """Append the text of an entry and flush it."""
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


_FORMATS = {"step": ".0f", "seconds": ".2f", "tokens": ".0f", "train_bpb": ".5f",
            "heldout_bpb": ".5f", "lr": ".6g", "flips": ".6g", "zeros": ".5f",
            "gradient_norm": ".6g", "skipped": ".0f"}
COLUMNS = tuple(_FORMATS)
"""Columns of a ``metrics.csv``; missing figures are empty cells. Flips are the share of all ternary
codes that this one step changed, zeros the share that is 0 after it. The gradient norm is that
before clipping; skipped counts the steps so far that changed nothing, as their gradient was not
finite."""


class MetricsWriter(StepFile):
    """A ``metrics.csv``: a row of figures for some steps."""

    head = _csv_text([COLUMNS])

    def add(self, row: Mapping[str, float | None]) -> None:
        """Append a row; missing, None and NaN become empty cells."""
        figures = ((row.get(name), form) for name, form in _FORMATS.items())
        self.append(_csv_text([["" if value is None or value != value else format(value, form)
                                for value, form in figures]]))


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


_CODES_COLUMNS = ("step", "projection", "flips", "zeros")


@dataclass(frozen=True, slots=True)
class CodeShares:
    """Shares of a matrix's codes: changed by one step, and zero."""

    flips: float
    zeros: float


class CodesWriter(StepFile):
    """A ``codes.csv``: a row per projection for some steps."""

    head = _csv_text([_CODES_COLUMNS])

    def add(self, step: int, shares: Mapping[str, CodeShares]) -> None:
        """Append the shares of a step, by projection."""
        self.append(_csv_text((step, name, f"{each.flips:.6g}", f"{each.zeros:.5f}")
                              for name, each in shares.items()))


def read_codes(path: str | Path) -> dict[int, dict[str, CodeShares]]:
    """Return the rows of a ``codes.csv`` by step and projection."""
    found: dict[int, dict[str, CodeShares]] = {}
    for place, row in _read_rows(path, _CODES_COLUMNS):
        step, name, flips, zeros = row
        try:
            found.setdefault(int(step), {})[name] = CodeShares(float(flips), float(zeros))
        except ValueError as error:
            raise ValueError(f"{place}: {row} is no row of {', '.join(_CODES_COLUMNS)}") from error
    return found


_NAMED = 6      # largest spikes labelled with their values


def plot_loss(metrics_path: str | Path, image_path: str | Path, *, title: str) -> None:
    """Write :func:`draw_loss` to a file, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    draw_loss(figure, metrics_path, title=title)
    picture = io.BytesIO()
    canvas.print_png(picture)
    write_atomically(Path(image_path), picture.getvalue())


def draw_loss(figure: Figure, metrics_path: str | Path, *, title: str = "") -> None:
    """Draw training and held-out bits per byte against the bytes trained on, in the scale of
    :func:`loss_limits`; values beyond it are marked at the edge, with their peak."""
    columns = read_metrics(metrics_path)
    millions = [tokens / 1e6 for tokens in columns["tokens"]]
    axes = figure.add_subplot()
    axes.plot(millions, columns["train_bpb"], color="#6f9fce", label="training")
    held = [(x, y) for x, y in zip(millions, columns["heldout_bpb"], strict=True) if y == y]
    if held:
        axes.plot([x for x, _ in held], [y for _, y in held], "o-", color="#d1495b", ms=4,
                  label=f"held-out, last {held[-1][1]:.3f}")
    bottom, top = loss_limits([*columns["train_bpb"], *(y for _, y in held)])
    axes.set_ylim(bottom, top)
    peaks = _peaks(columns["train_bpb"], top)
    named = set(sorted(peaks, key=lambda at: -columns["train_bpb"][at])[:_NAMED])
    for at in peaks:
        axes.plot([millions[at]], [top], "^", color="#6f9fce", ms=7, clip_on=False)
        if at in named:
            axes.annotate(f"{columns['train_bpb'][at]:.2f}", (millions[at], top), xytext=(0, 5),
                          textcoords="offset points", ha="center")
    axes.legend()
    axes.set(xlabel="million bytes trained on", ylabel="bits per byte")
    # Above the values at the edge, if there are any.
    axes.set_title(title, parse_math=False, pad=18 if named else None)
    axes.grid(alpha=0.3)


def loss_limits(values: Sequence[float]) -> tuple[float, float]:
    """Bottom and top of the loss scale: the 5th and 95th percentiles widened on both sides by their
    distance, or the extremes if these are nearer, plus a margin.

    >>> loss_limits([2.0, 1.0] * 20 + [50.0])
    (0.88, 3.12)
    """
    known = np.asarray([value for value in values if np.isfinite(value)])
    if known.size == 0:
        return 0.0, 1.0
    low, high = np.percentile(known, [5, 95])
    bottom = max(float(known.min()), float(2 * low - high))
    top = min(float(known.max()), float(2 * high - low))
    margin = 0.06 * (top - bottom) or 0.5
    return round(bottom - margin, 6), round(top + margin, 6)


def _peaks(values: Sequence[float], top: float) -> list[int]:
    """Index of the largest value of each run above the scale."""
    runs = itertools.groupby(range(len(values)), key=lambda at: values[at] > top)
    return [max(run, key=lambda at: values[at]) for above, run in runs if above]
