"""The cycle report of a core as one HTML file."""

from __future__ import annotations

import html
from pathlib import Path

from sterna.cli.reports.cycle_tables import cycle_tables, headline, number, verdict
from sterna.cli.reports.page import Verdict, html_figure, html_heading, html_page, html_table
from sterna.cli.reports.stage_bars import stage_bars
from sterna.cli.reports.waterfall_plot import WATERFALL_TEXT, waterfall_plot
from sterna.hw.core.timing.cycle_report import CycleReport
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.timing.waterfall import waterfall
from sterna.model.files import write_atomically

__all__ = ["token_html", "write_hardware_report"]


def write_hardware_report(
    path: Path, name: str, report: CycleReport, clock_mhz: float | None = None,
) -> Path:
    """Write the report on the core of a model called ``name``: verdict, drawings, tables.

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
    said = "".join(f"<p>{html.escape(line)}</p>" for line in verdict(report)[1:])
    body = f"""<p>{html.escape("; ".join(headline(report)))}</p>
{said}
{tables["tokens"]}
{token_html(report)}
{tables["stages"]}
{tables.get("waits", "")}
{tables["bounds"]}
<p>Found by running the cycle model without the part, so what hides behind something else does
not count, and the rows need not add up.</p>
{tables["choices"]}
{tables["memory"]}"""
    return write_atomically(
        path, html_page(f"Cycle report: {name}", _verdict(report), body))


def _verdict(report: CycleReport) -> Verdict:
    """Nothing is compared here, so it states what bounds the core."""
    state = report.greedy
    return Verdict.note(
        f"{number(state.cycles_per_token)} cycles per token", verdict(report)[0],
        ((f"{state.utilisation:.1%}", "of them with a beat of the array"),
         (f"{report.memory.total:,}", "bits of memory")))


def token_html(report: CycleReport) -> str:
    """The waterfall of a token, and the cycles of each stage."""
    found = waterfall(CycleModel(report.params))
    caption = WATERFALL_TEXT
    if report.params.sequences > 1:
        caption += " What the other sequence does in between is not drawn."
    return f"""<h2>One token, from unit to unit</h2>
{html_figure(waterfall_plot(found), caption)}
<h2>What the array waits for</h2>
<p>Of a greedy token. Reciprocal and tiles pass before the first beat of a stage; scale, pipeline
and maximum after its last, until its results are the next vector. What the other sequence hides
is not shown.</p>
{html_figure(stage_bars(report))}"""
