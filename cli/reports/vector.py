"""Reproducible drawings as SVG, with colours for light and dark pages.

Black parts take the colour of the surrounding text (``currentColor``); the colours of data have
medium brightness to suit both backgrounds.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["GREY", "PALETTE", "drawing", "finish", "svg_file", "svg_of"]

PALETTE = ("#4a86c5", "#e08a2c", "#3f9e6e", "#d1495b", "#9270b8", "#b08d3c", "#2aa5a5",
           "#c9739f", "#7f8c4f", "#a3623a")
"""Colours distinguishable on white and on black."""

GREY = "#8a93a0"
"""For secondary parts."""

_INK = "#000000"
_FILE = ('<svg xmlns="http://www.w3.org/2000/svg"', "<style>:root{color:#24292f}"
         "@media(prefers-color-scheme:dark){:root{color:#d0d7de}}</style>")
_ID = re.compile(r'\bid="([^"]+)"')


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure without background; width and height in inches of 72 pixels."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Set while drawing, and again when writing: text stays text.
    with rc_context({"font.size": 9, "axes.edgecolor": _INK, "figure.facecolor": "none",
                     "axes.facecolor": "none", "legend.frameon": False}):
        yield Figure(figsize=(width, height), layout="constrained")


def finish(
    axes: Axes, xlabel: str, ylabel: str, grid: Literal["x", "y", "both"] = "y",
) -> None:
    """Label the axes, draw a faint grid, and omit the top and right frame lines."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis=grid, color=GREY, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def svg_of(figure: Figure, name: str, description: str) -> str:
    """Write a figure as an SVG element for a page.

    ``name`` is a word unique on the page, used as prefix of its element names.
    ``description`` is the text for readers who cannot see it.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    written = io.BytesIO()
    # Fixed element names and no date, for reproducible output.
    with rc_context({"svg.hashsalt": "sterna", "svg.fonttype": "none", "path.simplify": True}):
        FigureCanvasSVG(figure).print_svg(written, metadata={
            "Date": None, "Creator": None, "Format": None, "Type": None})
    text = written.getvalue().decode()
    text = text[text.index("<svg"):].replace(_INK, "currentColor")
    view = re.search(r'viewBox="[^"]+"', text)
    assert view is not None
    body = text[text.index(">") + 1:].replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))

    def named(found: re.Match[str]) -> str:
        return f'id="{name}-{found[1]}"' if found[1] in used else ""

    body = _ID.sub(named, body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{name}-", body)
    body = re.sub(r"<!--.*?-->\n?", "", body, flags=re.DOTALL)
    label = html.escape(description)
    return f'<svg {view[0]} role="img" aria-label="{label}">{body.strip()}'


def svg_file(svg: str) -> str:
    """An element of :func:`svg_of` as a separate file, with colours for light and dark."""
    start, body = svg.split(">", 1)
    return f"{start.replace('<svg', _FILE[0], 1)}>{_FILE[1]}{body}\n"
