"""``sterna report``: cycles, bounds and memory of a core, before any synthesis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.cli.terminal.console import Stages, out, print_json
from sterna.cli.terminal.options import MODEL_HELP, JsonOption, QuietOption, check_file, choose
from sterna.model.config import NAMED_CONFIGS, ModelConfig
from sterna.model.profile import PROFILES
from sterna.model.quantized import load_model

if TYPE_CHECKING:
    from sterna.hw.core.plan.image import CoreImage
    from sterna.hw.core.timing.cycle_report import CycleReport

__all__ = ["COMMANDS", "report"]


def report(
    model: Annotated[str | None, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP}; or give --config.")] = None,
    config: Annotated[str | None, typer.Option(
        help="A shape without weights: micro, nano, tiny or small. Its memories are as wide as "
             "any model of that shape could need.")] = None,
    profile: Annotated[str | None, typer.Option(
        help="With --config: numeric profile, S16 (default) or C12.")] = None,
    rows: Annotated[int, typer.Option(help="Rows computed in parallel.")] = 8,
    cols: Annotated[int, typer.Option(help="Columns per beat.")] = 128,
    sequences: Annotated[int, typer.Option(help="Interleaved sequences, 1 or 2.")] = 1,
    quant_lanes: Annotated[int, typer.Option(
        help="Elements quantised per cycle, a multiple of the rows; 0 chooses.")] = 0,
    clock_mhz: Annotated[float | None, typer.Option(
        help="Also show tokens per second at this clock.")] = None,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE.html", help="Write the report as a page.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Count the cycles of a token in gateware.

    Shows where they go and what bounds them, and lists the bits of every memory. Computed by the
    cycle model, which equals the simulated Verilog; no tool is needed.

    Example: sterna report tiny --rows 8 --cols 128 --clock-mhz 100
    """
    from sterna.hw.core.timing.cycle_report import cycle_report
    check_file(output, suffix=".html")
    with Stages(quiet) as stage:
        stage("run the cycle model", quick=True)
        image = _image(model, config, profile, rows, cols, sequences, quant_lanes)
        found = cycle_report(image)
    name = model or f"{config} (no weights)"
    data = {"model": model, **found.as_dict(clock_mhz)}
    if output is not None:
        from sterna.cli.reports.hardware_page import write_hardware_report
        output.parent.mkdir(parents=True, exist_ok=True)
        write_hardware_report(output, name, found, clock_mhz)
    if as_json:
        print_json(data)
    else:
        _print(name, found, clock_mhz)
        if output is not None:
            out.print(f"\nreport: {output}")
    return 0


def _image(
    model: str | None, config: str | None, profile: str | None, rows: int, cols: int,
    sequences: int, quant_lanes: int,
) -> CoreImage:
    """The packed model, or an empty image of a configuration."""
    from sterna.hw.core.plan.core_params import CoreParams
    from sterna.hw.core.plan.image import build_image
    from sterna.hw.core.timing.cycle_report import shape_image
    if (model is None) == (config is None):
        raise ValueError("give either a MODEL or --config")
    if config is None:
        if profile is not None:
            raise ValueError("--profile goes with --config: a MODEL has a profile of its own")
        loaded = load_model(str(model))
        return build_image(loaded, CoreParams(
            loaded.config, loaded.profile, rows, cols, sequences, quant_lanes))
    chosen = choose("--profile", "S16" if profile is None else profile, PROFILES)
    choose("--config", config, NAMED_CONFIGS)
    return shape_image(CoreParams(
        ModelConfig.named(config), PROFILES[chosen], rows, cols, sequences, quant_lanes))


def _print(name: str, found: CycleReport, clock_mhz: float | None) -> None:
    from sterna.cli.reports.hardware_page import cycle_tables, headline, print_bars, verdict
    out.print(name, style="bold")
    for line in headline(found):
        out.print(line)
    for key, table in cycle_tables(found, clock_mhz).items():
        out.print()
        table.print()
        if key == "tokens":
            for line in verdict(found):
                out.print(line)
        elif key == "stages":
            print_bars(found)


COMMANDS = (report,)
