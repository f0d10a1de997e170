"""The stages of a token as bars on a terminal."""

from __future__ import annotations

from fractions import Fraction

from rich.text import Text

from sterna.cli.reports.cycle_tables import PARTS, folded_text, number
from sterna.cli.terminal.console import out
from sterna.hw.core.timing.cycle_report import CycleReport
from sterna.hw.core.timing.steady_state import fold_stages

__all__ = ["print_bars"]

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
