"""``sterna units``, ``verilog`` and ``simulate``: the units, as a list, as text and at work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.cli.commands import unit_options
from sterna.cli.commands.core_simulation import simulate_core
from sterna.cli.reports.results import PROMPT
from sterna.cli.terminal.console import Stages, out, print_json, print_table, say
from sterna.cli.terminal.options import (
    JsonOption,
    ModelArgument,
    QuietOption,
    WavesOption,
    check_folder,
)
from sterna.cli.terminal.texts import tokens_of
from sterna.model.quantized import load_model
from sterna.sim.bench.runner import Engine, Simulator

if TYPE_CHECKING:
    from sterna.sim.simulate import SimulationReport

__all__ = ["COMMANDS", "simulate", "units", "verilog"]


def units(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> int:
    """List the units and their sizes.

    Says what each unit is, which sizes it has, with their defaults, and how many tokens simulate
    runs by default.

    Example: sterna units
    """
    from sterna.hw.catalog import UNITS
    if as_json:
        print_json([{"unit": spec.name, "what": spec.summary, "module": spec.module,
                     "tokens": spec.tokens, "sizes": spec.sizes} for spec in UNITS.values()])
    else:
        print_table(
            None, ("unit, module", "what", "tokens", "sizes and their defaults"),
            [(f"{spec.name}\n{spec.module}", spec.summary, spec.tokens, " ".join(map(_size, *zip(
                *spec.sizes.items(), strict=True)))) for spec in UNITS.values()])
    return 0


def _size(name: str, default: object) -> str:
    """A size as an option with its default: ``--lanes 8``, ``--[no-]logits``."""
    option = name.replace("_", "-")
    if isinstance(default, bool):
        return f"--[no-]{option}" if default else f"[--{option}]"
    return f"--{option} {'(of the model)' if default is None else default}"


@unit_options.size_options()
def verilog(
    model: ModelArgument,
    unit: unit_options.UnitOption,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    sizes: unit_options.GivenSizes,
    axis: Annotated[bool, typer.Option(
        "--axis", help="Write a wrapper with AXI4-Stream ports, too.")] = False,
    quiet: QuietOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> int:
    """Write a unit as a folder of Verilog.

    The folder also has the memory image, the parameters and the documentation of the unit.

    Example: sterna verilog tiny --unit core -o build/core
    """
    from sterna.hw.catalog import emit_verilog
    check_folder(output)
    with Stages(quiet) as stage:
        stage("emit the Verilog", quick=True)
        emitted = emit_verilog(load_model(model), unit, output, axis=axis, **sizes)
    if as_json:
        print_json(emitted.manifest)
    else:
        for path in sorted(emitted.folder.iterdir()):
            out.print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


@unit_options.size_options("rows", "cols", "lanes", "sequences", "trace", "quant_lanes", "style")
def simulate(
    model: ModelArgument,
    unit: unit_options.UnitOption,
    *,
    tokens: Annotated[int | None, typer.Option(
        help="Tokens of the text to run, or for the core to write. Default: the unit's own.")
        ] = None,
    prompt: Annotated[list[str] | None, typer.Option(
        help="core: text to continue; two texts are two interleaved sequences.")] = None,
    temperature: Annotated[float, typer.Option(
        help="core: 0 takes the most likely token.")] = 0.0,
    engine: Annotated[Engine, typer.Option(
        help="core: cocotb compares every tensor; cpp is for thousands of tokens.")
        ] = Engine.COCOTB,
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text. Default: the held-out text of the bundled models.")] = None,
    sizes: unit_options.GivenSizes,
    netlist: Annotated[bool, typer.Option(
        "--netlist", help="Simulate the netlist of the unit for ECP5. For small sizes.")
        ] = False,
    simulator: Annotated[Simulator, typer.Option(help="Which simulator.")] = Simulator.VERILATOR,
    waves: WavesOption = None,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", help="Keep the Verilog and the log in this folder.")] = None,
    seed: Annotated[int, typer.Option(
        help="Seed of the random pauses, and of the core's sampler.")] = 1,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Simulate a unit's Verilog and compare what it computes.

    It runs on real weights and activations. Every output is compared with the integer
    reference and with onnxruntime (of the weight memory, with the model's weights). Exits
    with 1 on a mismatch, which it names.

    The core writes text: one sequence for each --prompt. All its intermediate tensors (with
    --engine cpp the logits and the final state) and all its cycles are compared.

    Example: sterna simulate tiny --unit core --prompt "The for statement" --tokens 64
    """
    from sterna.hw.catalog import unit_named
    spec = unit_named(unit)
    spec.check_sizes(sizes)
    loaded = load_model(model)
    count = spec.tokens if tokens is None else tokens
    if output is not None:
        check_folder(output)
    is_core = spec.stimulus is None
    if is_core:
        _refuse(unit, "give --prompt twice for two sequences",
                **{"--sequences": sizes.get("sequences")})
        _refuse(unit, "cocotb compares every tensor anyway", **{"--trace": sizes.get("trace")})
        _refuse(unit, "the core writes text: give --prompt", **{"--text": text})
    else:
        _refuse(unit, "it is for --unit core", **{
            "--prompt": prompt or None, "--temperature": temperature or None,
            "--engine": None if engine is Engine.COCOTB else engine})
    if netlist and engine is Engine.CPP:
        raise ValueError("--netlist does not go with --engine cpp: it is for --engine cocotb")
    if is_core:
        return simulate_core(
            loaded, prompt or [PROMPT], count, temperature=temperature, sizes=sizes,
            engine=engine, netlist=netlist, simulator=simulator, waves=waves, output=output,
            seed=seed, quiet=quiet, as_json=as_json)
    from sterna.sim.netlist import simulate_netlist
    from sterna.sim.simulate import simulate as simulate_verilog
    run_simulation = simulate_netlist if netlist else simulate_verilog
    with Stages(quiet) as stage:
        report = run_simulation(
            loaded, unit, tokens_of(text, count, loaded), simulator=simulator, waves=waves,
            work=output, seed=seed, progress=stage, **sizes)
    if as_json:
        print_json(report.as_dict())
    else:
        _print(f"{'netlist of ' if netlist else ''}{unit} in {simulator.value}, {count} tokens, "
               f"seed {seed}", report, output)
    if report.failure is not None:
        say(f"MISMATCH in {report.failure}")
    return 0 if report.passed else 1


def _print(title: str, report: SimulationReport, kept: Path | None) -> None:
    print_table(
        title, ("phase", "beats", "cycles", "values = reference", "values = onnxruntime",
                "mismatches"),
        [(phase.name, phase.beats, phase.cycles, phase.checks.reference.values,
          phase.checks.onnx.values,
          phase.checks.reference.mismatches + phase.checks.onnx.mismatches)
         for phase in report.phases])
    if kept is not None:
        out.print(f"kept in {kept}")


def _refuse(unit: str, hint: str, **options: object) -> None:
    """Refuse options that were given (are not None) but do not go with what is simulated."""
    for option, value in options.items():
        if value is not None:
            raise ValueError(f"{option} does not go with simulate --unit {unit}: {hint}")


COMMANDS = (units, verilog, simulate)
