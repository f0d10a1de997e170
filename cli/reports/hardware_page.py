"""The cycle report of a core as one HTML file, with its drawings."""

from __future__ import annotations

import html
from itertools import pairwise
from pathlib import Path
from typing import Any

from sterna.cli.reports.cycle_tables import (
    PARTS,
    cycle_tables,
    folded_text,
    headline,
    number,
    verdict,
)
from sterna.cli.reports.page import Verdict, html_figure, html_heading, html_page, html_table
from sterna.cli.reports.vector import GREY, PALETTE, drawing, svg_of
from sterna.hw.core.timing.cycle_report import CycleReport
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.timing.steady_state import fold_stages, folded_name
from sterna.hw.core.timing.waterfall import Span, Waterfall, Worker, waterfall
from sterna.model.files import write_atomically

__all__ = ["WATERFALL_TEXT", "stage_bars", "token_html", "waterfall_plot", "write_hardware_report"]


def write_hardware_report(
    path: Path, name: str, report: CycleReport, clock_mhz: float | None = None,
) -> Path:
    """Write the report on the core of a model called ``name``: verdict, drawings, tables."""
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


WATERFALL_TEXT = (
    "A bar lasts from the first cycle to the last in which the unit works on the stage, waits "
    "inside of it included. By the cycle model, each of whose stages is compared with the "
    "simulated Verilog: first and last beat, first and last result. Where layers are alike "
    "only the first is drawn, and the axis leaves their cycles out.")

_COLOURS = dict(zip(Worker, (
    PALETTE[7], PALETTE[3], PALETTE[4], PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[5]),
    strict=True))
_LANES = {Worker.NORM: 0, Worker.SCALE: 1, Worker.ARRAY: 2, Worker.REQUANTIZE: 3, Worker.UNIT: 4,
          Worker.EMBEDDING: 2, Worker.SAMPLER: 2}
_LANE = 0.17
"""Height of a bar; a row is 1 high."""


class _Axis:
    """Cycles to places on the axis: those of layers left out take no room but a gap."""

    def __init__(self, found: Waterfall) -> None:
        self.left_out: list[tuple[int, int, int, int]] = []
        """First and last layer, first and last cycle of what is not drawn."""
        for first, last in found.alike:
            if last > first:
                self.left_out.append(
                    (first + 1, last, found.layers[first + 1], found.layers[last + 1]))
        drawn = found.cycles - sum(end - begin for _, _, begin, end in self.left_out)
        self.gap = 0.06 * drawn
        self.length = drawn + self.gap * len(self.left_out)

    def __call__(self, cycle: int) -> float:
        place = float(cycle)
        for _, _, begin, end in self.left_out:
            if cycle >= end:
                place += self.gap - (end - begin)
            elif cycle > begin:
                place -= (cycle - begin) * (1 - self.gap / (end - begin))
        return place

    def hides(self, span: Span) -> bool:
        """Whether a span is of a layer that is left out."""
        return any(span.stage.startswith(f"layer{layer} ")
                   for first, last, _, _ in self.left_out for layer in range(first, last + 1))

    def ticks(self, end: int) -> list[int]:
        """Cycles to be marked: about ten round numbers that are drawn, and the last cycle."""
        step = next(base * 10 ** power for power in range(12) for base in (1, 2, 5)
                    if base * 10 ** power * 10 >= self.length)
        marked = [0]
        bounds = [0, *(each for _, _, *ends in self.left_out for each in ends), end]
        for begin, finish in list(pairwise(bounds))[::2]:
            marked += [cycle for cycle in range(-(-begin // step) * step, finish + 1, step)
                       if cycle - marked[-1] >= step]
        near = self(end) - self(marked[-1]) < 0.06 * self.length
        return [*marked[:-1], end] if near else [*marked, end]


def waterfall_plot(found: Waterfall) -> str:
    """Draw the waterfall of a token; return an SVG element."""
    axis = _Axis(found)
    rows: dict[str, list[Span]] = {}
    for span in found.spans:
        rows.setdefault(span.stage, []).append(span)
    names = [name for name, spans in rows.items() if not axis.hides(spans[0])]
    with drawing(9, 1.3 + 0.38 * len(names)) as figure:
        axes = figure.add_subplot()
        for place, name in enumerate(names):
            _row(axes, axis, place, rows[name])
        for first, last, begin, end in axis.left_out:
            _gap(axes, axis, folded_name(first, last), (begin, end), (last - first + 1))
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        ticks = axis.ticks(found.cycles)
        axes.set_xticks([axis(cycle) for cycle in ticks], [f"{cycle:,}" for cycle in ticks])
        axes.set_xlim(0, axis.length)
        axes.set_xlabel(f"cycles since the token goes to the embedding, to which the next one "
                        f"goes at {found.cycles:,}")
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=GREY, alpha=0.3, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        handles: list[Any] = [axes.barh([0], [0], color=_COLOURS[worker]) for worker in Worker]
        figure.legend(handles, [worker.value for worker in Worker], loc="outside upper left",
                      ncols=4)
        return svg_of(figure, "waterfall",
                      "which unit works on one token in which cycle, a row for each stage")


def _row(axes: Any, axis: _Axis, place: int, spans: list[Span]) -> None:
    axes.axhspan(place - 0.48, place + 0.48, color=GREY, alpha=0.10 if place % 2 else 0.0,
                 linewidth=0)
    for span in spans:
        top = place + (_LANES[span.worker] - 2.5) * _LANE
        begin, end = axis(span.begin), axis(span.end)
        axes.broken_barh([(begin, end - begin)], (top, _LANE * 0.92),
                         facecolors=_COLOURS[span.worker])


def _gap(axes: Any, axis: _Axis, name: str, cycles: tuple[int, int], layers: int) -> None:
    """A grey band where the cycles of layers are left out, and which those are."""
    begin, end = cycles
    axes.axvspan(axis(begin), axis(end), color=GREY, alpha=0.22, linewidth=0)
    like = int(name.split()[1]) - 1
    each = "each as" if layers > 1 else "as"
    axes.annotate(f"{name}, {each} layer {like}: {layers} × {(end - begin) // layers:,}",
                  ((axis(begin) + axis(end)) / 2, 0.5), rotation=90, ha="center", va="center",
                  xycoords=("data", "axes fraction"))
