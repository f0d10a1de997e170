"""``sterna units``, ``verilog``, ``simulate`` and ``report``: units, their Verilog and cycles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.commands import unit_options
from sterna.cli.terminal.console import Stages, out, print_files, print_json, say, write
from sterna.cli.terminal.options import (
    MODEL_HELP,
    JsonOption,
    ModelArgument,
    QuietOption,
    WavesOption,
    check_file,
    check_folder,
    choose,
    refuse,
)
from sterna.cli.terminal.tables import Table
from sterna.cli.terminal.texts import PROMPT, check_prompts, tokens_of
from sterna.model.config import NAMED_CONFIGS, ModelConfig
from sterna.model.profile import PROFILES
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.tokens.tokenizer import TextStream, Tokenizer
from sterna.sim.bench.runner import Engine, Simulator

if TYPE_CHECKING:
    from sterna.hw.oldcore.plan.image import CoreImage
    from sterna.hw.oldcore.timing.cycle_report import CycleReport
    from sterna.sim.core.simulate import CoreReport
    from sterna.sim.simulate import SimulationReport

__all__ = ["COMMANDS", "report", "simulate", "units", "verilog"]


def units(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> int:
    """List the units and their sizes.

    Shows what each unit is, its sizes with their defaults, and how many tokens simulate runs by
    default.

    Example: sterna units
    """
    from sterna.hw.catalog import UNITS
    if as_json:
        print_json([{"unit": spec.name, "what": spec.summary, "module": spec.module,
                     "tokens": spec.tokens, "sizes": spec.sizes} for spec in UNITS.values()])
    else:
        Table(None, ("unit, module", "what", "tokens", "sizes and their defaults"), [
            (f"{spec.name}\n{spec.module}", spec.summary, spec.tokens,
             " ".join(_size(*item) for item in spec.sizes.items()))
            for spec in UNITS.values()]).print()
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
        "--axis", help="Also write a wrapper with AXI4-Stream ports.")] = False,
    quiet: QuietOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> int:
    """Write a unit as a folder of Verilog.

    The folder also holds the memory image, the parameters and the documentation of the unit.

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
        print_files(sorted(emitted.folder.iterdir()))
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
        "--netlist", help="Simulate the unit's ECP5 netlist instead. For small sizes.")] = False,
    simulator: Annotated[Simulator, typer.Option(help="Simulator to use.")] = Simulator.VERILATOR,
    waves: WavesOption = None,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", help="Keep the Verilog and the log in this folder.")] = None,
    seed: Annotated[int, typer.Option(
        help="Seed of the random pauses, and of the core's sampler.")] = 1,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Simulate a unit's Verilog and compare what it computes.

    Runs on real weights and activations, and compares every output with the integer reference
    and with onnxruntime (that of the weight memory, with the model's weights). Exits with 1 on a
    mismatch, and names it.

    The core writes text, one sequence for each --prompt. All its intermediate tensors (with
    --engine cpp, the logits and the final state) and all its cycles are compared.

    Example: sterna simulate tiny --unit core --prompt "The for statement" --tokens 64
    """
    from sterna.hw.catalog import unit_named
    spec = unit_named(unit)
    spec.check_sizes(sizes)
    loaded = load_model(model)
    count = spec.tokens if tokens is None else tokens
    check_folder(output)
    where = f"does not go with simulate --unit {unit}"
    is_core = spec.stimulus is None
    if is_core:
        refuse(f"{where}: give --prompt twice for two sequences", sequences="sequences" in sizes)
        refuse(f"{where}: cocotb compares every tensor anyway", trace="trace" in sizes)
        refuse(f"{where}: the core writes text: give --prompt", text=text)
    else:
        refuse(f"{where}: it is for --unit core", prompt=prompt, temperature=temperature,
               engine=engine is not Engine.COCOTB)
    if netlist and engine is Engine.CPP:
        raise ValueError("--netlist does not go with --engine cpp: it is for --engine cocotb")
    common: dict[str, Any] = {
        "simulator": simulator, "waves": waves, "work": output, "seed": seed, **sizes}
    if is_core:
        return _simulate_core(
            loaded, prompt or [PROMPT], count, temperature, engine, netlist, common, quiet,
            as_json)
    from sterna.sim.netlist import simulate_netlist
    from sterna.sim.simulate import simulate as simulate_verilog
    with Stages(quiet) as stage:
        found = (simulate_netlist if netlist else simulate_verilog)(
            loaded, unit, tokens_of(text, count, loaded), progress=stage, **common)
    if as_json:
        print_json(found.as_dict())
    else:
        _unit_table(f"{'netlist of ' if netlist else ''}{unit} in {simulator.value}, {count} "
                    f"tokens, seed {seed}", found).print()
    return _end(found, output, as_json)


def _unit_table(title: str, report: SimulationReport) -> Table:
    return Table(title, ("phase", "beats", "cycles", "values = reference",
                         "values = onnxruntime", "mismatches"), [
        (phase.name, phase.beats, phase.cycles, phase.checks.reference.values,
         phase.checks.onnx.values,
         phase.checks.reference.mismatches + phase.checks.onnx.mismatches)
        for phase in report.phases])


def _end(report: SimulationReport | CoreReport, kept: Path | None, as_json: bool) -> int:
    """Name the folder and the first mismatch; return the exit code."""
    if kept is not None and not as_json:
        out.print(f"kept in {kept}")
    if report.failure is not None:
        say(f"MISMATCH in {report.failure}")
    return 0 if report.passed else 1


def _simulate_core(
    model: QuantizedModel, prompts: list[str], tokens: int, temperature: float, engine: Engine,
    netlist: bool, common: dict[str, Any], quiet: bool, as_json: bool,
) -> int:
    """Let a core write text, print it and what was compared; return the exit code.

    With the C++ engine and one prompt the text appears as it is written.
    """
    check_prompts(prompts, model.config.vocab)
    encoded = [model.tokenizer.encode(prompt).tolist() for prompt in prompts]
    spelled = model.config.vocab == model.tokenizer.vocab
    live = engine is Engine.CPP and len(prompts) == 1 and spelled and not as_json
    with Stages(quiet) as stage:
        text = _LiveText(prompts[0], model.tokenizer, stage)
        if netlist:
            from sterna.sim.netlist import simulate_core_netlist
            report = simulate_core_netlist(
                model, encoded, tokens, temperature=temperature, progress=stage, **common)
        else:
            from sterna.sim.core.simulate import simulate_core
            report = simulate_core(
                model, encoded, tokens, temperature=temperature, engine=engine,
                progress=text.stage,
                on_tokens=text.show if live else lambda sequence, written: None, **common)
        text.close()
    # Tokens that have no spelling are told by their numbers.
    texts = [model.tokenizer.decode(each) if spelled else " " + " ".join(map(str, each))
             for each in report.generated]
    if as_json:
        print_json({**report.as_dict(), "prompts": prompts, "texts": texts})
    else:
        for prompt, written in zip(prompts, texts, strict=True) if not live else ():
            out.print(prompt, end="", style="bold")
            out.print(written)
        _core_table(f"{'netlist of ' if netlist else ''}core in {report.simulator.value} "
                    f"({report.engine.value}), {tokens} tokens, {report.params.rows} x "
                    f"{report.params.cols}, seed {common['seed']}", report).print()
        if report.cycles_per_token is not None and report.utilisation is not None:
            out.print(f"{report.cycles_per_token:,.1f} cycles per token, the array is busy in "
                      f"{report.utilisation:.1%} of them")
    return _end(report, common["work"], as_json)


def _core_table(title: str, report: CoreReport) -> Table:
    return Table(title, ("phase", "cycles", "values = reference", "values = onnxruntime",
                         "mismatches", "cycles = model", "wrong"), [
        (phase.name, phase.cycles, phase.checks.reference.values, phase.checks.onnx.values,
         phase.checks.reference.mismatches + phase.checks.onnx.mismatches,
         phase.timing.events, phase.timing.mismatches) for phase in report.phases])


class _LiveText:
    """The text after a prompt, printed as it is written, between the stages of a simulation."""

    def __init__(self, prompt: str, tokenizer: Tokenizer, stage: Stages) -> None:
        self._prompt, self._stage = prompt, stage
        self._stream = TextStream(tokenizer)
        self._is_open = False

    def show(self, sequence: int, written: list[int]) -> None:
        """Print more of the text."""
        if not self._is_open:
            self._stage.end()       # a clock that runs would draw over the text
            out.print(self._prompt, end="", style="bold")
            self._is_open = True
        write(self._stream.add(written))

    def stage(self, label: str) -> None:
        """Begin a stage, on a line of its own."""
        self.close()
        self._stage(label)

    def close(self) -> None:
        """End the line of the text, if one has begun."""
        if self._is_open:
            write(self._stream.end() + "\n")
            self._is_open = False


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
    from sterna.hw.oldcore.timing.cycle_report import cycle_report
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
        _print_report(name, found, clock_mhz)
        if output is not None:
            out.print(f"\nreport: {output}")
    return 0


def _image(
    model: str | None, config: str | None, profile: str | None, rows: int, cols: int,
    sequences: int, quant_lanes: int,
) -> CoreImage:
    """The packed model, or an empty image of a configuration."""
    from sterna.hw.oldcore.plan.core_params import CoreParams
    from sterna.hw.oldcore.plan.image import build_image
    from sterna.hw.oldcore.timing.cycle_report import shape_image
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


def _print_report(name: str, found: CycleReport, clock_mhz: float | None) -> None:
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


COMMANDS = (units, verilog, simulate, report)
