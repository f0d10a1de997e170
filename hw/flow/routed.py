"""nextpnr's results for a routed design, in the names of the design's hierarchy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sterna.hw.fpga.family import Primitive, Resource, Router
from sterna.hw.fpga.hierarchy import Hierarchy

__all__ = [
    "CriticalPath", "Hop", "PlacedCells", "SlackBin", "SlackHistogram",
    "critical_path", "place_of_cells", "placement_of", "slack_histogram"]

_BEL = re.compile(r"X(\d+)/?Y(\d+)/.+")
_HEAD = "Slack histogram:"
_LEGEND = re.compile(r"\* represents (\d+) endpoint")
_BIN = re.compile(r"\[\s*(-?\d+),\s*(-?\d+)\) \|(\**)(\+?)")


@dataclass(frozen=True, slots=True)
class PlacedCells:
    """Cells of one resource and one block in one tile.

    ``x`` counts tiles from the left, ``y`` rows as nextpnr does. ``block`` is the path of an
    instance below the top module: empty for the top module itself, None for a cell of the
    wrapper around it or one that nextpnr added.
    """

    x: int
    y: int
    resource: Resource
    block: str | None
    cells: int


def place_of_cells(written: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The type and the location of each cell, from the design written by nextpnr."""
    module = next(each for each in written["modules"].values()
                  if any("NEXTPNR_BEL" in cell["attributes"] for cell in each["cells"].values()))
    return {name: (cell["type"], cell["attributes"].get("NEXTPNR_BEL", ""))
            for name, cell in module["cells"].items()}


def placement_of(
    places: Mapping[str, tuple[str, str]], router: Router, hierarchy: Hierarchy,
) -> tuple[PlacedCells, ...]:
    """Count cells by tile, resource and block, sorted by tile, without pins and clock buffers."""
    kinds = {name: resource for resource, names in router.bels.items() for name in names}
    counts: Counter[tuple[int, int, str, bool, str]] = Counter()
    for name, (kind, bel) in places.items():
        resource, place = kinds.get(kind), _BEL.fullmatch(bel)
        if resource is None or place is None:
            continue
        source = hierarchy.source(name)
        block = None if source is None else hierarchy.block(source)
        counts[int(place[1]), int(place[2]), resource.value, block is None, block or ""] += 1
    return tuple(
        PlacedCells(x, y, Resource(resource), None if outside else block, cells)
        for (x, y, resource, outside, block), cells in sorted(counts.items()))


@dataclass(frozen=True, slots=True)
class SlackBin:
    """Endpoints of paths with a slack in ``low_ps <= slack < high_ps``.

    ``endpoints`` is a lower bound, since nextpnr prints whole marks only.
    """

    low_ps: int
    high_ps: int
    endpoints: int


@dataclass(frozen=True, slots=True)
class SlackHistogram:
    """Slack of every endpoint at the target clock, in picoseconds."""

    # Endpoints per mark: the count of each bin is less than this too low.
    step: int
    bins: tuple[SlackBin, ...]


def slack_histogram(log: str) -> SlackHistogram | None:
    """Read the last histogram, the one after routing, from a nextpnr log; None if missing."""
    _, found, text = log.rpartition(_HEAD)
    legend = _LEGEND.search(text)
    bins = _BIN.findall(text)
    if not found or legend is None or not bins:
        return None
    step = int(legend[1])
    return SlackHistogram(step, tuple(
        SlackBin(int(low), int(high), step * len(marks)) for low, high, marks, _ in bins))


_CARRY_IN = ("FCI", "CIN")
_PLACE = re.compile(r"(\.\d+){2}$")
_PORTS = {"CE": " (enable)", "CEN": " (enable)", "LSR": " (reset)", "SR": " (reset)"}


