"""Synthesis on a terminal: how far it is, and the tables of its report, which the page shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sterna.cli.reports.cycle_tables import CycleTable, number
from sterna.cli.terminal.console import Stages
from sterna.hw.flow.synth_report import Origin, SynthReport
from sterna.hw.flow.target import Resource

if TYPE_CHECKING:
    from sterna.hw.flow.cached_tools import Progress
    from sterna.hw.flow.place_route import RouterStep

__all__ = ["ORIGINS_TEXT", "headline", "synth_progress", "synth_tables"]


@contextmanager
def synth_progress(quiet: bool) -> Iterator[Progress]:
    """Show each tool, and each phase of place and route, as a stage.

    Yields what :func:`~sterna.hw.flow.synth.synth` is to tell its progress.
    """
    with Stages(quiet) as stages:
        shown = ""

        def tell(text: str, step: RouterStep | None) -> None:
            nonlocal shown
            stage = text if step is None else f"{text}, {step.phase}"
            if stage != shown:
                stages(stage)
                shown = stage
            if step is not None:
                left = "" if step.left is None else f", {step.left:,} left"
                stages.detail(f"iteration {step.iteration:,}{left}")

        yield tell


ORIGINS_TEXT = (
    "measured: counted or timed by Yosys and nextpnr on this netlist; no board was used. "
    "simulated: by the cycle model, which equals the simulated Verilog. "
    "estimated: computed from the others.")


def headline(report: SynthReport) -> list[str]:
    """What was built, and for what."""
    geometry = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in report.sizes.items()
        if not isinstance(value, bool))
    flags = [name.replace("_", " ") for name, value in report.sizes.items() if value is True]
    geometry += f"; with {', '.join(flags)}" if flags else ""
    lines = [f"{report.unit} ({report.module}) for {report.target.name}: "
             f"{report.target.description}", geometry]
    lines += [] if report.chosen is None else [report.chosen]
    if report.target.router is not None and report.usage[0].tool == report.synthesis.tool:
        lines.append("counted by Yosys alone: nextpnr, which is not installed, counts more, above "
                     "all on iCE40; the extra pnr brings it")
    return lines


def synth_tables(report: SynthReport) -> dict[str, CycleTable]:
    """All tables by name: figures, seeds, path, blocks; those without a row are left out."""
    tables = {"figures": _figures(report), "seeds": _seeds(report), "path": _path(report),
              "blocks": _blocks(report)}
    return {name: table for name, table in tables.items() if table.rows}


def _figures(report: SynthReport) -> CycleTable:
    rows: list[tuple[object, ...]] = []

    def add(name: str, value: str, available: int | None, origin: Origin, tool: str) -> None:
        rows.append((name, value, "" if available is None else f"{available:,}",
                     origin.value, tool.partition(".post")[0]))

    yosys = report.synthesis.tool
    counter = report.usage[0].tool
    for each in report.usage:
        add(report.target.name_of(each.resource), f"{each.needed:,}", each.available,
            Origin.MEASURED, each.tool)
        if each.resource is Resource.LUT:
            if Resource.FF not in report.target.available and report.target.available:
                add("LUT", f"{report.synthesis.luts:,}", None, Origin.MEASURED, yosys)
                add("FF", f"{report.synthesis.flip_flops:,}", None, Origin.MEASURED, yosys)
            add("carry cells", f"{report.synthesis.carries:,}", None, Origin.MEASURED, yosys)
    if report.lut_per_mac is not None:
        add("LUT per MAC/cycle", f"{report.lut_per_mac:.2f}", None, Origin.MEASURED, counter)
    if report.array_lut_per_mac is not None:
        add("of which in the array", f"{report.array_lut_per_mac:.2f}", None, Origin.MEASURED,
            yosys)
    clocks = report.fmax_mhz
    if len(report.runs) == 1:
        add("Fmax, MHz", f"{clocks['max']:.1f}", None, Origin.MEASURED, counter)
    for name, value in clocks.items() if len(report.runs) > 1 else ():
        add(f"Fmax, {name}, MHz", f"{value:.1f}", None, Origin.MEASURED, counter)
    if report.cycles_per_token is not None:
        add("cycles per token", number(report.cycles_per_token), None, Origin.SIMULATED,
            "cycle model")
    if report.tokens_per_second is not None:
        add("tokens/s", f"{report.tokens_per_second:,.0f}", None, Origin.ESTIMATED,
            "largest Fmax / cycles")
    return CycleTable("figures", ("figure", "value", "available", "kind", "by"), rows)


def _seeds(report: SynthReport) -> CycleTable:
    if len(report.runs) < 2:
        return CycleTable("", (), [])
    return CycleTable(
        "place and route", ("seed", "Fmax, MHz", "slowest path"),
        [(run.seed, f"{run.fmax_mhz:.1f}",
          f"{run.path.start} -> {run.path.end}" if run.path else "") for run in report.runs])


def _path(report: SynthReport) -> CycleTable:
    best = report.best
    if best is None or best.path is None:
        return CycleTable("", (), [])
    rows: list[tuple[object, ...]] = []
    arrival = 0.0
    for hop in best.path.hops:
        arrival += hop.logic_ns + hop.routing_ns
        kind = hop.kind if hop.cells == 1 else f"{hop.kind} x {hop.cells}"
        rows.append((hop.block or "(itself)", kind, hop.wire or "", f"{hop.routing_ns:.2f}",
                     f"{hop.logic_ns:.2f}", f"{arrival:.2f}"))
    return CycleTable(
        f"critical path, seed {best.seed}: {best.path}",
        ("block", "cell", "wire", "routing, ns", "logic, ns", "sum, ns"), rows, text_columns=3)


def _blocks(report: SynthReport) -> CycleTable:
    rows: list[tuple[object, ...]] = [
        (name, f"{area.lut:,}", f"{area.carry:,}", f"{area.ff:,}", f"{area.block_ram:,}",
         f"{area.dsp:,}")
        for name, area in sorted(report.parts.items(), key=lambda item: -item[1].lut)]
    return CycleTable(
        f"area by block ({report.synthesis.tool}, before place and route)",
        ("block", "LUT", "carry", "FF", "block RAM", "DSP"), rows)
