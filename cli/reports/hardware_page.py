"""The cycle report of a core: its tables, its stages as bars of text, and its page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.text import Text

from sterna.cli.reports.page import Outcome, Verdict, html_figure, html_page, html_table
from sterna.cli.reports.vector import GREY, PALETTE, drawing, svg_of
from sterna.cli.terminal.console import out
from sterna.cli.terminal.tables import Table
from sterna.hw.oldcore.timing.cycle_report import PIPELINE, CycleReport, tokens_per_second
from sterna.hw.oldcore.timing.cycles import CycleModel
from sterna.hw.oldcore.timing.steady_state import (
    Cause,
    FoldedStages,
    SteadyState,
    Token,
    fold_stages,
    folded_name,
)
from sterna.hw.oldcore.timing.waterfall import Span, Waterfall, Worker, waterfall
from sterna.model.files import write_atomically

__all__ = ["PARTS", "Part", "cycle_tables", "headline", "number", "print_bars", "stage_bars",
           "token_html", "verdict", "waterfall_plot", "write_hardware_report"]

_LONGEST_WAITS = 10

_TOKENS = {
    Token.GREEDY: "generated, greedy", Token.SAMPLED: "generated, sampled",
    Token.PROMPT: "of a prompt, without prediction",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Cycles that are shown together: beats (no causes), or waits for some causes.

    ``letter`` draws them without colours, ``colour`` with them.
    """

    name: str
    meaning: str
    letter: str
    colour: str
    causes: tuple[Cause, ...] = ()

    def cycles(self, state: SteadyState, stages: Sequence[str]) -> Fraction:
        """Its cycles in stages."""
        if not self.causes:
            return sum(map(state.beats_of, stages), Fraction())
        return sum((state.waits(name=stage, cause=cause) for stage in stages
                    for cause in self.causes), Fraction())


PARTS = (
    Part("beats", "beats of the array", "█", "#4a86c5"),
    Part("norm", "the norm serves the other sequence", "n", "#7f7f7f", (Cause.NORM,)),
    Part("reciprocal", "division by the maximum", "r", "#d1495b", (Cause.RECIPROCAL,)),
    Part("tiles", "tiles of the quantised vector", "t", "#e0a03c", (Cause.TILES,)),
    Part("scale", "root and division for the scale", "s", "#9270b8", (Cause.SCALE,)),
    Part("pipeline", "array, requantising and unit", "p", "#4fa583", PIPELINE),
    Part("max", "maximum of a vector", "m", "#a3623a", (Cause.MAXIMUM,)),
    Part("token", "choice of a token, embedding", "c", "#d07fae",
         (Cause.CHOICE, Cause.EMBEDDING)),
)
"""What a stage's cycles are made of: its beats, then what the array waits for."""


def number(value: Fraction | float) -> str:
    """A number of cycles: at most two decimals."""
    rounded = f"{float(value):,.2f}"
    return rounded.rstrip("0").rstrip(".")


def headline(report: CycleReport) -> list[str]:
    """What the report is on: the model, and the core."""
    params = report.params
    config = params.config
    sequences = "1 sequence" if params.sequences == 1 else f"{params.sequences} sequences"
    return [
        f"d {config.d}, {config.layers} layers, dff {config.dff}, vocabulary {config.vocab}, "
        f"profile {params.profile.name}",
        f"array of {params.rows} x {params.cols}, {sequences}, {params.quant_lanes} elements "
        f"quantised per cycle"]


def verdict(report: CycleReport) -> list[str]:
    """What bounds the core, in sentences."""
    state = report.greedy
    total, beats = state.cycles_per_token, report.ideal
    share = f"{beats:,} of {number(total)} cycles ({state.utilisation:.1%})"
    if report.limit == "array beats":
        first = f"Bound by the beats of the array: {share}."
    else:
        first = f"Bound by latency, mostly by {report.limit}: the array has beats in {share}."
    lines = [first, f"If nothing but the array took time: {beats:,} cycles, "
                    f"{number(total - beats)} fewer."]
    if report.params.sequences > 1:
        parts = " and ".join(
            f"{number(state.waits(sequence=sequence))} for sequence {sequence}"
            for sequence in range(report.params.sequences))
        lines.append(f"Of {number(state.waits())} cycles without a beat the array waits {parts}.")
    return lines


