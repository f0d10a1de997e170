"""Run nextpnr, from the ``yowasp-nextpnr-*`` packages, as a separate process."""

from __future__ import annotations

import enum
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sterna.hw.fpga.families import TARGETS
from sterna.hw.fpga.family import FpgaTarget, Resource, Router
from sterna.hw.tools.process import MissingToolError, run_tool, temporary_in
from sterna.model.extras import install_command

__all__ = [
    "LOG_NAME", "PlaceRouteError", "RouterPhase", "RouterStep", "check_router",
    "expected_clock", "pack", "pack_bitstream", "resources_of", "route", "step_of", "timing_of"]


class RouterPhase(enum.StrEnum):
    """A phase of place and route, in execution order."""

    PACK = "pack"  # combine cells that share a site
    PLACE = "place"  # rough, analytic placement
    REFINE = "refine"  # swap cells to improve the placement
    ROUTE = "route"  # route the nets


@dataclass(frozen=True, slots=True)
class RouterStep:
    """A step in the log: its phase and its number in the phase (0 at the start).

    While routing, ``left`` counts the unrouted arcs or the wires wanted by two nets.
    """

    phase: RouterPhase
    iteration: int = 0
    left: int | None = None


_BEGINS = (
    ("Info: Packing constants", RouterPhase.PACK),
    ("Info: Running main analytical placer", RouterPhase.PLACE),
    ("Info: Running simulated annealing placer", RouterPhase.REFINE),
    ("Info: Routing..", RouterPhase.ROUTE),
)
_STEPS = (
    (re.compile(r".*at iteration #(\d+), type ALL"), RouterPhase.PLACE),
    (re.compile(r".*at iteration #(\d+): temp"), RouterPhase.REFINE),
    (re.compile(r"Info:\s+(\d+) \|\s*\d+\s+\d+ \|\s*\d+\s+\d+ \|\s*(\d+)\|"),
     RouterPhase.ROUTE),
    (re.compile(r".*iter=(\d+) wires=\d+ overused=(\d+)"), RouterPhase.ROUTE),
)


def step_of(line: str) -> RouterStep | None:
    """Parse a line of the log; None if it is not a step.

    >>> step_of("Info:       2000 |      563       1436 |  242   758 |     21674|       1.09 ")
    RouterStep(phase=<RouterPhase.ROUTE: 'route'>, iteration=2000, left=21674)
    """
    for text, phase in _BEGINS:
        if line.startswith(text):
            return RouterStep(phase)
    for pattern, phase in _STEPS:
        if found := pattern.match(line):
            return RouterStep(phase, *map(int, found.groups()))
    return None


_RUN = "import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
_NETLIST, _REPORT, _PINS = "netlist.json", "report.json", "pins.txt"
_TIMEOUT_S = 7200.0
"""Timeout of a tool. The first run after installation takes a minute or two more."""
LOG_NAME = "nextpnr.log"
"""The log of a run, in its folder."""


class PlaceRouteError(RuntimeError):
    """nextpnr failed; the message quotes the reason."""


def timing_of(report: Mapping[str, Any]) -> tuple[float, list[dict[str, Any]]]:
    """The slowest clock in MHz, and the hops of the slowest path between registers.

    ValueError if no register is clocked.
    """
    if not report["fmax"]:
        raise ValueError("the design has no path between registers: there is no clock to time")
    clock, timing = min(report["fmax"].items(), key=lambda item: item[1]["achieved"])
    paths = [each["path"] for each in report["critical_paths"]
             if each["from"].split()[-1] == each["to"].split()[-1] == clock]
    return timing["achieved"], paths[0] if paths else []


def expected_clock(log: str) -> float:
    """The slowest clock in MHz, from the log of a run without routing.

    ValueError if no register is clocked.

    >>> expected_clock("Info: Max frequency for clock 'clk': 179.89 MHz (FAIL at 200.00 MHz)")
    179.89
    """
    clocks = re.findall(r"Max frequency for clock .*: ([\d.]+) MHz", log)
    if not clocks:
        raise ValueError("the design has no path between registers: there is no clock to time")
    return min(map(float, clocks))


def check_router(target: FpgaTarget) -> Router:
    """Return the router of a target.

    ValueError if pip has none, MissingToolError if it is not installed.
    """
    router = target.router
    if router is None:
        raise ValueError(
            f"{target.name} has no router that pip can install: leave out --pnr, or take one of "
            f"{', '.join(name for name, each in TARGETS.items() if each.router is not None)}")
    if importlib.util.find_spec(router.module) is None:
        raise MissingToolError(
            f"nextpnr for {target.name} is not installed (package {router.package}): "
            f"{install_command(router.extra)}")
    return router


