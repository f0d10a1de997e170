"""The loss curve of a training run, whose scale one spike does not ruin."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sterna.model.files import write_atomically
from sterna.model.training.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_loss", "loss_limits", "plot_loss"]

_NAMED = 6
"""How many spikes are given with their values: the largest."""


def plot_loss(metrics_path: str | Path, image_path: str | Path, *, title: str) -> None:
    """Write :func:`draw_loss` to a file."""
    write_atomically(Path(image_path), _picture(metrics_path, title=title))


def _picture(metrics_path: str | Path, *, title: str) -> bytes:
    """The same as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    draw_loss(figure, metrics_path, title=title)
    picture = io.BytesIO()
    canvas.print_png(picture)
    return picture.getvalue()


def draw_loss(figure: Figure, metrics_path: str | Path, *, title: str = "") -> None:
    """Draw training and held-out bits per byte against the bytes trained on.

    The scale is that of :func:`loss_limits`. What is beyond it is marked at the edge, with
    the value of its peak.
    """
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
    """Return bottom and top of the scale for losses, in which NaN and infinity do not count.

    The 5th and the 95th percentile and once their distance on either side, or the extremes
    where these are nearer; and a margin.

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
    """Where the largest value of each run above the scale is."""
    runs = itertools.groupby(range(len(values)), key=lambda at: values[at] > top)
    return [max(run, key=lambda at: values[at]) for above, run in runs if above]
