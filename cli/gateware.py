"""``sterna verilog`` and ``sterna simulate``: the units, as text and at work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sterna.cli.console import out, print_json, print_table, say
from sterna.cli.texts import tokens_of
from sterna.hw.unit import Unit
from sterna.model.quantized import load_model
from sterna.sim.runner import Simulator

__all__ = ["COMMANDS", "simulate", "verilog"]

_DEFAULT_TOKENS = {
    Unit.MAC: 4, Unit.MLGRU: 64, Unit.NORM: 8, Unit.GLU: 16, Unit.RESIDUAL: 32,
    Unit.EMBEDDING: 64, Unit.SAMPLER: 32, Unit.WEIGHTS: 1,
}

_DEFAULTS_TEXT = ", ".join(f"{count} ({unit})" for unit, count in _DEFAULT_TOKENS.items())

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Quantised file, or tiny.")]
UnitOption = Annotated[Unit, typer.Option(help="Which unit.")]
RowsOption = Annotated[int, typer.Option(
    help="mac, weights: rows computed side by side; norm, residual, embedding, sampler: "
         "elements of a word.")]
ColsOption = Annotated[int, typer.Option(help="mac, weights: columns taken per beat.")]
LanesOption = Annotated[int, typer.Option(
    help="mlgru, glu: channels taken per beat; norm: activations given per cycle, a multiple "
         "of the rows.")]
StreamsOption = Annotated[int, typer.Option(
    help="norm, glu, embedding: interleaved sequences.")]
TraceOption = Annotated[bool, typer.Option(
    "--trace", help="norm, glu: intermediate values come out, too.")]


def verilog(
    model: ModelArgument,
    unit: UnitOption,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    rows: RowsOption = 8,
    cols: ColsOption = 128,
    lanes: LanesOption = 8,
    streams: StreamsOption = 1,
    trace: TraceOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> int:
    """Write a unit's Verilog, memory image, parameters and documentation.

    Example: sterna verilog tiny --unit mac -o build/mac
    """
    from sterna.hw.emit import emit_verilog
    emitted = emit_verilog(
        load_model(model), unit.value, output, rows=rows, cols=cols, lanes=lanes,
        streams=streams, trace=trace)
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
        help=f"Tokens of the text to run; default {_DEFAULTS_TEXT}.")] = None,
    text: Annotated[Path | None, typer.Option(
        help="UTF-8 text; default: the held-out text of the bundled models.")] = None,
    rows: RowsOption = 8,
    cols: ColsOption = 128,
    lanes: LanesOption = 8,
    streams: StreamsOption = 1,
    trace: TraceOption = False,
    simulator: Annotated[Simulator, typer.Option(help="Which simulator.")] = Simulator.VERILATOR,
    waves: Annotated[bool, typer.Option("--waves", help="Keep a wave file.")] = False,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", help="Keep Verilog, log and waves in this folder.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random pauses.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Run a unit's emitted Verilog on real weights and activations, and compare.

    Every output is compared with the integer reference and with onnxruntime (the weight
    memory with the model's weights). Exits with 1 on a mismatch, which it names.

    Example: sterna simulate tiny --unit mlgru --tokens 64
    """
    from sterna.sim.simulate import simulate as run_simulation
    loaded = load_model(model)
    count = _DEFAULT_TOKENS[unit] if tokens is None else tokens
    if waves and output is None:
        output = Path("build/waves")
    report = run_simulation(
        loaded, unit, tokens_of(text, count, loaded), rows=rows, cols=cols, lanes=lanes,
        streams=streams, trace=trace, simulator=simulator, waves=waves, work=output, seed=seed,
        progress=lambda line: say(line, quiet))
    if as_json:
        print_json(report.as_dict())
    else:
        print_table(
            f"{unit.value} in {simulator.value}, {count} tokens, seed {seed}",
            ("phase", "beats", "cycles", "values = reference", "values = onnxruntime",
             "mismatches"),
            [(phase.name, phase.beats, phase.cycles, phase.checks.reference.values,
              phase.checks.onnx.values,
              phase.checks.reference.mismatches + phase.checks.onnx.mismatches)
             for phase in report.phases])
        if output is not None:
            out.print(f"kept in {output}")
    if report.failure is not None:
        say(f"MISMATCH in {report.failure}")
    return 0 if report.passed else 1


COMMANDS = (verilog, simulate)