@dataclass(frozen=True, slots=True)
class Hop:
    """A cell on the path; consecutive carries in a block are one hop."""

    kind: Primitive
    # path below the top module of the instance with the cell; empty for the top module itself
    block: str
    wire: str | None  # its output, if it is a wire of the design
    cells: int
    # delay through it, and on the way to it
    logic_ns: float
    routing_ns: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """A path from register to register, and its delay in cells and in wires.

    ``start`` and ``end`` are registers, memories or multipliers: wires of the design where
    they have a name, instances otherwise. ``hops`` begin with the start and end with the end.
    """

    start: str
    end: str
    logic_ns: float
    routing_ns: float
    hops: tuple[Hop, ...]

    @property
    def delay_ns(self) -> float:
        return self.logic_ns + self.routing_ns

    def __str__(self) -> str:
        return (f"{self.start} -> {self.end}: {self.delay_ns:.2f} ns, {self.logic_ns:.2f} in "
                f"logic and {self.routing_ns:.2f} in routing")

    def as_dict(self) -> dict[str, Any]:
        return {"start": self.start, "end": self.end, "delay_ns": round(self.delay_ns, 3),
                "logic_ns": round(self.logic_ns, 3), "routing_ns": round(self.routing_ns, 3),
                "hops": [asdict(hop) for hop in self.hops]}


def critical_path(hierarchy: Hierarchy, path: Iterable[Mapping[str, Any]]) -> CriticalPath:
    """Convert a path of nextpnr's report to names of the netlist that it placed."""
    segments = list(path)
    hops: list[Hop] = []
    pending, wire = 0.0, None
    for index, each in enumerate(segments):
        if each["type"] in ("routing", "clk-skew"):
            pending += each["delay"]
            continue
        driven = segments[index + 1] if index + 1 < len(segments) else None
        wire = hierarchy.wire(driven["net"]) if driven and "net" in driven else None
        cell = each["to"] if each["type"] == "setup" else each["from"]
        kind, block = _kind_and_block(hierarchy, cell["cell"], cell["port"], each["type"])
        hop = Hop(kind, block, wire, 1, each["delay"], pending)
        pending = 0.0
        if (hops and each["from"]["port"] in _CARRY_IN
                and (hops[-1].kind, hops[-1].block) == (kind, block)):
            before = hops.pop()
            hop = Hop(kind, block, wire, before.cells + 1, before.logic_ns + hop.logic_ns,
                      before.routing_ns + hop.routing_ns)
        hops.append(hop)
    last = segments[-1]["to"]
    return CriticalPath(
        hops[0].wire or _instance(hierarchy, segments[0]["from"]["cell"], hops[0].block),
        _end(hierarchy, last["cell"], last["port"], hops[-1].block),
        sum(hop.logic_ns for hop in hops), sum(hop.routing_ns for hop in hops), tuple(hops))


def _kind_and_block(
    hierarchy: Hierarchy, name: str, port: str, segment: str,
) -> tuple[Primitive, str]:
    cell = hierarchy.source(name)
    block = ""
    kind = Primitive.CARRY if port in ("COUT", "CIN") else Primitive.LUT
    if cell is not None:
        inside = hierarchy.block(cell)
        block = "(wrapper)" if inside is None else inside
        found = hierarchy.primitive(cell)
        kind = kind if found in (None, Primitive.REGISTER) else found
    if kind in (Primitive.LUT, Primitive.MUX) and segment in ("clk-to-q", "setup"):
        kind = Primitive.REGISTER
    return kind, block


def _instance(hierarchy: Hierarchy, name: str, block: str) -> str:
    """The name of a memory or multiplier without a wire, else the block."""
    cell = hierarchy.source(name)
    if cell is None:
        return block
    match hierarchy.primitive(cell):
        case Primitive.MULTIPLIER:
            return f"{block}.(product)" if block else "(product)"
        case Primitive.BLOCK_RAM | Primitive.LUT_RAM:
            return hierarchy.below(_PLACE.sub("", cell))
        case _:
            return block


def _end(hierarchy: Hierarchy, name: str, port: str, block: str) -> str:
    cell = hierarchy.source(name)
    register = None if cell is None else hierarchy.register(cell)
    return (register or _instance(hierarchy, name, block)) + _PORTS.get(port, "")
