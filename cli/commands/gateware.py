"""``sterna units``, ``verilog``, ``simulate`` and ``report``: units, their Verilog and cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sterna.cli.commands import unit_options
from sterna.cli.terminal.console import Stages, out, print_files, print_json, say
from sterna.cli.terminal.options import (
    MODEL_HELP,
    JsonOption,
    ModelArgument,
    QuietOption,
    WavesOption,
    check_file,
    check_folder,
    choose,
    complete_target,
    refuse,
)
from sterna.cli.terminal.tables import Table
from sterna.cli.terminal.texts import PROMPT, check_prompts, frames_of, tokens_of
from sterna.hw.core.params.sizes import ChosenSizes
from sterna.model.config import NAMED_CONFIGS, ModelConfig
from sterna.model.files import write_atomically
from sterna.model.profile import PROFILES
from sterna.model.quantized import QuantizedModel, load_model
from sterna.sim.bench.runner import Engine, Simulator

if TYPE_CHECKING:
    from sterna.hw.core.cycles.model import MemoryTiming
    from sterna.hw.core.cycles.report import CycleReport
    from sterna.hw.core.params.core_params import CoreParams
    from sterna.hw.core.params.limits import Limits
    from sterna.hw.fpga.family import FpgaTarget, Resource
    from sterna.sim.core.simulate import CoreReport
    from sterna.sim.reports import SimulationReport

__all__ = ["COMMANDS", "pack", "report", "simulate", "units", "verilog"]


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
    """A size as an option with its default, such as ``--lanes 8`` or ``--[no-]logits``."""
    option = name.replace("_", "-")
    if isinstance(default, bool):
        return f"--[no-]{option}" if default else f"[--{option}]"
    return f"--{option} {'(of the model)' if default is None else default}"


@unit_options.size_options()
def verilog(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    *,
    unit: unit_options.UnitOption = None,
    sizes: unit_options.GivenSizes,
    axis: Annotated[bool, typer.Option(
        "--axis", help="Also write a wrapper with AXI4-Stream ports.")] = False,
    bus: Annotated[str | None, typer.Option(
        help="Put core or network behind registers on this bus, axi4-lite or "
             "wishbone.")] = None,
    registered: Annotated[bool, typer.Option(
        "--registered", help="Put registers between the unit and its ports.")] = False,
    name: Annotated[str | None, typer.Option(
        help="Name of the module. Default: the unit's own.")] = None,
    quiet: QuietOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> int:
    """Write a unit as a folder of Verilog.

    The folder also holds the memory image, the parameters and the documentation of the unit.

    Example: sterna verilog tiny --unit core -o build/core
    """
    from sterna.hw.catalog import emit_verilog
    from sterna.hw.core.product.registers import Bus
    check_folder(output)
    chosen = None if bus is None else Bus(choose("--bus", bus, [each.value for each in Bus]))
    with Stages(quiet) as stage:
        stage("emit the Verilog", quick=True)
        emitted = emit_verilog(load_model(model), unit, output, axis=axis, bus=chosen,
                               registered=registered, name=name, **sizes)
    if as_json:
        print_json(emitted.manifest)
    else:
        print_files(sorted(emitted.folder.iterdir()))
    return 0


def pack(
    model: ModelArgument,
    folder: Annotated[Path, typer.Argument(
        metavar="FOLDER", help="Folder of a core or network with --port-bits, or source of a "
                               "board's.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Image to write.")],
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Pack a model as an image that a unit reads from memory.

    The core was made for the limits of one model, and runs every other within them. Refuses one
    that is not, and says by how much. A network's unit runs every network with the same layers,
    formats and scaling of frames, and shifts within its range.

    Example: sterna pack tiny build/core -o build/image.bin
    """
    from sterna.hw.core.image.core_image import build_image
    from sterna.hw.core.image.linear import format_digest, pack_image
    from sterna.hw.core.params.core_params import CoreParams
    from sterna.hw.layers.layer_params import LayerParams
    from sterna.hw.layers.network_product import network_image
    check_file(output)
    loaded = load_model(model)
    params = (LayerParams if loaded.is_network else CoreParams).of_folder(folder)
    if not params.port_bits:
        raise ValueError(f"the unit of {folder} has its model in ROMs: it takes no image")
    with Stages(quiet) as stage:
        stage("pack the model", quick=True)
        image = pack_image(
            build_image(loaded, params) if isinstance(params, CoreParams)
            else network_image(loaded, params))
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, image)
    if as_json:
        print_json({"image": str(output), "bytes": len(image), "port_bits": params.port_bits,
                    "digest": format_digest(params)})
    else:
        print_files([output])
    return 0


