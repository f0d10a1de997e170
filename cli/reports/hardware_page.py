"""The cycle report of a core: its tables, its stages as bars of text, and its page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from rich.text import Text

from sterna.cli.reports.page import Outcome, Verdict, html_figure, html_page, html_table
from sterna.cli.reports.vector import GREY, PALETTE, drawing, svg_of
from sterna.cli.terminal.console import out
from sterna.cli.terminal.tables import Table
from sterna.hw.core.cycles.model import Use
from sterna.hw.core.cycles.report import CycleReport, TokenCycles, tokens_per_second
from sterna.model.files import write_atomically

__all__ = ["USES", "cycle_tables", "headline", "number", "print_bars", "stage_bars", "token_html",
           "verdict", "write_hardware_report"]

USES = {
    Use.BEATS: ("█", PALETTE[0], "beats of the array"),
    Use.NORM: ("n", PALETTE[3], "norm and quantiser"),
    Use.WEIGHTS: ("w", PALETTE[1], "weights through the port"),
    Use.SCALE: ("s", PALETTE[4], "root and reciprocal of the scale"),
    Use.POST: ("r", PALETTE[9], "post-processor and cells"),
    Use.PIPELINE: ("p", PALETTE[2], "pipelines up to the next vector"),
    Use.TOKEN: ("c", PALETTE[7], "choice of a token, embedding"),
}
"""Letter, colour and description of each use."""


def number(value: Fraction | float) -> str:
    """A number of cycles: at most two decimals."""
    return f"{float(value):,.2f}".rstrip("0").rstrip(".")


def headline(report: CycleReport) -> list[str]:
    """The subject of the report: the model, the core, and the memory behind it."""
    params, config, memory = report.params, report.config, report.memory
    sequences = "1 sequence" if params.sequences == 1 else f"{params.sequences} sequences"
    lines = [
        f"d {config.d}, {config.layers} layers, dff {config.dff}, vocabulary {config.vocab}, "
        f"profile {params.profile.name}",
        f"array of {params.rows} x {params.cols}, {sequences}; in a cycle {params.quant_lanes} "
        f"activations, {params.post_lanes} results"]
    if memory is not None:
        lines.append(f"memory: {number(memory.rate)} x {params.port_bits} bits a cycle, the first "
                     f"after {memory.latency} cycles")
    return lines


def verdict(report: CycleReport) -> list[str]:
    """The bottleneck of the core, in sentences."""
    token = report.greedy
    beats = token.spent(Use.BEATS)
    said = (f"The array has a beat in {number(beats)} of {number(token.total)} cycles "
            f"({token.utilisation:.1%}).")
    most = max((use for use in Use if use is not Use.BEATS), key=token.spent)
    if not token.spent(most):
        return [said]
    return [said, f"It waits mostly for {USES[most][2]}: {number(token.spent(most))} cycles."]


def cycle_tables(report: CycleReport, clock_mhz: float | None) -> dict[str, Table]:
    """All tables by name, in the order of a report."""
    return {"tokens": _tokens(report, clock_mhz), "stages": stage_table(report.greedy, _GREEDY),
            "choices": _choices(report), "memory": _memory(report)}


def _tokens(report: CycleReport, clock_mhz: float | None) -> Table:
    sequences = report.params.sequences
    columns = ["token", "cycles", "array busy"]
    rows = [[name, number(each.total), f"{each.utilisation:.1%}"]
            for name, each in report.tokens.items()]
    if clock_mhz is not None:
        shares = {f"tokens/s at {clock_mhz:g} MHz (estimated)": 1}
        if sequences > 1:
            shares["of a sequence"] = sequences
        columns += shares
        for row, each in zip(rows, report.tokens.values(), strict=True):
            row += [f"{tokens_per_second(each, clock_mhz) / share:,.0f}"
                    for share in shares.values()]
    return Table("cycles per token", tuple(columns), [tuple(row) for row in rows])


_GREEDY = "where the cycles of a greedy token go, those of all layers together"


def stage_table(token: TokenCycles, title: str) -> Table:
    """Stages and uses, without those of zero cycles."""
    uses = [use for use in Use if token.spent(use)]

    def cells(spent: Mapping[Use, Fraction]) -> tuple[str, ...]:
        return tuple(number(each) if each else "" for each in (
            *(spent[use] for use in uses), sum(spent.values(), start=Fraction())))

    return Table(
        title, ("stage", *(use.value for use in uses), "cycles"),
        [*((name, *cells(spent)) for name, spent in token.stages.items()),
         ("all", *cells({use: token.spent(use) for use in uses}))])


def _choices(report: CycleReport) -> Table:
    total = report.greedy.total
    return Table(
        "what other parameters would reach", ("changed", "cycles", "times as fast", "array busy"),
        [(name, number(each.total), number(total / each.total), f"{each.utilisation:.1%}")
         for name, each in report.choices.items()])


def _memory(report: CycleReport) -> Table:
    bits = {name: each for name, each in report.memory_bits.items() if each}
    return Table("bits of memory", ("memory", "bits"), [
        *((name, f"{each:,}") for name, each in bits.items()),
        ("all", f"{sum(bits.values()):,}")])


_CHART_COLUMNS = 80


def print_bars(token: TokenCycles) -> None:
    """A stacked bar for each kind of stage; letters instead of colours if not supported."""
    coloured = out.is_terminal and out.color_system is not None and not out.no_color
    stages = token.stages
    totals = {name: sum(spent.values(), start=Fraction()) for name, spent in stages.items()}
    margin = max(map(len, stages))
    width = min(out.width, _CHART_COLUMNS) if out.is_terminal else _CHART_COLUMNS
    width -= margin + 2 + max(len(number(total)) for total in totals.values())

    def block(use: Use, length: int) -> tuple[str, str]:
        letter, colour, _ = USES[use]
        return ("█" if coloured else letter) * length, colour if coloured else ""

    legend = Text("\n")
    for use in Use:
        if token.spent(use):
            legend.append(*block(use, 1)).append(f" {use.value}  ")
    out.print(legend)
    for name, spent in stages.items():
        bar = Text(f"{name:<{margin}} ")
        before, passed = 0, Fraction()
        for use, cycles in spent.items():
            # Round ends, not lengths, so that the total length is right.
            passed += cycles
            end = round(width * passed / max(totals.values()))
            bar.append(*block(use, end - before))
            before = end
        out.print(bar.append(f" {number(totals[name])}"))


# The page ---------------------------------------------------------------------------


def write_hardware_report(
    path: Path, name: str, report: CycleReport, clock_mhz: float | None = None,
) -> Path:
    """Write the report on the core of a model called ``name``: verdict, drawing, tables."""
    tables = {key: html_table(table) for key, table in cycle_tables(report, clock_mhz).items()}
    token = report.greedy
    # Nothing is compared here, so it states the bottleneck.
    said = Verdict(
        Outcome.NOTE, f"{number(token.total)} cycles per token", " ".join(verdict(report)),
        ((f"{token.utilisation:.1%}", "of them with a beat of the array"),
         (f"{sum(report.memory_bits.values()):,}", "bits of memory")))
    body = f"""<p>{html.escape("; ".join(headline(report)))}</p>
{tables["tokens"]}
{token_html(report)}
{tables["stages"]}
{tables["choices"]}
{tables["memory"]}"""
    return write_atomically(path, html_page(f"Cycle report: {name}", said, body))


def token_html(report: CycleReport) -> str:
    """The cycles of each kind of stage, drawn."""
    return "<h2>What the array waits for</h2>" + html_figure(stage_bars(report.greedy), (
        "Cycles of a greedy token, those of all layers together. A cycle without a beat is told by "
        "what the next beat lacks in it."))


def stage_bars(token: TokenCycles) -> str:
    """Draw the cycles of each kind of stage as stacked bars; return an SVG element."""
    places = range(len(token.stages))
    with drawing(9, 1.5 + 0.3 * len(places)) as figure:
        axes = figure.add_subplot()
        left = [0.0 for _ in places]
        for use, (_, colour, meaning) in USES.items():
            cycles = [float(spent[use]) for spent in token.stages.values()]
            if any(cycles):
                axes.barh(places, cycles, left=left, color=colour, height=0.7, label=meaning)
            left = [before + each for before, each in zip(left, cycles, strict=True)]
        for place, total in zip(places, left, strict=True):
            axes.annotate(number(total), (total, place), xytext=(4, 0), va="center",
                          textcoords="offset points")
        axes.set_yticks(places, list(token.stages))
        axes.invert_yaxis()
        axes.set_xlim(0, 1.08 * max(left))
        axes.set_xlabel("cycles per token")
        axes.xaxis.set_major_formatter("{x:,.12g}")
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=GREY, alpha=0.3, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        figure.legend(loc="outside upper left", ncols=3)
        return svg_of(figure, "stages", "cycles of each kind of stage, by what they are")
