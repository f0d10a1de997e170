"""Drawings of a training run for its page: losses, learning rate, ternary codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sterna.cli.reports.vector import GREY, PALETTE, drawing, svg_of
from sterna.model.training.loss_plot import loss_limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["codes_plot", "loss_plot", "rate_plot"]

_Columns = Mapping[str, Sequence[float]]


def loss_plot(columns: _Columns) -> str:
    """Training and held-out bits per byte by step."""
    with drawing(9, 3.4) as figure:
        axes = figure.add_subplot()
        axes.plot(columns["step"], columns["train_bpb"], color=PALETTE[0], label="training")
        _points(axes, columns, "heldout_bpb", "held-out", PALETTE[3], "o-")
        axes.set_ylim(*loss_limits([*columns["train_bpb"], *columns["heldout_bpb"]]))
        _finish(axes, "bits per byte")
        figure.legend(loc="outside upper left", ncols=2)
        return svg_of(figure, "loss", "training and held-out bits per byte by step")


def rate_plot(columns: _Columns) -> str:
    """The learning rate by step."""
    with drawing(9, 1.8) as figure:
        axes = figure.add_subplot()
        axes.plot(columns["step"], columns["lr"], color=PALETTE[2])
        axes.set_ylim(0, None)
        _finish(axes, "learning rate")
        return svg_of(figure, "rate", "learning rate by step")


def codes_plot(columns: _Columns) -> str:
    """Shares of codes that a step changes, and of codes that are zero, by step."""
    with drawing(9, 3.2) as figure:
        upper, lower = figure.subplots(2, sharex=True)
        _points(upper, columns, "flips", "changed by a step", PALETTE[1], "-")
        upper.set_yscale("log")
        _points(lower, columns, "zeros", "zero", PALETTE[4], "-")
        _finish(upper, "changed by a step")
        _finish(lower, "zero")
        upper.set_xlabel("")
        return svg_of(figure, "codes", "shares of ternary codes that change and are zero, by step")


def _points(
    axes: Axes, columns: _Columns, name: str, label: str, colour: str, style: str,
) -> None:
    known = [(step, value) for step, value in zip(columns["step"], columns[name], strict=True)
             if value == value and (name != "flips" or value > 0)]
    axes.plot([step for step, _ in known], [value for _, value in known], style, color=colour,
              label=label, ms=4)


def _finish(axes: Axes, label: str) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.grid(axis="y", color=GREY, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
