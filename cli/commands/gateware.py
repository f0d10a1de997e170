"""``sterna verilog`` and ``sterna simulate``: the units, as text and at work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sterna.cli.commands.core_simulation import simulate_core
from sterna.cli.reports.results import PROMPT
from sterna.cli.terminal.console import Stages, out, print_json, print_table, say
from sterna.cli.terminal.options import JsonOption, ModelArgument, QuietOption
from sterna.cli.terminal.texts import tokens_of
from sterna.hw.units.mac.base.style import ArrayStyle
from sterna.hw.units.spec import Unit
from sterna.model.quantized import load_model
from sterna.sim.bench.runner import Simulator
from sterna.sim.core.engine import Engine

if TYPE_CHECKING:
    from sterna.sim.simulate import SimulationReport

__all__ = ["COMMANDS", "simulate", "verilog"]

_DEFAULT_TOKENS = {
    Unit.MAC: 4, Unit.MLGRU: 64, Unit.NORM: 8, Unit.GLU: 16, Unit.RESIDUAL: 32,
    Unit.EMBEDDING: 64, Unit.SAMPLER: 32, Unit.WEIGHTS: 1, Unit.CORE: 64,
}

_DEFAULTS_TEXT = ", ".join(f"{count} ({unit})" for unit, count in _DEFAULT_TOKENS.items())

UnitOption = Annotated[Unit, typer.Option(help="Which unit.")]
RowsOption = Annotated[int, typer.Option(
    help="core, mac, weights: rows computed side by side; norm, residual, embedding, sampler: "
         "elements of a word.")]
ColsOption = Annotated[int, typer.Option(help="core, mac, weights: columns taken per beat.")]
LanesOption = Annotated[int, typer.Option(
    help="mlgru, glu: channels taken per beat; norm: activations given per cycle, a multiple "
         "of the rows.")]
StreamsOption = Annotated[int, typer.Option(
    help="interleaved sequences: core (verilog only), mlgru, norm, glu, embedding.")]
TraceOption = Annotated[bool, typer.Option(
    "--trace", help="intermediate values come out, too: core (verilog only), mlgru, norm, glu.")]
QuantLanesOption = Annotated[int, typer.Option(
    help="core: elements quantised per cycle, a multiple of the rows; 0 chooses.")]


def verilog(
    model: ModelArgument,
    unit: UnitOption,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    rows: RowsOption = 8,
    cols: ColsOption = 128,
    lanes: LanesOption = 8,
    streams: StreamsOption = 1,
    trace: TraceOption = False,
    quant_lanes: QuantLanesOption = 0,
    logits: Annotated[bool, typer.Option(help="core: a port for the logits.")] = True,
    external_weights: Annotated[bool, typer.Option(
        "--external-weights", help="core: weights come in through a port.")] = False,
    style: Annotated[ArrayStyle, typer.Option(
        help="core, mac, weights: what the array is built of.")] = ArrayStyle.GENERIC,
    sampling: Annotated[bool, typer.Option(
        help="core: can draw tokens with a temperature.")] = True,
    far_registers: Annotated[bool, typer.Option(
        help="core: one more register on long ways, for a large device.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> int:
    """Write a unit's Verilog, memory image, parameters and documentation.

    Example: sterna verilog tiny --unit core -o build/core
    """
    from sterna.hw.catalog import emit_verilog
    emitted = emit_verilog(
        load_model(model), unit.value, output, rows=rows, cols=cols, lanes=lanes,
        streams=streams, trace=trace, quant_lanes=quant_lanes, logits=logits,
        external_weights=external_weights, style=style, sampling=sampling,
        far_registers=far_registers)
    if as_json:
        print_json(emitted.manifest)
    else:
        for path in sorted(emitted.folder.iterdir()):
            out.print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


def simulate(
    model: ModelArgument,
    unit: UnitOption,
    tokens: Annotated[int | None, typer.Option(
        help=f"Tokens of the text to run (core: to write); default {_DEFAULTS_TEXT}.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(
        help="core: text to continue; give two for two interleaved sequences.")] = None,
    temperature: Annotated[float, typer.Option(
        help="core: 0 takes the most likely token.")] = 0.0,
    engine: Annotated[Engine, typer.Option(
        help="core: cocotb compares every tensor, cpp is for thousands of tokens.")
        ] = Engine.COCOTB,
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text; default: the held-out text of the bundled models.")] = None,
    rows: RowsOption = 8,
    cols: ColsOption = 128,
    lanes: LanesOption = 8,
    streams: StreamsOption = 1,
    trace: TraceOption = False,
    quant_lanes: QuantLanesOption = 0,
    netlist: Annotated[bool, typer.Option(
        "--netlist", help="Simulate the netlist that is made of it for ECP5; for small sizes.")
        ] = False,
    simulator: Annotated[Simulator, typer.Option(help="Which simulator.")] = Simulator.VERILATOR,
    waves: Annotated[bool, typer.Option("--waves", help="Keep a wave file.")] = False,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", help="Keep Verilog, log and waves in this folder.")] = None,
    seed: Annotated[int, typer.Option(
        help="Seed of the random pauses, and of the core's sampler.")] = 1,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Run a unit's emitted Verilog on real weights and activations, and compare.

    The core writes text: one sequence for each --prompt. Every intermediate tensor (with
    --engine cpp the logits and the final state) and every cycle of it is compared.

    Every output is compared with the integer reference and with onnxruntime (the weight
    memory with the model's weights). Exits with 1 on a mismatch, which it names.

    Example: sterna simulate tiny --unit core --prompt "The for statement" --tokens 64
    """
    loaded = load_model(model)
    count = _DEFAULT_TOKENS[unit] if tokens is None else tokens
    if waves and output is None:
        output = Path("build/waves")
    _refuse_strangers(unit, {
        "--streams": streams != 1, "--trace": trace, "--text": text is not None}, {
        "--prompt": bool(prompt), "--temperature": temperature != 0,
        "--engine": engine is not Engine.COCOTB, "--quant-lanes": quant_lanes != 0})
    if netlist and engine is Engine.CPP:
        raise ValueError("--netlist does not go with --engine cpp: it is for --engine cocotb")
    if unit is Unit.CORE:
        return simulate_core(
            loaded, prompt or [PROMPT], count, temperature=temperature, rows=rows, cols=cols,
            quant_lanes=quant_lanes, engine=engine, netlist=netlist, simulator=simulator,
            waves=waves, output=output, seed=seed, quiet=quiet, as_json=as_json)
    from sterna.sim.netlist import simulate_netlist
    from sterna.sim.simulate import simulate as simulate_verilog
    run_simulation = simulate_netlist if netlist else simulate_verilog
    with Stages(quiet) as stage:
        report = run_simulation(
            loaded, unit, tokens_of(text, count, loaded), rows=rows, cols=cols, lanes=lanes,
            streams=streams, trace=trace, simulator=simulator, waves=waves, work=output,
            seed=seed, progress=stage)
    if as_json:
        print_json(report.as_dict())
    else:
        _print(f"{'netlist of ' if netlist else ''}{unit.value} in {simulator.value}, "
               f"{count} tokens, seed {seed}", report, output)
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


def _refuse_strangers(unit: Unit, of_units: dict[str, bool], of_core: dict[str, bool]) -> None:
    """Refuse options that were given but do not go with what is simulated."""
    given = of_units if unit is Unit.CORE else of_core
    for option, is_given in given.items():
        if is_given:
            hint = (" (give --prompt twice for two sequences; cocotb always traces)"
                    if unit is Unit.CORE else ": it is for --unit core")
            raise ValueError(f"{option} does not go with simulate --unit {unit.value}{hint}")


COMMANDS = (verilog, simulate)