def resources_of(router: Router, used: Mapping[str, tuple[int, int]]) -> dict[Resource, int]:
    """Resource usage of a design, from nextpnr's cell counts."""
    return {resource: sum(used.get(name, (0, 0))[0] for name in names)
            for resource, names in router.bels.items()}


def pack(
    folder: Path, target: FpgaTarget, netlist: bytes, *, pins: str | None = None,
) -> dict[str, tuple[int, int]]:
    """Pack a netlist without placing it; return cells used and available by type."""
    report = route(folder, target, netlist, ["--pack-only"], pins=pins)
    return {name: (each["used"], each["available"])
            for name, each in report["utilization"].items()}


def route(
    folder: Path, target: FpgaTarget, netlist: bytes, options: Sequence[str], *,
    pins: str | None = None,
    progress: Callable[[RouterStep], None] | None = None,
) -> dict[str, Any]:
    """Run nextpnr in a folder, keep ``nextpnr.log`` there, and return its report.

    ``netlist`` is Yosys' JSON, ``options`` are further arguments. ``pins`` are the pin and clock
    constraints of a whole design. Without them, ports get no pads if the router supports that,
    and paths to and from them do not count; otherwise those of the target apply.
    ``progress`` is called with each step in the log. PlaceRouteError if nextpnr fails, cannot
    place a cell, or times out.
    """
    router = check_router(target)
    (folder / _NETLIST).write_bytes(netlist)
    (folder / _REPORT).unlink(missing_ok=True)
    context = ["--out-of-context"] if router.out_of_context else []
    pins = target.part_pins if pins is None else pins
    if pins is not None:
        (folder / _PINS).write_text(pins, encoding="utf-8")
        context = router.pins_option.format(_PINS).split()
    command = [
        *_command(router, router.function), *target.router_options, *context,
        "--json", _NETLIST, "--report", _REPORT, *options]
    tail: deque[str] = deque(maxlen=400)
    late = threading.Event()
    with subprocess.Popen(
            command, cwd=folder, env=temporary_in(folder), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace") as process, \
            open(folder / LOG_NAME, "w", encoding="utf-8", buffering=1) as log:
        # WebAssembly ignores signals: only SIGKILL ends it.
        def end_it() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(_TIMEOUT_S, end_it)
        timer.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                log.write(line)
                tail.append(line.rstrip())
                if progress is not None and (step := step_of(line)) is not None:
                    progress(step)
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
    if late.is_set():
        raise PlaceRouteError(
            f"nextpnr for {target.name} did not finish within {_TIMEOUT_S:g} s")
    report = folder / _REPORT
    if process.returncode or not report.exists():
        raise PlaceRouteError(f"nextpnr for {target.name} failed: {_reason(tail)}")
    return json.loads(report.read_text(encoding="utf-8"))


def pack_bitstream(target: FpgaTarget, routed: bytes) -> bytes:
    """Return the bitstream of a routed design; PlaceRouteError if the packer fails."""
    router, board = check_router(target), target.family.board
    assert board is not None
    function, *options = board.packer
    tool = function.removeprefix("run_")
    with tempfile.TemporaryDirectory(prefix="sterna-board-") as name:
        folder = Path(name)
        (folder / "routed").write_bytes(routed)
        try:
            done = run_tool(
                [*_command(router, function), *options], cwd=folder, env=temporary_in(folder),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout_s=_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise PlaceRouteError(f"{tool} did not finish within {_TIMEOUT_S:g} s") from error
        bits = folder / "bits"
        if done.returncode or not bits.exists():
            last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
            raise PlaceRouteError(f"{tool} failed: {last}")
        return bits.read_bytes()


def _command(router: Router, function: str) -> list[str]:
    """The command that runs a function of a router's package."""
    return [sys.executable, "-c", _RUN.format(module=router.module, function=function)]


def _reason(tail: deque[str]) -> str:
    """The first error in a log, else its last line."""
    errors = [line.removeprefix("ERROR: ") for line in tail if line.startswith("ERROR: ")]
    lines = errors or [line for line in tail if line.strip()][-1:]
    return lines[0] if lines else "it wrote nothing"
