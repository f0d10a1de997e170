"""The synthesis report: progress and tables on a terminal; JSON, page and plot of the area."""

from __future__ import annotations

import html
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sterna.cli.reports.hardware_page import number
from sterna.cli.reports.page import (
    Outcome,
    Verdict,
    html_figure,
    html_heading,
    html_meters,
    html_page,
    html_table,
)
from sterna.cli.reports.vector import GREY, PALETTE, drawing, svg_file, svg_of
from sterna.cli.terminal.console import Stages
from sterna.cli.terminal.tables import Table
from sterna.hw.flow.routed import CriticalPath, PlacedCells, SlackHistogram
from sterna.hw.flow.synth_report import Origin, SynthReport, Usage, part_of
from sterna.hw.fpga.family import FpgaTarget, Resource
from sterna.model.files import write_atomically

if TYPE_CHECKING:
    from sterna.hw.flow.cached_tools import Progress
    from sterna.hw.flow.place_route import RouterStep

__all__ = ["ORIGINS_TEXT", "area_plot", "floorplan", "headline", "synth_progress", "synth_tables",
           "write_synth_report"]


@contextmanager
def synth_progress(quiet: bool) -> Iterator[Progress]:
    """Show each tool, and each phase of place and route, as a stage.

    Yields the progress callback for :func:`~sterna.synth`.
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
    """The unit and its target."""
    geometry = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in report.sizes.items()
        if not isinstance(value, bool))
    flags = [name.replace("_", " ") for name, value in report.sizes.items() if value is True]
    geometry += f"; with {', '.join(flags)}" if flags else ""
    lines = [f"{report.unit} ({report.module}) for {report.target.name}: "
             f"{report.target.description}", geometry]
    lines += [] if report.chosen is None else [report.chosen]
    if (report.target.router is not None and report.target.part_pins is None
            and report.usage[0].tool == report.synthesis.tool):
        lines.append("counted by Yosys alone: nextpnr, which is not installed, counts more, above "
                     "all on iCE40; the extra pnr brings it")
    return lines


def synth_tables(report: SynthReport) -> dict[str, Table]:
    """All tables by name: figures, seeds, path, blocks; seeds and path only after routing."""
    tables = {"figures": _figures(report)}
    if len(report.runs) > 1 or report.placed_mhz:
        tables["seeds"] = _seeds(report)
    if report.best is not None and report.best.path is not None:
        tables["path"] = _path(report.best.seed, report.best.path)
    tables["blocks"] = Table(
        f"area by block ({report.synthesis.tool}, before place and route)",
        ("block", "LUT", "carry", "FF", "block RAM", "DSP"),
        [(name, area.lut, area.carry, area.ff, area.block_ram, area.dsp)
         for name, area in sorted(report.parts.items(), key=lambda item: -item[1].lut)])
    return tables


def _figures(report: SynthReport) -> Table:
    rows: list[tuple[object, ...]] = []

    def add(name: str, value: str, tool: str, available: int | None = None,
            origin: Origin = Origin.MEASURED) -> None:
        rows.append((name, value, "" if available is None else f"{available:,}", origin.value,
                     tool.partition(".post")[0]))

    yosys, counter = report.synthesis.tool, report.usage[0].tool
    for each in report.usage:
        add(report.target.name_of(each.resource), f"{each.needed:,}", each.tool, each.available)
        if each.resource is Resource.LUT:
            if Resource.FF not in report.target.available and report.target.available:
                add("LUT", f"{report.synthesis.area.lut:,}", yosys)
                add("FF", f"{report.synthesis.area.ff:,}", yosys)
            add("carry cells", f"{report.synthesis.area.carry:,}", yosys)
    if report.lut_per_mac is not None:
        add("LUT per MAC/cycle", f"{report.lut_per_mac:.2f}", counter)
    if report.array_lut_per_mac is not None:
        add("of which in the array", f"{report.array_lut_per_mac:.2f}", yosys)
    for name, value in report.fmax_mhz.items():
        assert report.target.router is not None
        if len(report.runs) > 1 or name == "max":
            add(f"Fmax, {name}, MHz" if len(report.runs) > 1 else "Fmax, MHz", f"{value:.1f}",
                report.target.router.tool)
    if report.cycles_per_token is not None:
        add(f"cycles per {report.step}", number(report.cycles_per_token), "cycle model",
            origin=Origin.SIMULATED)
    if report.tokens_per_second is not None:
        add(f"{report.step}s/s", f"{report.tokens_per_second:,.0f}", "largest Fmax / cycles",
            origin=Origin.ESTIMATED)
    return Table("figures", ("figure", "value", "available", "kind", "by"), rows)


def _seeds(report: SynthReport) -> Table:
    """The clock of each seed, and with screening the clock expected after placement."""
    placed, runs = report.placed_mhz, {run.seed: run for run in report.runs}
    columns = ("seed", *(["as placed, MHz"] if placed else []), "Fmax, MHz", "slowest path")
    rows = []
    for seed in placed or runs:
        run = runs.get(seed)
        found = ("", "") if run is None else (
            f"{run.fmax_mhz:.1f}", f"{run.path.start} -> {run.path.end}" if run.path else "")
        rows.append((seed, *([f"{placed[seed]:.1f}"] if placed else []), *found))
    return Table("place and route", columns, rows)


def _path(seed: int, path: CriticalPath) -> Table:
    rows: list[tuple[object, ...]] = []
    arrival = 0.0
    for hop in path.hops:
        arrival += hop.logic_ns + hop.routing_ns
        kind = hop.kind if hop.cells == 1 else f"{hop.kind} x {hop.cells}"
        rows.append((hop.block or "(itself)", kind, hop.wire or "", f"{hop.routing_ns:.2f}",
                     f"{hop.logic_ns:.2f}", f"{arrival:.2f}"))
    return Table(f"critical path, seed {seed}: {path}",
                 ("block", "cell", "wire", "routing, ns", "logic, ns", "sum, ns"), rows)


# The page ---------------------------------------------------------------------------


def write_synth_report(folder: Path, name: str, report: SynthReport) -> list[Path]:
    """Write ``synth.json``, ``synth.html`` and ``area.svg``; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    plot = area_plot(report)
    tables = {key: html_table(table) for key, table in synth_tables(report).items()}
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
    """Whether it fits and reaches the requested clock."""
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
        figures.append((number(round(report.tokens_per_second)), f"{report.step}s/s, estimated"))
    device = report.target.description
    if report.misfit is not None:
        return Verdict(Outcome.FAIL, "DOES NOT FIT", report.misfit, figures)
    if not report.clock_met and report.best is not None:
        return Verdict(Outcome.FAIL, "CLOCK NOT REACHED", f"{report.required_mhz:g} MHz required, "
                       f"{report.best.fmax_mhz:.1f} MHz reached on {device}.", figures)
    if not limited:
        return Verdict(Outcome.NOTE, "SYNTHESISED", f"{device}: a family, whose devices have "
                       "different limits, so there is none to compare with.", figures)
    clock = "" if report.required_mhz is None else (
        f" The clock of {report.required_mhz:g} MHz is reached.")
    return Verdict(Outcome.PASS, "FITS", f"Every resource suffices on {device}.{clock}", figures)