def cycle_tables(report: CycleReport, clock_mhz: float | None) -> dict[str, Table]:
    """All tables by name, in the order of a report."""
    waits = {"waits": _waits(report.greedy)} if report.params.sequences > 1 else {}
    return {"tokens": _tokens(report, clock_mhz), "stages": _stages(report.greedy), **waits,
            "bounds": _bounds(report), "choices": _choices(report), "memory": _memory(report)}


def _tokens(report: CycleReport, clock_mhz: float | None) -> Table:
    columns: tuple[str, ...] = ("token", "cycles", "array busy")
    if clock_mhz is not None:
        columns += (f"tokens/s at {clock_mhz:g} MHz (estimated)",)
    rows: list[tuple[object, ...]] = []
    for token, state in report.states.items():
        rate = () if clock_mhz is None else (f"{tokens_per_second(state, clock_mhz):,.0f}",)
        rows.append((_TOKENS[token], number(state.cycles_per_token),
                     f"{state.utilisation:.1%}", *rate))
    return Table("cycles per token", columns, rows)


def _stages(state: SteadyState) -> Table:
    """A row for each stage that differs, and the sum of all. Parts without a cycle are left out."""
    parts = [part for part in PARTS if not part.causes or part.cycles(state, list(state.names))]

    def cells(cycles: Sequence[Fraction]) -> tuple[str, ...]:
        return tuple(number(each) if each else "" for each in (*cycles, sum(cycles, Fraction())))

    lines = fold_stages(state)
    by_line = [[part.cycles(state, line.stages) for part in parts] for line in lines]
    sums = [sum(column, Fraction()) for column in zip(*by_line, strict=True)]
    folded = "; ".join(_folded_text(line) for line in lines if line.like is not None)
    return Table(
        "where the cycles of a greedy token go" + (f": {folded}" if folded else ""),
        ("stage", *(part.name for part in parts), "cycles"),
        [*((line.name, *cells(cycles))
           for line, cycles in zip(lines, by_line, strict=True)), ("all", *cells(sums))])


def _folded_text(line: FoldedStages) -> str:
    """How a line of stages is called: layers that are left out say which they are like.

    >>> _folded_text(FoldedStages("layers 1 to 3", ("layer1 out",), layers=3, like=0))
    'layers 1 to 3, each as layer 0'
    """
    if line.like is None:
        return line.name
    return f"{line.name}, {'each ' if line.layers > 1 else ''}as layer {line.like}"


def _waits(state: SteadyState) -> Table:
    longest = sorted(state.idle.items(), key=lambda item: item[1], reverse=True)
    return Table(
        f"the {_LONGEST_WAITS} longest waits of the array"
        if len(longest) > _LONGEST_WAITS else "waits of the array",
        ("sequence", "stage", "waits for", "cycles per token"),
        [(sequence, name, cause.value, number(Fraction(cycles, state.tokens)))
         for (sequence, name, cause), cycles in longest[:_LONGEST_WAITS]])


def _bounds(report: CycleReport) -> Table:
    total = report.greedy.cycles_per_token
    rows: list[tuple[object, ...]] = [
        (bound.value, number(won), number(total - won), f"{float(won / total):.1%}")
        for bound, won in report.won_back.items()]
    every = total - report.ideal
    rows.append(("all but the array", number(every), number(report.ideal),
                 f"{float(every / total):.1%}"))
    return Table("what each part would win back if it alone took no time",
                      ("part", "won back", "cycles left", "share"), rows)


def _choices(report: CycleReport) -> Table:
    total = report.greedy.cycles_per_token
    return Table(
        "what other parameters would reach", ("changed", "cycles", "times as fast", "array busy"),
        [(choice.name, number(choice.cycles_per_token), number(total / choice.cycles_per_token),
          f"{choice.utilisation:.1%}") for choice in report.choices])


