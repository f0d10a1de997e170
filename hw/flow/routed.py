"""What nextpnr leaves of a routed design beside its report: where the cells are, and the slack."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sterna.hw.flow.hierarchy import Hierarchy
from sterna.hw.flow.target import Resource, Router

__all__ = ["PlacedCells", "Placement", "SlackBin", "SlackHistogram", "placement_of",
           "slack_histogram"]

_BEL = re.compile(r"X(\d+)/Y(\d+)/.+")
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


@dataclass(frozen=True, slots=True)
class Placement:
    """The tiles of a placed design, sorted by place; pins and clock buffers are left out."""

    tiles: tuple[PlacedCells, ...]

    def as_data(self) -> list[list[Any]]:
        """Plain data, for a cache."""
        return [[each.x, each.y, each.resource.value, each.block, each.cells]
                for each in self.tiles]

    @classmethod
    def from_data(cls, data: list[list[Any]]) -> Placement:
        """What :meth:`as_data` gave."""
        return cls(tuple(PlacedCells(x, y, Resource(resource), block, cells)
                         for x, y, resource, block, cells in data))


def placement_of(written: Mapping[str, Any], router: Router, hierarchy: Hierarchy) -> Placement:
    """Read where each cell is from the design that nextpnr wrote.

    Parameters
    ----------
    written
        The JSON of nextpnr's option ``--write``.
    router
        Which of its cells are which resource.
    hierarchy
        Of the netlist that it was given.
    """
    kinds = {name: resource for resource, names in router.bels.items() for name in names}
    module = next(each for each in written["modules"].values()
                  if any("NEXTPNR_BEL" in cell["attributes"] for cell in each["cells"].values()))
    counts: Counter[tuple[int, int, str, bool, str]] = Counter()
    for name, cell in module["cells"].items():
        resource = kinds.get(cell["type"])
        place = _BEL.fullmatch(cell["attributes"].get("NEXTPNR_BEL", ""))
        if resource is None or place is None:
            continue
        source = hierarchy.source(name)
        block = None if source is None else hierarchy.block(source)
        counts[int(place[1]), int(place[2]), resource.value, block is None, block or ""] += 1
    return Placement(tuple(
        PlacedCells(x, y, Resource(resource), None if outside else block, cells)
        for (x, y, resource, outside, block), cells in sorted(counts.items())))


@dataclass(frozen=True, slots=True)
class SlackBin:
    """Endpoints of paths with a slack from ``low_ps`` to ``high_ps``, the latter excluded.

    There are at least ``endpoints``; nextpnr prints marks, and not the rest of a division.
    """

    low_ps: int
    high_ps: int
    endpoints: int


@dataclass(frozen=True, slots=True)
class SlackHistogram:
    """Slack of every endpoint against the clock that was aimed at, in picoseconds.

    ``step`` is how many endpoints a mark of nextpnr's stands for: each bin has fewer than that
    more than it says; none if it is 1.
    """

    step: int
    bins: tuple[SlackBin, ...]

    def as_data(self) -> dict[str, Any]:
        """Plain data, for a cache."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> SlackHistogram:
        """What :meth:`as_data` gave, through JSON."""
        return cls(data["step"], tuple(SlackBin(**each) for each in data["bins"]))


def slack_histogram(log: str) -> SlackHistogram | None:
    """Read the last histogram of a log of nextpnr: the one after routing; None without any."""
    _, found, text = log.rpartition(_HEAD)
    legend = _LEGEND.search(text)
    bins = _BIN.findall(text)
    if not found or legend is None or not bins:
        return None
    step = int(legend[1])
    return SlackHistogram(step, tuple(
        SlackBin(int(low), int(high), step * len(marks)) for low, high, marks, _ in bins))
