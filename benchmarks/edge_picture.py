"""The picture of ``benchmarks/edge.py``: how much faster than float32, warm and cold."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
from edge_contestants import BASE
from edge_peers import PRODUCT_BASES
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["draw"]

BASES = (BASE, PRODUCT_BASES[0])
COLOURS = ("#8a94a3", "#2f6f5e", "#d1495b", "#4a7fb5", "#edae49", "#8d6a9f", "#5fad8c", "#a3623a",
           "#1f3b57")


def _groups(record: dict[str, Any]) -> list[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Title of a panel; label and results by state of the caches of each group in it."""
    models, products = record["models"], record["products"]
    tokens = record["settings"]["prefill_tokens"]
    panels = [
        ("one token", [(f"d {m['d']}", m["step"]) for m in models if "step" in m]),
        (f"{tokens} tokens", [(f"d {m['d']}", m["prefill"]) for m in models if "prefill" in m]),
        ("matrix-vector product", [(f"{p['columns']} x {p['rows']}", p) for p in products])]
    return [panel for panel in panels if panel[1]]


def speed(results: dict[str, Any], name: str) -> list[float] | None:
    """Quartiles of how many times as fast as float32 ``name`` is, if both were measured."""
    ratios = results.get(name, {}).get("speed", {})
    return next((ratios[base] for base in BASES if base in ratios), None)


def _panel(axes: Axes, title: str, groups: list[tuple[str, dict[str, Any]]]) -> None:
    # The base is the line at 1.
    names = list(dict.fromkeys(
        name for _, each in groups for name in each["warm"] if name not in BASES))
    if not names:
        return
    width, seen = 0.84 / len(names), set[str]()
    for index, name in enumerate(names):
        colour, shift = COLOURS[index % len(COLOURS)], (index - (len(names) - 1) / 2) * width
        for position, (_, results) in enumerate(groups):
            where = position + shift
            if found := speed(results["warm"], name):
                low, middle, high = found
                axes.bar(where, middle - 1, 0.9 * width, bottom=1, color=colour,
                         label=name if name not in seen else None)
                seen.add(name)
                axes.plot([where, where], [low, high], color="#222222", linewidth=0.8)
            if found := speed(results.get("cold", {}), name):
                axes.plot(where, found[1], marker="D", markersize=3.6, color="white",
                          markeredgecolor="#222222", markeredgewidth=0.8, linestyle="none")
    axes.axhline(1, color="#222222", linewidth=0.8)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.48), max(high, 2.1))
    ticks = [t for t in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
             if axes.get_ylim()[0] <= t <= axes.get_ylim()[1]]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xticks(range(len(groups)), [label for label, _ in groups])
    axes.tick_params(axis="x", length=0)
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw(record: dict[str, Any]) -> bytes:
    """Draw a record as an SVG file: bars warm with their quartiles, diamonds cold."""
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "sterna", "font.family": "sans-serif"}
    with matplotlib.rc_context(settings):
        panels = _groups(record)
        figure = Figure(figsize=(9.5, 0.6 + 2.7 * max(1, len(panels))), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        for index, (title, groups) in enumerate(panels):
            _panel(figure.add_subplot(len(panels), 1, index + 1), title, groups)
        figure.supylabel("times as fast as float32; bars warm, diamonds cold", fontsize=10)
        text = io.BytesIO()
        canvas.print_svg(text, metadata={"Date": None, "Creator": None})
        return text.getvalue()
