"""The area of each block as bars, drawn for a page and as a file of its own."""

from __future__ import annotations

from sterna.cli.reports.vector import PALETTE, drawing, svg_of
from sterna.hw.flow.synth_report import SynthReport

__all__ = ["area_plot"]

_COLUMNS = (("LUT", "lut", PALETTE[0]), ("FF", "ff", PALETTE[6]),
            ("block RAM", "block_ram", PALETTE[1]), ("DSP", "dsp", PALETTE[3]))


def area_plot(report: SynthReport) -> str:
    """Draw the area of each block, a column for each resource; return an SVG element."""
    parts = dict(sorted(report.parts.items(), key=lambda item: (-item[1].lut, item[0])))
    shown = [each for each in _COLUMNS if any(getattr(area, each[1]) for area in parts.values())]
    with drawing(9, 1.0 + 0.26 * len(parts)) as figure:
        columns = figure.subplots(1, max(len(shown), 1), sharey=True, squeeze=False)[0]
        for axes, (title, attribute, colour) in zip(columns, shown, strict=False):
            values = [getattr(area, attribute) for area in parts.values()]
            axes.barh(list(parts), values, color=colour, height=0.72)
            for place, value in enumerate(values):
                if value:
                    axes.annotate(f"{value:,}", (value, place), xytext=(3, 0), fontsize=8,
                                  textcoords="offset points", va="center")
            axes.set_title(f"{title}: {sum(values):,}", fontsize=9, loc="left")
            axes.set_xlim(0, 1.35 * max(values))
            axes.locator_params(axis="x", nbins=4, integer=True)
            axes.xaxis.set_major_formatter("{x:,.12g}")
            axes.tick_params(axis="y", length=0)
            axes.tick_params(axis="x", labelsize=7)
            axes.spines[["top", "right", "left"]].set_visible(False)
        columns[0].invert_yaxis()
        return svg_of(figure, "area", "area of each block, by resource")