def _usage(report: SynthReport) -> str:
    """Utilisation of the device; empty for a family."""
    meters = [
        (report.target.name_of(each.resource), each.share,
         f"{each.needed:,} of {each.available:,}: {_percent(each)}")
        for each in report.usage if each.available is not None and (each.needed or each.available)]
    if not meters:
        return ""
    return html_heading(f"what it takes of {report.target.name}") + html_meters(meters)


def _percent(usage: Usage) -> str:
    """Utilisation of a resource; no number if none is available but some needed."""
    return f"{usage.share:.1%}" if usage.available else "too many"


def _placed(report: SynthReport) -> str:
    """Floorplan and slack of the fastest run."""
    best = report.best
    if best is None or report.aim_mhz is None or report.target.router is None:
        return ""
    text = ""
    if report.target.grid is not None:
        text = (html_heading("where the cells are")
                + floorplan(best.placement, report.target, best.seed))
    if best.slack is not None:
        said = slack_text(best.slack, report.aim_mhz,
                          wrapped=not report.target.router.out_of_context)
        text += (html_heading(f"slack, seed {best.seed}")
                 + html_figure(slack_plot(best.slack), said))
    return text


_COLUMNS = (("LUT", "lut", PALETTE[0]), ("FF", "ff", PALETTE[6]),
            ("block RAM", "block_ram", PALETTE[1]), ("DSP", "dsp", PALETTE[3]))


