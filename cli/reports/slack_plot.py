"""The slack of all paths as bars, drawn for a page."""

from __future__ import annotations

from sterna.cli.reports.vector import PALETTE, drawing, svg_of
from sterna.hw.flow.routed import SlackHistogram

__all__ = ["slack_plot", "slack_text"]

_MET, _MISSED = PALETTE[0], PALETTE[3]


def slack_plot(found: SlackHistogram) -> str:
    """Draw the histogram; return an SVG element. What is late is red."""
    with drawing(9, 2.6) as figure:
        axes = figure.add_subplot()
        for each in found.bins:
            axes.bar(each.low_ps / 1000, each.endpoints, align="edge",
                     width=0.94 * (each.high_ps - each.low_ps) / 1000,
                     color=_MISSED if each.low_ps < 0 else _MET)
        axes.axvline(0, color="#000000", linewidth=1)
        axes.set_xlabel("slack, ns")
        axes.set_ylabel("endpoints")
        axes.yaxis.set_major_formatter("{x:,.12g}")
        axes.spines[["top", "right"]].set_visible(False)
        return svg_of(figure, "slack", "number of paths by the time that they have left")


def slack_text(found: SlackHistogram, aim_mhz: float, *, wrapped: bool) -> str:
    """What the bars are, in sentences."""
    text = (f"Time that is left at {aim_mhz:g} MHz, the clock that place and route aimed at, on "
            "the slowest path to each endpoint. Below 0 it is late; a bar that begins there is "
            "red. By nextpnr, after routing.")
    if found.step > 1:
        text += (f" It prints a mark for {found.step} endpoints and leaves out the rest: a bar "
                 f"is up to {found.step - 1} short.")
    if wrapped:
        text += " The registers around the unit are counted as well."
    return text