@unit_options.size_options()
def simulate(
    model: ModelArgument,
    *,
    unit: unit_options.UnitOption = None,
    tokens: Annotated[int | None, typer.Option(
        help="Tokens of the text to run, or for the core to write; for a network, frames. "
             "Default: the unit's own.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(
        help="core: text to continue; each text given is a sequence of its own.")] = None,
    temperature: Annotated[float, typer.Option(
        help="core: 0 takes the most likely token.")] = 0.0,
    engine: Annotated[Engine, typer.Option(
        help="core: cocotb compares every tensor; cpp is for thousands of tokens. network: cpp is "
             "for thousands of frames.")] = Engine.COCOTB,
    data: Annotated[Path | None, typer.Option(
        metavar="DATA.npz", help="network: recordings to run. Default: the held-out ones of the "
                                 "bundled network.")] = None,
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
    --engine cpp, the logits) and the cycles of its tokens are compared. A network runs recordings,
    and its results are compared.

    Example: sterna simulate tiny --unit core --prompt "The for statement" --tokens 64
    """
    from sterna.hw.catalog import unit_named
    from sterna.hw.core.product.core_product import CORE
    loaded = load_model(model)
    spec = unit_named(unit, loaded)
    unit = spec.name
    spec.check_model(loaded)
    spec.check_sizes(sizes)
    count = spec.tokens if tokens is None else tokens
    check_folder(output)
    where = f"does not go with simulate --unit {unit}"
    is_core, is_network = spec is CORE, loaded.is_network
    if not is_network:
        refuse(f"{where}: it is for --unit network", data=data)
    if is_network:
        refuse(f"{where}: a network takes frames", text=text, prompt=prompt,
               temperature=temperature)
        refuse(f"{where}: cocotb compares every tensor anyway", trace="trace" in sizes)
    elif is_core:
        refuse(f"{where}: give a --prompt for each sequence", sequences="sequences" in sizes)
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
    with Stages(quiet) as stage:
        if is_network:
            from sterna.sim.netlist import simulate_network_netlist
            from sterna.sim.networks import simulate_network
            found = (simulate_network_netlist if netlist else simulate_network)(
                loaded, frames_of(model, loaded, data, count), engine=engine, progress=stage,
                **common)
        else:
            from sterna.sim.netlist import simulate_netlist
            from sterna.sim.reports import SimulationReport
            from sterna.sim.units import simulate as simulate_verilog
            report = (simulate_netlist if netlist else simulate_verilog)(
                loaded, unit, tokens_of(text, count, loaded), progress=stage, **common)
            assert isinstance(report, SimulationReport)
            found = report
    if as_json:
        print_json(found.as_dict())
    else:
        _unit_table(f"{'netlist of ' if netlist else ''}{unit} in {simulator.value}, "
                    f"{found.tokens} {loaded.entry.name}, seed {seed}", found).print()
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
    """Let a core write text, print it and the comparisons; return the exit code."""
    check_prompts(prompts, model.tokenizer)
    encoded = [model.tokenizer.encode(prompt).tolist() for prompt in prompts]
    with Stages(quiet) as stage:
        if netlist:
            from sterna.sim.netlist import simulate_core_netlist
            report = simulate_core_netlist(
                model, encoded, tokens, temperature=temperature, progress=stage, **common)
        else:
            from sterna.sim.core.simulate import simulate_core
            report = simulate_core(
                model, encoded, tokens, temperature=temperature, engine=engine, progress=stage,
                **common)
    texts = [model.tokenizer.decode(each) for each in report.generated]
    if as_json:
        print_json({**report.as_dict(), "prompts": prompts, "texts": texts})
    else:
        for prompt, written in zip(prompts, texts, strict=False):
            out.print(prompt, end="", style="bold")
            out.print(written)
        _core_table(f"{'netlist of ' if netlist else ''}core in {report.simulator.value} "
                    f"({report.engine.value}), {tokens} tokens, {report.params.rows} x "
                    f"{report.params.cols}, seed {common['seed']}", report).print()
        if report.cycles_per_token is not None:
            out.print(f"{report.cycles_per_token:,.1f} cycles per token")
    return _end(report, common["work"], as_json)


def _core_table(title: str, report: CoreReport) -> Table:
    return Table(title, ("phase", "cycles", "values = reference", "values = onnxruntime",
                         "mismatches", "cycles = model", "wrong"), [
        (phase.name, phase.cycles, phase.checks.reference.values, phase.checks.onnx.values,
         phase.checks.reference.mismatches + phase.checks.onnx.mismatches,
         phase.timing.events, phase.timing.mismatches) for phase in report.phases])


@unit_options.size_options(*ChosenSizes.options())
def report(
    model: Annotated[str | None, typer.Argument(
        metavar="MODEL", help=f"{MODEL_HELP}; or give --config.")] = None,
    config: Annotated[str | None, typer.Option(
        help="A shape without weights: micro, nano, tiny or small.")] = None,
    profile: Annotated[str | None, typer.Option(
        help="With --config: numeric profile, S16 (default) or C12.")] = None,
    *,
    sizes: unit_options.GivenSizes,
    clock_mhz: Annotated[float | None, typer.Option(
        help="Also show tokens per second at this clock.")] = None,
    memory: Annotated[float | None, typer.Option(
        metavar="GB/S", help="Bandwidth of the memory behind the port, in 10^9 bytes per second; a "
                             "word of the port per cycle if not given.")] = None,
    board: Annotated[str | None, typer.Option(
        help="Take the memory of this board, and the narrowest port for all of its bandwidth: "
             "arty-a7, kv260, u250, u280 or ulx3s-85f.")] = None,
    target: Annotated[str | None, typer.Option(
        help="Also estimate the area on any of `sterna synth` but xc7, such as ecp5-85k.",
        autocompletion=complete_target)] = None,
    lut: Annotated[int | None, typer.Option(
        help="With --target: choose the fastest core of so many LUTs at most.")] = None,
    period: Annotated[float | None, typer.Option(
        metavar="CYCLES", help="With --target: choose the smallest core that takes no more cycles "
                               "per token.")] = None,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE.html", help="Write the report as a page.")] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> int:
    """Count the cycles of a token, or of a frame, in gateware.

    Shows where they go, what other parameters would reach, and the bits of every memory. Computed
    by the cycle model, which equals the simulated Verilog; no tool is needed.

    Example: sterna report tiny --sequences 4 --clock-mhz 100
    """
    from sterna.hw.core.cycles.model import MemoryTiming
    from sterna.hw.core.cycles.report import check_clock, cycle_report
    from sterna.hw.core.params.core_params import CoreParams
    from sterna.hw.flow.estimate import estimated, sizes_of
    from sterna.hw.flow.fit import options_text
    from sterna.hw.fpga.families import TARGETS, style_for
    from sterna.hw.memory.board_memory import BOARD_BANDWIDTHS, narrowest_port
    check_file(output, suffix=".html")
    if clock_mhz is not None:
        check_clock(clock_mhz)
    timing = None
    if board is not None:
        if clock_mhz is None or memory is not None:
            raise ValueError("--board goes with a --clock-mhz, and without --memory")
        memory = BOARD_BANDWIDTHS[choose("--board", board, BOARD_BANDWIDTHS)]
        sizes.setdefault("port_bits", narrowest_port(memory, clock_mhz))
    if memory is not None:
        if clock_mhz is None or not sizes.get("port_bits"):
            raise ValueError("--memory goes with --port-bits and a --clock-mhz")
        timing = MemoryTiming.of_bandwidth(memory, clock_mhz, sizes["port_bits"])
    if target is None:
        refuse("goes with a --target", lut=lut, period=period)
    device = None if target is None else TARGETS[choose("--target", target, TARGETS)]
    if model is not None and (network := load_model(model)).is_network:
        refuse("is for language models, and this is a network: sterna synth measures its area",
               config=config, profile=profile, target=target, output=output)
        return _report_network(model, network, sizes, clock_mhz, timing, as_json)
    limits, shape = _limits(model, config, profile)
    with Stages(quiet) as stage:
        if device is not None and (lut is not None or period is not None):
            sequences = sizes.pop("sequences", 1)
            refuse("does not go with --lut and --period: they choose the sizes", **sizes)
            stage("look for a core")
            params = _folded(limits, shape, device, sequences, lut, period)
        else:
            if device is not None:
                sizes["style"] = style_for(device, sizes.get("style", "auto"))
            params = CoreParams(limits, **sizes)
        stage("run the cycle model", quick=True)
        found = cycle_report(params, shape, timing)
    name = model or f"{config} (no weights)"
    data = {"model": model, **found.as_dict(clock_mhz)}
    area = None
    if device is not None:
        needed = estimated(params, device)
        if needed is None:
            raise ValueError(f"there is no estimate for this core on {device.name}: none of its "
                             f"kind was measured")
        data["area"] = {"target": device.name, **{each.value: count
                                                  for each, count in needed.items()}}
        area = _area_table(device, needed)
    if output is not None:
        from sterna.cli.reports.hardware_page import write_hardware_report
        output.parent.mkdir(parents=True, exist_ok=True)
        write_hardware_report(output, name, found, clock_mhz)
    if as_json:
        print_json(data)
    else:
        _print_report(name, found, clock_mhz)
        if area is not None:
            out.print()
            area.print()
            out.print(f"sizes: {options_text(sizes_of(params))}")
        if output is not None:
            out.print(f"\nreport: {output}")
    return 0


def _report_network(
    name: str, model: QuantizedModel, sizes: dict[str, Any], clock_mhz: float | None,
    memory: MemoryTiming | None, as_json: bool,
) -> int:
    """Print the cycles of a frame and their breakdown; return the exit code."""
    from sterna.cli.reports.hardware_page import print_bars, stage_table
    from sterna.hw.layers.cycles import frame_cycles, unit_cycles
    from sterna.hw.layers.network_product import NETWORK
    params = NETWORK.params_for(model, sizes)
    cycles, = unit_cycles(params, memory)
    frame = frame_cycles(params, model.stages, memory)
    if as_json:
        print_json({"model": name, "sizes": NETWORK.chosen(params), **asdict(cycles),
                    "utilisation": frame.utilisation, "stages": frame.stages_as_dict(),
                    **({} if clock_mhz is None else
                       {"frames_per_second": clock_mhz * 1e6 / cycles.period})})
        return 0
    out.print(f"{name}: {params.rows} rows of {params.cols} columns, {params.sequences} "
              f"sequence{'s' if params.sequences > 1 else ''}, profile {model.profile_name}")
    out.print(f"{cycles.latency:,} cycles from a frame to its results, a frame every "
              f"{cycles.period:,g}")
    if clock_mhz is not None:
        out.print(f"at {clock_mhz:g} MHz: {cycles.latency / clock_mhz:,.1f} microseconds, "
                  f"{clock_mhz * 1e6 / cycles.period:,.0f} frames/s")
    out.print(f"The array has a beat in {frame.utilisation:.1%} of the cycles.\n")
    stage_table(frame, "where the cycles of a frame go").print()
    print_bars(frame)
    return 0


def _folded(
    limits: Limits, shape: ModelConfig, target: FpgaTarget, sequences: int, lut: int | None,
    period: float | None,
) -> CoreParams:
    """The core requested by --lut or --period."""
    from sterna.hw.core.cycles.report import shape_stages
    from sterna.hw.flow.estimate import fold
    found = fold(limits, shape_stages(shape, limits.profile), target, sequences=sequences,
                 lut=lut, period=period)
    if found is None:
        wanted = [*([f"{lut:,} LUTs"] if lut is not None else []),
                  *([f"{period:g} cycles per token"] if period is not None else [])]
        raise ValueError(f"no core on {target.name} is known to take {' and '.join(wanted)} at "
                         f"most")
    return found


def _area_table(target: FpgaTarget, needed: Mapping[Resource, int]) -> Table:
    return Table(f"estimated area on {target.name}", ("", "needed", "available"), [
        (target.name_of(each), f"{count:,}", f"{target.available[each]:,}")
        for each, count in needed.items() if each in target.available])


def _limits(
    model: str | None, config: str | None, profile: str | None,
) -> tuple[Limits, ModelConfig]:
    """Limits of a model, or of a configuration without weights, and its shape."""
    from sterna.hw.core.cycles.report import shape_limits
    from sterna.hw.core.params.limits import Limits
    if (model is None) == (config is None):
        raise ValueError("give either a MODEL or --config")
    if config is None:
        if profile is not None:
            raise ValueError("--profile goes with --config: a MODEL has a profile of its own")
        loaded = load_model(str(model))
        return Limits.of(loaded), loaded.config
    chosen = choose("--profile", "S16" if profile is None else profile, PROFILES)
    shape = ModelConfig.named(choose("--config", config, NAMED_CONFIGS))
    return shape_limits(shape, PROFILES[chosen]), shape


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
            print_bars(found.greedy)


COMMANDS = (units, verilog, pack, simulate, report)