def area_plot(report: SynthReport) -> str:
    """Draw the area of each block, one column per resource; return an SVG element."""
    parts = dict(sorted(report.parts.items(), key=lambda item: (-item[1].lut, item[0])))
    shown = [each for each in _COLUMNS if any(getattr(area, each[1]) for area in parts.values())]
    with drawing(9, 1.0 + 0.26 * len(parts)) as figure:
        columns = figure.subplots(1, max(len(shown), 1), sharey=True, squeeze=False)[0]
        for axes, (title, attribute, colour) in zip(columns, shown, strict=False):
            values = [getattr(area, attribute) for area in parts.values()]
            axes.barh(list(parts), values, color=colour, height=0.72)
            for place, value in enumerate(values):
                if value:
                    axes.annotate(f"{value:,}", (value, place), xytext=(3, 0), fontsize=8,
                                  textcoords="offset points", va="center")
            axes.set_title(f"{title}: {sum(values):,}", fontsize=9, loc="left")
            axes.set_xlim(0, 1.35 * max(values))
            axes.locator_params(axis="x", nbins=4, integer=True)
            axes.xaxis.set_major_formatter("{x:,.12g}")
            axes.tick_params(axis="y", length=0)
            axes.tick_params(axis="x", labelsize=7)
            axes.spines[["top", "right", "left"]].set_visible(False)
        columns[0].invert_yaxis()
        return svg_of(figure, "area", "area of each block, by resource")


_MET, _MISSED = PALETTE[0], PALETTE[3]


def slack_plot(found: SlackHistogram) -> str:
    """Draw the histogram, negative slack in red; return an SVG element."""
    with drawing(9, 2.6) as figure:
        axes = figure.add_subplot()
        for each in found.bins:
            axes.bar(each.low_ps / 1000, each.endpoints, align="edge",
                     width=0.94 * (each.high_ps - each.low_ps) / 1000,
                     color=_MISSED if each.low_ps < 0 else _MET)
        axes.axvline(0, color="#000000", linewidth=1)
        axes.set_xlabel("slack, ns")
        axes.set_ylabel("endpoints")
        axes.yaxis.set_major_formatter("{x:,.12g}")
        axes.spines[["top", "right"]].set_visible(False)
        return svg_of(figure, "slack", "number of paths by the time that they have left")


def slack_text(found: SlackHistogram, aim_mhz: float, *, wrapped: bool) -> str:
    """Explanation of the bars, in sentences."""
    text = (f"Time that is left at {aim_mhz:g} MHz, the clock that place and route aimed at, on "
            "the slowest path to each endpoint. Below 0 it is late; a bar that begins there is "
            "red. By nextpnr, after routing.")
    if found.step > 1:
        text += (f" It prints a mark for {found.step} endpoints and leaves out the rest: a bar "
                 f"is up to {found.step - 1} short.")
    if wrapped:
        text += " The registers around the unit are counted as well."
    return text


_LOGIC = (Resource.LUT, Resource.FF)
_OTHERS = "others"
_OUTSIDE = "added to place it"
_UNIT = 10
"""Side of a tile in the drawing's own units."""


