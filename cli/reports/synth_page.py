"""The synthesis report as files: JSON, one HTML page, and the plot of the area."""

from __future__ import annotations

import html
import io
import json
from pathlib import Path

from sterna.cli.reports.page import html_heading, html_page, html_table
from sterna.cli.reports.synth_tables import ORIGINS_TEXT, headline, synth_tables
from sterna.hw.flow.synth_report import SynthReport
from sterna.model.files import write_atomically

__all__ = ["area_plot", "write_synth_report"]

_COLUMNS = (("LUT", "lut", "#4269d0"), ("FF", "ff", "#97bbf5"),
            ("block RAM", "block_ram", "#efb118"), ("DSP", "dsp", "#ff725c"))


def write_synth_report(folder: Path, name: str, report: SynthReport) -> list[Path]:
    """Write ``synth.json``, ``synth.html`` and ``area.svg``; return their paths.

    Raises
    ------
    OSError
        If one cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plot = area_plot(report)
    tables = {
        key: html_heading(table.title) + html_table(
            table.columns, table.rows,
            range(table.text_columns, 3 if key == "figures" else len(table.columns)))
        for key, table in synth_tables(report).items()}
    versions = ", ".join(f"{tool} {version}" for tool, version in report.tools.items())
    body = f"""<p>{html.escape("; ".join(headline(report)))}</p>
{tables["figures"]}
<p>{html.escape(ORIGINS_TEXT)}</p>
{tables.get("seeds", "")}
{tables.get("path", "")}
{tables["blocks"]}
<figure>{plot[plot.index("<svg"):]}</figure>
<p>LUTs of a block are those of Yosys, carries and LUT RAM included; nextpnr adds some where a
carry chain begins or ends, so its count above is larger.</p>
<p>{html.escape(versions)}</p>"""
    data = json.dumps({"model": name, **report.as_dict()}, indent=2) + "\n"
    return [write_atomically(folder / file, text) for file, text in (
        ("synth.json", data), ("area.svg", plot),
        ("synth.html", html_page(f"Synthesis report: {name}", body)))]


def area_plot(report: SynthReport) -> str:
    """Draw the area of each block as bars, a column for each resource; return SVG."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    parts = dict(sorted(report.parts.items(), key=lambda item: (-item[1].lut, item[0])))
    shown = [each for each in _COLUMNS if any(getattr(area, each[1]) for area in parts.values())]
    # Without a date and with fixed names inside, the same report is the same file.
    with rc_context({"svg.hashsalt": "sterna", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 1.0 + 0.24 * len(parts)), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        columns = figure.subplots(1, max(len(shown), 1), sharey=True, squeeze=False)[0]
        for axes, (title, attribute, colour) in zip(columns, shown, strict=False):
            values = [getattr(area, attribute) for area in parts.values()]
            axes.barh(list(parts), values, color=colour, height=0.72)
            for place, value in enumerate(values):
                if value:
                    axes.annotate(f"{value:,}", (value, place), xytext=(3, 0), fontsize=7,
                                  textcoords="offset points", va="center")
            axes.set_title(f"{title}: {sum(values):,}", fontsize=9, loc="left")
            axes.set_xlim(0, 1.35 * max(values))
            axes.tick_params(axis="y", length=0, labelsize=8)
            axes.tick_params(axis="x", labelsize=7)
            axes.spines[["top", "right", "left"]].set_visible(False)
        columns[0].invert_yaxis()
        text = io.BytesIO()
        canvas.print_svg(text, metadata={"Date": None})
    return text.getvalue().decode()
