"""The tables of a cycle report, for a terminal and a page, and its stages as bars of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich.text import Text

from sterna.cli.terminal.console import out
from sterna.hw.core.timing.cycle_report import PIPELINE, CycleReport, tokens_per_second
from sterna.hw.core.timing.steady_state import Cause, FoldedStages, SteadyState, Token, fold_stages

__all__ = [
    "PARTS",
    "CycleTable",
    "Part",
    "cycle_tables",
    "folded_text",
    "headline",
    "number",
    "print_bars",
    "verdict",
]

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

    def cycles(self, state: SteadyState, stage: str) -> Fraction:
        """Its cycles in a stage."""
        if not self.causes:
            return state.beats_of(stage)
        return sum((state.waits(name=stage, cause=cause) for cause in self.causes), Fraction())

    def of_all(self, state: SteadyState, stages: Sequence[str]) -> Fraction:
        """Its cycles in several stages together."""
        return sum((self.cycles(state, stage) for stage in stages), Fraction())


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


@dataclass(frozen=True, slots=True)
class CycleTable:
    """A table; the first column is text, all others are numbers unless said otherwise."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    text_columns: int = 1


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


def cycle_tables(report: CycleReport, clock_mhz: float | None) -> dict[str, CycleTable]:
    """All tables by name: tokens, stages, waits, bounds, choices, memory."""
    tables = {
        "tokens": _tokens(report, clock_mhz), "stages": _stages(report.greedy),
        "bounds": _bounds(report), "choices": _choices(report),
        "memory": _memory(report)}
    if report.params.sequences > 1:
        tables["waits"] = _waits(report.greedy)
    return tables


def _tokens(report: CycleReport, clock_mhz: float | None) -> CycleTable:
    columns: tuple[str, ...] = ("token", "cycles", "array busy")
    if clock_mhz is not None:
        columns += (f"tokens/s at {clock_mhz:g} MHz (estimated)",)
    rows: list[tuple[object, ...]] = []
    for token, state in report.states.items():
        rate = () if clock_mhz is None else (f"{tokens_per_second(state, clock_mhz):,.0f}",)
        rows.append((_TOKENS[token], number(state.cycles_per_token),
                     f"{state.utilisation:.1%}", *rate))
    return CycleTable("cycles per token", columns, rows)


def _stages(state: SteadyState) -> CycleTable:
    """A row for each stage that differs, and the sum of all. Parts without a cycle are left out."""
    parts = [part for part in PARTS
             if not part.causes or any(part.cycles(state, name) for name in state.names)]

    def cells(cycles: Sequence[Fraction]) -> tuple[str, ...]:
        return tuple(number(each) if each else "" for each in (*cycles, sum(cycles, Fraction())))

    lines = fold_stages(state)
    by_line = [[part.of_all(state, line.stages) for part in parts] for line in lines]
    sums = [sum(column, Fraction()) for column in zip(*by_line, strict=True)]
    folded = "; ".join(folded_text(line) for line in lines if line.like is not None)
    return CycleTable(
        "where the cycles of a greedy token go" + (f": {folded}" if folded else ""),
        ("stage", *(part.name for part in parts), "cycles"),
        [*((line.name, *cells(cycles))
           for line, cycles in zip(lines, by_line, strict=True)), ("all", *cells(sums))])


def folded_text(line: FoldedStages) -> str:
    """How a line of stages is called: layers that are left out say which they are like.

    >>> folded_text(FoldedStages("layers 1 to 3", ("layer1 out",), layers=3, like=0))
    'layers 1 to 3, each as layer 0'
    """
    if line.like is None:
        return line.name
    return f"{line.name}, {'each ' if line.layers > 1 else ''}as layer {line.like}"


def _waits(state: SteadyState) -> CycleTable:
    longest = sorted(state.idle.items(), key=lambda item: item[1], reverse=True)
    return CycleTable(
        f"the {_LONGEST_WAITS} longest waits of the array"
        if len(longest) > _LONGEST_WAITS else "waits of the array",
        ("sequence", "stage", "waits for", "cycles per token"),
        [(sequence, name, cause.value, number(Fraction(cycles, state.tokens)))
         for (sequence, name, cause), cycles in longest[:_LONGEST_WAITS]], text_columns=3)


def _bounds(report: CycleReport) -> CycleTable:
    total = report.greedy.cycles_per_token
    rows: list[tuple[object, ...]] = [
        (bound.value, number(won), number(total - won), f"{float(won / total):.1%}")
        for bound, won in report.won_back.items()]
    every = total - report.ideal
    rows.append(("all but the array", number(every), number(report.ideal),
                 f"{float(every / total):.1%}"))
    return CycleTable("what each part would win back if it alone took no time",
                      ("part", "won back", "cycles left", "share"), rows)


def _choices(report: CycleReport) -> CycleTable:
    total = report.greedy.cycles_per_token
    return CycleTable(
        "what other parameters would reach", ("changed", "cycles", "times as fast", "array busy"),
        [(choice.name, number(choice.cycles_per_token), number(total / choice.cycles_per_token),
          f"{choice.utilisation:.1%}") for choice in report.choices])


def _memory(report: CycleReport) -> CycleTable:
    memory = report.memory
    rows: list[tuple[object, ...]] = [
        (name, kind, f"{bits:,}") for kind, part in (
            ("model, read only", memory.model), ("table, read only", memory.tables),
            ("working", memory.working))
        for name, bits in part.items()]
    rows.append(("all", "", f"{memory.total:,}"))
    return CycleTable("bits of memory", ("memory", "kind", "bits"), rows, text_columns=2)


_CHART_COLUMNS = 80


def print_bars(found: CycleReport) -> None:
    """A stacked bar for each stage; letters instead of colours where there are none.

    Layers that are alike have the bars of the first and a line of words.
    """
    state = found.greedy
    coloured = out.is_terminal and out.color_system is not None and not out.no_color
    lines = fold_stages(state)
    cycles = {line.name: [part.of_all(state, line.stages) for part in PARTS] for line in lines}
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
            out.print(f"{folded_text(line)}: {times}{number(each)}")
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