def floorplan(tiles: Sequence[PlacedCells], target: FpgaTarget, seed: int) -> str:
    """Draw the placement of the cells, with a legend; return HTML.

    Written as SVG directly: for the ten thousand rectangles of a full device, matplotlib would need
    a megabyte.
    """
    assert target.grid is not None
    assert target.router is not None
    columns, rows = target.grid
    colours = _colours(tiles)
    drawn = _paths(tiles, set(colours), rows, target.router.tile_cells)
    paths = "".join(f'<path fill="{colours[name]}" d="{drawn[name]}"/>'
                    for name in colours if name in drawn)
    width, height = columns * _UNIT, rows * _UNIT
    svg = (f'<svg class="floor" viewBox="-4 -4 {width + 8} {height + 8}" role="img" '
           f'aria-label="where the cells of each block are on the device">'
           f'<rect width="{width}" height="{height}" fill="none" stroke="currentColor" '
           f'stroke-width="2" opacity="0.55"/>{paths}</svg>')
    cells = Counter[str]()
    for each in tiles:
        cells[_shown(each, set(colours))] += each.cells
    legend = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" '
        f'fill="{colour}"/></svg>{html.escape(name)} ({cells[name]:,})</li>'
        for name, colour in colours.items())
    caption = (
        f"{target.name}, {columns} x {rows} tiles, as placed with seed {seed}; in brackets the "
        f"cells. A tile of logic is filled as far as its {target.router.tile_cells} "
        f"{'LUTs and flip-flops' if Resource.FF in target.router.bels else 'logic cells'} are "
        f"taken, a framed one is block RAM or a multiplier. Row 0 is at the bottom.")
    return f'<ul class="legend">{legend}</ul>{html_figure(svg, caption)}'


def _colours(tiles: Iterable[PlacedCells]) -> dict[str, str]:
    """A colour for each of the largest blocks, one for all others."""
    sizes = Counter[str]()
    for each in tiles:
        if each.block is not None:
            sizes[part_of(each.block)] += each.cells
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))
    kept = largest if len(largest) <= len(PALETTE) else largest[:len(PALETTE) - 1]
    colours = dict(zip(kept, PALETTE, strict=False))
    if len(kept) < len(largest):
        colours[_OTHERS] = PALETTE[-1]
    if any(each.block is None for each in tiles):
        colours[_OUTSIDE] = GREY
    return colours


def _shown(cells: PlacedCells, names: set[str]) -> str:
    if cells.block is None:
        return _OUTSIDE
    part = part_of(cells.block)
    return part if part in names else _OTHERS


def _paths(
    tiles: Iterable[PlacedCells], names: set[str], rows: int, tile_cells: int,
) -> dict[str, str]:
    """For each block the outline of its area: slices of tiles, by its number of cells."""
    by_tile: dict[tuple[int, int], list[PlacedCells]] = defaultdict(list)
    for each in tiles:
        by_tile[each.x, each.y].append(each)
    paths: dict[str, list[str]] = defaultdict(list)
    for (x, y), placed in sorted(by_tile.items()):
        left, top = x * _UNIT, (rows - 1 - y) * _UNIT
        logic = Counter[str]()
        for each in placed:
            name = _shown(each, names)
            if each.resource in _LOGIC:
                logic[name] += each.cells
            else:
                # The frame: a square with a square hole; overlaps cancel out.
                paths[name].append(f"M{left} {top}h{_UNIT}v{_UNIT}h-{_UNIT}z"
                                   f"M{left + 2} {top + 2}v{_UNIT - 4}h{_UNIT - 4}v-{_UNIT - 4}z"
                                   f"M{left + 3} {top + 3}h{_UNIT - 6}v{_UNIT - 6}h-{_UNIT - 6}z")
        before = 0
        for name, cells in sorted(logic.items()):
            begin, end = (min(_UNIT * taken / tile_cells, _UNIT)
                          for taken in (before, before + cells))
            before += cells
            paths[name].append(
                f"M{left} {top + _UNIT - begin:g}h{_UNIT - 1}V{top + _UNIT - end:g}h-{_UNIT - 1}z")
    return {name: "".join(parts) for name, parts in paths.items()}
