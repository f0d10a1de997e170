"""The cycle report of a core as one HTML file."""

from __future__ import annotations

import html
import io
from pathlib import Path

from sterna.cli.reports.cycle_tables import PARTS, cycle_tables, headline, verdict
from sterna.cli.reports.page import html_heading, html_page, html_picture, html_table
from sterna.hw.core.timing.cycle_report import CycleReport
from sterna.model.files import write_atomically

__all__ = ["stage_picture", "write_hardware_report"]


def write_hardware_report(
    path: Path, name: str, report: CycleReport, clock_mhz: float | None = None,
) -> Path:
    """Write the report on the core of a model called ``name``: verdict, bars, tables.

    Raises
    ------
    ValueError
        If the clock is not a positive number.
    OSError
        If the file cannot be written.
    """
    tables = {}
    for key, table in cycle_tables(report, clock_mhz).items():
        numeric = range(table.text_columns, len(table.columns))
        tables[key] = (html_heading(table.title)
                       + html_table(table.columns, table.rows, numeric))
    said = "".join(f"<p>{html.escape(line)}</p>" for line in verdict(report))
    picture = html_picture(stage_picture(report), "cycles of each stage, by what they are")
    subject = "; ".join(headline(report))
    body = f"""<p>{html.escape(subject)}</p>
{tables["tokens"]}
{said}
<h2>Cycles of each stage</h2>
<p>Of a greedy token, by the cycle model that equals the simulated Verilog. Reciprocal and tiles
pass before the first beat of a stage; scale, pipeline and maximum after its last, until its
results are the next vector. What the other sequence hides is not shown.</p>
{picture}
{tables["stages"]}
{tables.get("waits", "")}
{tables["bounds"]}
<p>Found by running the cycle model without the part, so what hides behind something else does
not count, and the rows need not add up.</p>
{tables["choices"]}
{tables["memory"]}"""
    return write_atomically(path, html_page(f"Cycle report: {name}", body))


def stage_picture(report: CycleReport) -> bytes:
    """Draw the cycles of each stage as stacked bars; return a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    state = report.greedy
    names = state.names
    figure = Figure(figsize=(9, 1.3 + 0.26 * len(names)), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    left = [0.0] * len(names)
    for part in PARTS:
        cycles = [float(part.cycles(state, name)) for name in names]
        if any(cycles):
            axes.barh(names, cycles, left=left, color=part.colour, height=0.72,
                      label=part.meaning)
        left = [before + each for before, each in zip(left, cycles, strict=True)]
    for index, total in enumerate(left):
        axes.annotate(f"{total:,.4g}" if total < 1000 else f"{total:,.0f}", (total, index),
                      xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlim(0, 1.05 * max(left))
    axes.set_xlabel("cycles per token")
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    picture = io.BytesIO()
    canvas.print_png(picture)
    return picture.getvalue()
