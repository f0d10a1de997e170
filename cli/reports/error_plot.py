"""Rounding errors of the integers, layer by layer: a drawing and a table for a page."""

from __future__ import annotations

from collections.abc import Sequence

from sterna.cli.reports.page import html_figure
from sterna.cli.reports.vector import GREY, PALETTE, drawing, finish, svg_of
from sterna.cli.terminal.tables import Table
from sterna.export.float.reference import TensorError

__all__ = ["error_html"]

_PARTS = {"mlgru.h": "state of the MLGRU", "mlgru.x": "residual stream after the MLGRU",
          "glu.p": "product of the GLU", "glu.x": "residual stream after the GLU"}
_TEXT = (
    "The relative error of a tensor is the root mean square of the difference between the "
    "integers and the float64 computation of the same quantised weights without rounding of "
    "activations, over that of the float64 values; the errors of the layers before it are in it.")


def error_html(errors: Sequence[TensorError], tokens: int) -> str:
    """The errors of every layer as a drawing, and as a table with saturation."""
    caption = f"{_TEXT} Over {tokens:,} tokens of the held-out text."
    rows = [(each.name, f"{each.relative:.2%}", f"{each.saturated:.3%}" if each.saturated else "0",
             each.values)
            for each in errors]
    table = Table(None, ("tensor", "relative error", "saturated", "values"), rows)
    return html_figure(_plot(errors), caption) + table.html()


def _plot(errors: Sequence[TensorError]) -> str:
    by_part: dict[str, list[float]] = {part: [] for part in _PARTS}
    logits = 0.0
    for each in errors:
        if each.name == "logits":
            logits = each.relative
        else:
            by_part[each.name.partition(".")[2]].append(100 * each.relative)
    layers = len(by_part["glu.x"])
    with drawing(9, 3.0) as figure:
        axes = figure.add_subplot()
        for (part, values), colour in zip(by_part.items(), PALETTE, strict=False):
            axes.plot(range(layers), values, "o-", color=colour, label=_PARTS[part], ms=5)
        axes.plot([layers], [100 * logits], "D", color=GREY, label="logits", ms=6)
        axes.set_xticks(range(layers + 1), [*(f"layer {each}" for each in range(layers)), "head"])
        axes.set_ylim(0, None)
        axes.set_xlim(-0.3, layers + 0.3)
        finish(axes, "", "relative error, %")
        figure.legend(loc="outside upper left", ncols=3)
        return svg_of(figure, "errors", "relative error of each layer against real numbers")
