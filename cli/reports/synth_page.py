"""The synthesis report as files: JSON, one HTML page, and the plot of the area."""

from __future__ import annotations

import html
import json
from pathlib import Path

from sterna.cli.reports.area_plot import area_plot
from sterna.cli.reports.cycle_tables import number
from sterna.cli.reports.floorplan import floorplan
from sterna.cli.reports.page import (
    Outcome,
    Verdict,
    html_figure,
    html_heading,
    html_meters,
    html_page,
    html_table,
)
from sterna.cli.reports.slack_plot import slack_plot, slack_text
from sterna.cli.reports.synth_tables import ORIGINS_TEXT, headline, synth_tables
from sterna.cli.reports.vector import svg_file
from sterna.hw.flow.synth_report import SynthReport, Usage
from sterna.model.files import write_atomically

__all__ = ["write_synth_report"]

_NUMBERS_UP_TO = {"figures": 3, "seeds": 2}
"""The columns after these are text again."""


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
            range(table.text_columns, _NUMBERS_UP_TO.get(key, len(table.columns))))
        for key, table in synth_tables(report).items()}
    versions = ", ".join(f"{tool} {version}" for tool, version in report.tools.items())
    body = f"""<p>{html.escape("; ".join(headline(report)))}</p>
{_usage(report)}
{tables["figures"]}
<p>{html.escape(ORIGINS_TEXT)}</p>
{_placed(report)}
{tables.get("seeds", "")}
{tables.get("path", "")}
{tables["blocks"]}
{html_figure(plot)}
<p>LUTs of a block are those of Yosys, carries and LUT RAM included; nextpnr adds some where a
carry chain begins or ends, so its count above is larger.</p>
<p>{html.escape(versions)}</p>"""
    data = json.dumps({"model": name, **report.as_dict()}, indent=2) + "\n"
    page = html_page(f"Synthesis report: {name}", _verdict(report), body)
    return [write_atomically(folder / file, text) for file, text in (
        ("synth.json", data), ("area.svg", svg_file(plot)), ("synth.html", page))]


def _verdict(report: SynthReport) -> Verdict:
    """Whether it fits, and reaches the clock that was asked for."""
    limited = [each for each in report.usage if each.available is not None]
    figures = []
    if limited:
        fullest = max(limited, key=lambda each: each.share)
        figures.append((_percent(fullest),
                        f"of the {report.target.name_of(fullest.resource)} taken"))
    else:
        figures += [(f"{each.needed:,}", report.target.name_of(each.resource))
                    for each in report.usage]
    if report.best is not None:
        figures.append((f"{report.best.fmax_mhz:.1f} MHz", "Fmax by nextpnr"))
    if report.tokens_per_second is not None:
        figures.append((number(round(report.tokens_per_second)), "tokens/s, estimated"))
    device = report.target.description
    if report.misfit is not None:
        return Verdict(Outcome.FAIL, "DOES NOT FIT", report.misfit, tuple(figures))
    if not report.clock_met and report.best is not None:
        return Verdict(
            Outcome.FAIL, "CLOCK NOT REACHED",
            f"{report.required_mhz:g} MHz required, {report.best.fmax_mhz:.1f} MHz reached on "
            f"{device}.", tuple(figures))
    if not limited:
        return Verdict.note(
            "SYNTHESISED", f"{device}: a family, whose devices have different "
            "limits, so there is none to compare with.", figures)
    said = f"Every resource suffices on {device}."
    if report.required_mhz is not None:
        said += f" The clock of {report.required_mhz:g} MHz is reached."
    return Verdict(Outcome.PASS, "FITS", said, tuple(figures))


def _usage(report: SynthReport) -> str:
    """How full the device is; nothing for a family."""
    meters = [
        (report.target.name_of(each.resource), each.share,
         f"{each.needed:,} of {each.available:,}: {_percent(each)}")
        for each in report.usage if each.available is not None and (each.needed or each.available)]
    if not meters:
        return ""
    return html_heading(f"what it takes of {report.target.name}") + html_meters(meters)


def _percent(usage: Usage) -> str:
    """How much of a resource is taken; more than all of none has no number."""
    return f"{usage.share:.1%}" if usage.available else "too many"


def _placed(report: SynthReport) -> str:
    """Floorplan and slack of the fastest run."""
    best = report.best
    if best is None or report.aim_mhz is None or report.target.router is None:
        return ""
    text = (html_heading("where the cells are")
            + floorplan(best.placement, report.target, best.seed))
    if best.slack is not None:
        said = slack_text(best.slack, report.aim_mhz,
                          wrapped=not report.target.router.out_of_context)
        text += (html_heading(f"slack, seed {best.seed}")
                 + html_figure(slack_plot(best.slack), said))
    return text
