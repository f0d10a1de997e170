"""``sterna synth``: area, clock and rate of a unit on an FPGA."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.cli.commands import unit_options
from sterna.cli.terminal.console import out, print_files, print_json, say
from sterna.cli.terminal.options import (
    JsonOption,
    ModelArgument,
    QuietOption,
    check_folder,
    choose,
    complete_target,
)
from sterna.hw.fpga.families import TARGETS
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.model.quantized import load_model

if TYPE_CHECKING:
    from sterna.hw.flow.synth_report import SynthReport

__all__ = ["COMMANDS", "synth"]

_SIZES = tuple(name for name in unit_options.SIZES if name != "style")   # has a separate option


@unit_options.size_options(*_SIZES)
def synth(
    model: ModelArgument,
    target: Annotated[str, typer.Option(
        help=f"{', '.join(TARGETS)}.", metavar="TARGET",
        autocompletion=complete_target)],
    *,
    unit: unit_options.UnitOption = None,
    sizes: unit_options.GivenSizes,
    style: Annotated[str, typer.Option(
        help=f"How rows are built: auto, {', '.join(ArrayStyle)}.")] = "auto",
    dsp: Annotated[bool, typer.Option(help="Allow multiplier blocks.")] = True,
    pnr: Annotated[bool, typer.Option("--pnr", help="Place and route as well.")] = False,
    seeds: Annotated[int, typer.Option(
        metavar="N", help="With --pnr: place and route N times, with the seeds 1 to N.")] = 1,
    route: Annotated[int | None, typer.Option(
        metavar="M", help="With --seeds: place with all, and route the M with the fastest "
                          "placements.")] = None,
    freq: Annotated[float | None, typer.Option(
        metavar="MHZ", help="With --pnr: required clock; exits with 1 if no seed reaches it.")
        ] = None,
    cache: Annotated[bool, typer.Option(
        help="Reuse what the tools made before; kept in the folder that STERNA_CACHE names, or "
             "in the user's cache.")] = True,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", help="Write synth.json, synth.html and area.svg to this folder.")
        ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Measure the area and the clock of a unit on an FPGA.

    Synthesises it and, with --pnr, places and routes it. Area and clock are the tools' own
    figures; cycles come from the cycle model. No board is used. The whole core of tiny takes
    several minutes to synthesise, and longer to route. Without sizes, it takes sizes that fit the
    target. A design that does not fit is also reported, with exit code 1.

    Example: sterna synth tiny --target ecp5-85k --unit mac --rows 4 --cols 16 --pnr
    """
    from sterna.cli.reports.synth_page import synth_progress, write_synth_report
    from sterna.hw.flow.fit import FitError
    from sterna.hw.flow.synth import synth as run
    from sterna.model.cache import Cache, user_cache
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    if seeds > 1 and not pnr:
        raise ValueError("--seeds is for place and route: give --pnr as well")
    if route is not None and not 1 <= route <= seeds:
        raise ValueError(f"--route must be from 1 to --seeds, {seeds}, got {route}")
    choose("--target", target, TARGETS)
    check_folder(output)
    loaded = load_model(model)
    try:
        with synth_progress(quiet) as progress:
            report = run(
                loaded, target, unit=unit, sizes=sizes, style=style, pnr=pnr,
                seeds=range(1, seeds + 1), routed=route, freq_mhz=freq, multipliers=dsp,
                cache=user_cache("synthesis") if cache else Cache(None), progress=progress)
    except FitError as error:
        if error.report is None:
            raise
        report = error.report       # keep the results of minutes of synthesis
    written = [] if output is None else write_synth_report(output, model, report)
    if as_json:
        print_json({"model": model, **report.as_dict()})
    else:
        _print(model, report)
        print_files(written)
    return _verdict(report)


def _print(name: str, report: SynthReport) -> None:
    from sterna.cli.reports.synth_page import ORIGINS_TEXT, headline, synth_tables
    out.print(name, style="bold")
    for line in headline(report):
        out.print(line)
    for table in synth_tables(report).values():
        out.print()
        table.print()
    out.print(ORIGINS_TEXT)


def _verdict(report: SynthReport) -> int:
    """0, or 1 with a line on standard error if it does not fit or misses the clock."""
    if report.misfit is not None:
        say(f"DOES NOT FIT: {report.misfit}")
        return 1
    best = report.best
    if report.clock_met or best is None:
        return 0
    runs = f"best of {len(report.runs)} seeds" if len(report.runs) > 1 else "one seed"
    say(f"CLOCK NOT REACHED: {report.required_mhz:g} MHz required, {best.fmax_mhz:.1f} MHz "
        f"reached ({runs}); critical path {best.path}")
    return 1


COMMANDS = (synth,)
