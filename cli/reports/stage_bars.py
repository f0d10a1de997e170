"""The cycles of each stage as bars, drawn for a page."""

from __future__ import annotations

from sterna.cli.reports.cycle_tables import PARTS, folded_text
from sterna.cli.reports.vector import drawing, svg_of
from sterna.hw.core.timing.cycle_report import CycleReport
from sterna.hw.core.timing.steady_state import fold_stages

__all__ = ["stage_bars"]


def stage_bars(report: CycleReport) -> str:
    """Draw the cycles of each stage as stacked bars, like layers once; return an SVG element."""
    state = report.greedy
    lines = fold_stages(state)
    places = range(len(lines))
    with drawing(9, 1.1 + 0.27 * len(lines)) as figure:
        axes = figure.add_subplot()
        left = [0.0] * len(lines)
        for part in PARTS:
            cycles = [0.0 if line.like is not None else float(part.of_all(state, line.stages))
                      for line in lines]
            if any(cycles):
                axes.barh(places, cycles, left=left, color=part.colour, height=0.7,
                          label=part.meaning)
            left = [before + each for before, each in zip(left, cycles, strict=True)]
        for place, (line, total) in enumerate(zip(lines, left, strict=True)):
            text = f"{total:,.4g}" if total < 1000 else f"{total:,.0f}"
            if line.like is not None:
                all_cycles = float(sum(part.of_all(state, line.stages) for part in PARTS))
                text = f"{folded_text(line)}: {line.layers} × {all_cycles / line.layers:,.5g}"
            axes.annotate(text, (total, place), xytext=(4, 0), va="center",
                          textcoords="offset points",
                          style="italic" if line.like is not None else "normal")
        axes.set_yticks(places, ["" if line.like is not None else line.name for line in lines])
        axes.invert_yaxis()
        axes.margins(y=0.01)
        axes.set_xlim(0, 1.06 * max(left))
        axes.set_xlabel("cycles per token")
        axes.xaxis.set_major_formatter("{x:,.12g}")
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        figure.legend(loc="outside upper left", ncols=3)
        return svg_of(figure, "stages", "cycles of each stage, by what they are")
