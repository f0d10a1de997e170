"""Report of synthesis, place and route, and the cycle model for a unit on a target."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sterna.hw.flow.routed import CriticalPath, PlacedCells, SlackHistogram
from sterna.hw.flow.synthesis import Synthesis
from sterna.hw.fpga.family import Area, FpgaTarget, Resource
from sterna.hw.units.spec import Sizes

__all__ = ["Origin", "SeedRun", "SynthReport", "Usage", "part_of"]


class Origin(enum.StrEnum):
    """Origin of a figure. Nothing here was measured on a board."""

    MEASURED = "measured"
    """Counted or timed by Yosys or nextpnr on this very netlist."""
    SIMULATED = "simulated"
    """By the cycle model, which equals the simulated Verilog cycle by cycle."""
    ESTIMATED = "estimated"
    """Computed from other figures."""


def part_of(block: str) -> str:
    """The outermost instance of a block, without its number, for grouping blocks.

    >>> part_of("row12.tree"), part_of("")
    ('row', '(itself)')
    """
    return block.partition(".")[0].rstrip("0123456789") or "(itself)"


@dataclass(frozen=True, slots=True)
class Usage:
    """The amount of a resource that a design needs and the device has (None for a family).

    ``tool`` is the tool that counted.
    """

    resource: Resource
    needed: int
    available: int | None
    tool: str

    @property
    def share(self) -> float:
        """Needed amount as a fraction of the available amount; 0 of 0 is 0."""
        if not self.needed or self.available is None:
            return 0.0
        return self.needed / self.available if self.available else float("inf")


@dataclass(frozen=True, slots=True)
class SeedRun:
    """A run of place and route."""

    seed: int
    fmax_mhz: float  # highest clock by nextpnr's timing analysis
    path: CriticalPath | None  # the slowest path between registers; None if nextpnr reports none
    placement: tuple[PlacedCells, ...]
    # slack of its paths at the target clock; None if nextpnr prints none
    slack: SlackHistogram | None


@dataclass(frozen=True, slots=True)
class SynthReport:
    """A unit of a model on a target."""

    unit: str
    sizes: Sizes
    module: str
    target: FpgaTarget
    tools: dict[str, str]  # versions of the tools, by name
    synthesis: Synthesis  # cells and memories by Yosys
    # resources of the device and of the unit, by the last tool that ran
    usage: tuple[Usage, ...]
    # area by instance, as a path below the unit; empty for the unit itself
    blocks: dict[str, Area]
    # what each pass over the netlist changed before nextpnr counted; none but for ECP5
    passes: dict[str, dict[str, int]] = field(default_factory=dict)
    runs: tuple[SeedRun, ...] = ()  # place and route, one for each seed; empty if it did not run
    # clock in MHz expected after placement, by seed; only the best were routed; empty if all were
    placed_mhz: Mapping[int, float] = field(default_factory=dict)
    aim_mhz: float | None = None  # target clock of place and route
    required_mhz: float | None = None  # the requested clock, if any
    # products per cycle of the array; None for a unit without one
    macs_per_cycle: int | None = None
    # cycles per greedy token of all sequences together, or per frame; None if the unit is no whole
    # model
    cycles_per_token: float | None = None
    step: str = "token"  # or ``frame``
    # the sizes chosen for the target, and why; None if given by the caller or the unit's default
    chosen: str | None = None
    # the resources that the target lacks, and what would fit; None if the unit fits
    misfit: str | None = None

    def needed(self, resource: Resource) -> int:
        return next((each.needed for each in self.usage if each.resource is resource), 0)

    @property
    def lut_per_mac(self) -> float | None:
        """LUTs of the whole unit per product per cycle."""
        if self.macs_per_cycle is None:
            return None
        return self.needed(Resource.LUT) / self.macs_per_cycle

    @property
    def array_lut_per_mac(self) -> float | None:
        """The same for a core's array, as counted by Yosys; None for other units."""
        if self.macs_per_cycle is None or "products" not in self.parts:
            return None
        return self.parts["products"].lut / self.macs_per_cycle

    @property
    def best(self) -> SeedRun | None:
        return max(self.runs, key=lambda run: run.fmax_mhz, default=None)

    @property
    def fmax_mhz(self) -> dict[str, float]:
        """Lowest, median and highest clock of the runs; empty if there are none."""
        clocks = [run.fmax_mhz for run in self.runs]
        if not clocks:
            return {}
        return {"min": min(clocks), "median": statistics.median(clocks), "max": max(clocks)}

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second at the clock of the fastest run."""
        if self.best is None or self.cycles_per_token is None:
            return None
        return self.best.fmax_mhz * 1e6 / self.cycles_per_token

    @property
    def clock_met(self) -> bool:
        """Whether the fastest run reaches the requested clock, if any."""
        return (self.required_mhz is None or self.best is None
                or self.best.fmax_mhz >= self.required_mhz)

    @property
    def parts(self) -> dict[str, Area]:
        """Area by outermost instance; instances that differ only by a number are combined."""
        sums: dict[str, Area] = {}
        for path, area in self.blocks.items():
            name = part_of(path)
            sums[name] = sums.get(name, Area()) + area
        return sums

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; every figure has its origin."""
        def figure(value: object, origin: Origin, tool: str) -> dict[str, Any]:
            return {"value": value, "origin": origin.value, "by": tool}

        yosys = self.synthesis.tool
        data: dict[str, Any] = {
            "unit": self.unit, "module": self.module, "target": self.target.name,
            "device": self.target.description,
            "sizes": dict(self.sizes), "sizes_chosen": self.chosen,
            "fits": self.misfit is None, "misfit": self.misfit,
            "tools": self.tools,
            "cells": figure(self.synthesis.cells, Origin.MEASURED, yosys),
            "resources": {
                each.resource.value: {
                    **figure(each.needed, Origin.MEASURED, each.tool),
                    "available": each.available} for each in self.usage},
            "carry": figure(self.synthesis.area.carry, Origin.MEASURED, yosys),
            "memories": {name: {"style": memory.style.value, "cells": memory.cells}
                         for name, memory in self.synthesis.memories.items()},
            "blocks": figure({name: asdict(area) for name, area in self.blocks.items()},
                             Origin.MEASURED, yosys),
            "passes": self.passes,
        }
        if self.lut_per_mac is not None:
            data["lut_per_mac"] = figure(
                round(self.lut_per_mac, 3), Origin.MEASURED, self.usage[0].tool)
            data["macs_per_cycle"] = self.macs_per_cycle
        if self.array_lut_per_mac is not None:
            data["array_lut_per_mac"] = figure(
                round(self.array_lut_per_mac, 3), Origin.MEASURED, yosys)
        if self.cycles_per_token is not None:
            data[f"cycles_per_{self.step}"] = figure(
                self.cycles_per_token, Origin.SIMULATED, "cycle model")
        if self.runs:
            assert self.target.router is not None
            tool = self.target.router.tool
            data["clock"] = {
                "aimed_at_mhz": self.aim_mhz, "required_mhz": self.required_mhz,
                "met": self.clock_met,
                "fmax_mhz": figure({name: round(value, 2) for name, value in
                                    self.fmax_mhz.items()}, Origin.MEASURED, tool),
                "seeds": [{"seed": run.seed, "fmax_mhz": round(run.fmax_mhz, 2),
                           "critical_path": run.path.as_dict() if run.path else None}
                          for run in self.runs],
                **({"placed": [{"seed": seed, "expected_mhz": mhz}
                               for seed, mhz in self.placed_mhz.items()]}
                   if self.placed_mhz else {})}
        if self.tokens_per_second is not None:
            data[f"{self.step}s_per_second"] = figure(
                round(self.tokens_per_second, 1), Origin.ESTIMATED,
                f"largest fmax / cycles per {self.step}")
        return data