def _memory(report: CycleReport) -> Table:
    memory = report.memory
    rows: list[tuple[object, ...]] = [
        (name, kind, f"{bits:,}") for kind, part in (
            ("model, read only", memory.model), ("table, read only", memory.tables),
            ("working", memory.working))
        for name, bits in part.items()]
    rows.append(("all", "", f"{memory.total:,}"))
    return Table("bits of memory", ("memory", "kind", "bits"), rows)


_CHART_COLUMNS = 80


def print_bars(found: CycleReport) -> None:
    """A stacked bar for each stage; letters instead of colours where there are none.

    Layers that are alike have the bars of the first and a line of words.
    """
    state = found.greedy
    coloured = out.is_terminal and out.color_system is not None and not out.no_color
    lines = fold_stages(state)
    cycles = {line.name: [part.cycles(state, line.stages) for part in PARTS] for line in lines}
    shown = [line.name for line in lines if line.like is None]
    totals = {name: number(sum(cycles[name])) for name in shown}
    margin = max(len(name) for name in totals)
    width = min(out.width, _CHART_COLUMNS) if out.is_terminal else _CHART_COLUMNS
    width -= margin + 2 + max(len(total) for total in totals.values())
    longest = max(sum(cycles[name]) for name in shown)

    legend = Text("\n")
    for part, column in zip(PARTS, zip(*cycles.values(), strict=True), strict=True):
        if any(column):
            legend.append("█" if coloured else part.letter, part.colour if coloured else "")
            legend.append(f" {part.name}  ")
    out.print(legend)
    for line in lines:
        if line.like is not None:
            each = sum(cycles[line.name], Fraction()) / line.layers
            times = f"{line.layers} x " if line.layers > 1 else ""
            out.print(f"{_folded_text(line)}: {times}{number(each)}")
            continue
        bar = Text(f"{line.name:<{margin}} ")
        before, passed = 0, Fraction()
        for part, count in zip(PARTS, cycles[line.name], strict=True):
            # Ends are rounded, not lengths: the bar as a whole is as long as it should be.
            passed += count
            end = round(width * passed / longest)
            bar.append(("█" if coloured else part.letter) * (end - before),
                       part.colour if coloured else "")
            before = end
        bar.append(f" {totals[line.name]}")
        out.print(bar)


# The page ---------------------------------------------------------------------------


def write_hardware_report(
    path: Path, name: str, report: CycleReport, clock_mhz: float | None = None,
) -> Path:
    """Write the report on the core of a model called ``name``: verdict, drawings, tables."""
    tables = {key: html_table(table) for key, table in cycle_tables(report, clock_mhz).items()}
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
    return write_atomically(path, html_page(f"Cycle report: {name}", _verdict(report), body))


def _verdict(report: CycleReport) -> Verdict:
    """Nothing is compared here, so it states what bounds the core."""
    state = report.greedy
    return Verdict(
        Outcome.NOTE, f"{number(state.cycles_per_token)} cycles per token", verdict(report)[0],
        ((f"{state.utilisation:.1%}", "of them with a beat of the array"),
         (f"{report.memory.total:,}", "bits of memory")))


def token_html(report: CycleReport) -> str:
    """The waterfall of a token, and the cycles of each stage."""
    found = waterfall(CycleModel(report.params))
    caption = _WATERFALL_TEXT
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
            cycles = [0.0 if line.like is not None else float(part.cycles(state, line.stages))
                      for line in lines]
            if any(cycles):
                axes.barh(places, cycles, left=left, color=part.colour, height=0.7,
                          label=part.meaning)
            left = [before + each for before, each in zip(left, cycles, strict=True)]
        for place, (line, total) in enumerate(zip(lines, left, strict=True)):
            text = f"{total:,.4g}" if total < 1000 else f"{total:,.0f}"
            if line.like is not None:
                all_cycles = float(sum(part.cycles(state, line.stages) for part in PARTS))
                text = f"{_folded_text(line)}: {line.layers} × {all_cycles / line.layers:,.5g}"
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


_WATERFALL_TEXT = (
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
