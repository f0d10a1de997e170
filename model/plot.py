"""The loss curve of a training run as a picture."""

from __future__ import annotations

import csv
import os
from pathlib import Path

__all__ = ["plot_loss", "read_metrics"]


def read_metrics(path: str | Path) -> dict[str, list[float]]:
    """Return the columns of a ``metrics.csv``; empty cells are NaN.

    Raises
    ------
    ValueError
        If the file cannot be read or a cell is not a number.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ValueError(f"cannot read metrics {path}: {error.strerror}") from error
    columns: dict[str, list[float]] = {}
    for number, row in enumerate(rows, start=2):
        for name, cell in row.items():
            try:
                columns.setdefault(name, []).append(float(cell) if cell else float("nan"))
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {number}: {name} is not a number: {cell!r}") from error
    return columns


def plot_loss(metrics_path: str | Path, image_path: str | Path, *, title: str) -> None:
    """Draw training and held-out bits per byte against tokens; write a PNG.

    The picture is drawn without a display, to a temporary file first.

    Raises
    ------
    ValueError
        If the metrics cannot be read.
    OSError
        If the picture cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = read_metrics(metrics_path)
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if columns:
        millions = [tokens / 1e6 for tokens in columns["tokens"]]
        axes.plot(millions, columns["train_bpb"], color="#9bb8d3", label="training")
        held = [(x, y) for x, y in zip(millions, columns["heldout_bpb"], strict=True) if y == y]
        if held:
            axes.plot(*zip(*held, strict=True), "o-", color="#c44e52", ms=4,
                      label=f"held-out, last {held[-1][1]:.3f}")
        axes.legend()
    axes.set(xlabel="million tokens", ylabel="bits per byte", title=title)
    axes.grid(alpha=0.3)
    image_path = Path(image_path)
    temporary = image_path.with_name(image_path.name + ".tmp")
    try:
        figure.savefig(temporary, format="png")
        os.replace(temporary, image_path)
    finally:
        temporary.unlink(missing_ok=True)
