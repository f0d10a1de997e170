"""Reading from nextpnr's log how far it is."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

__all__ = ["RouterPhase", "RouterStep", "step_of"]


class RouterPhase(enum.StrEnum):
    """A part of place and route, in their order."""

    PACK = "pack"
    """Cells are put together that share a place."""
    PLACE = "place"
    """Rough places, by solving equations."""
    REFINE = "refine"
    """Cells change places where that helps."""
    ROUTE = "route"
    """Wires find their ways."""


@dataclass(frozen=True, slots=True)
class RouterStep:
    """A step that the log tells of: its part, and its number in it (0 as the part begins).

    ``left`` counts in routing the arcs that have no way yet, or the wires that two nets want.
    """

    phase: RouterPhase
    iteration: int = 0
    left: int | None = None


_PLACE = re.compile(r"at iteration #(\d+), type ALL")
_REFINE = re.compile(r"at iteration #(\d+): temp")
_ROUTER1 = re.compile(r"Info:\s+(\d+) \|\s*\d+\s+\d+ \|\s*\d+\s+\d+ \|\s*(\d+)\|")
_ROUTER2 = re.compile(r"iter=(\d+) wires=\d+ overused=(\d+)")
_BEGINS = (
    ("Info: Packing constants", RouterPhase.PACK),
    ("Info: Running main analytical placer", RouterPhase.PLACE),
    ("Info: Running simulated annealing placer", RouterPhase.REFINE),
    ("Info: Routing..", RouterPhase.ROUTE),
)


def step_of(line: str) -> RouterStep | None:
    """Return what a line of the log tells, or None.

    >>> step_of("Info:     at iteration #3, type ALL: wirelen solved = 1, spread = 2")
    RouterStep(phase=<RouterPhase.PLACE: 'place'>, iteration=3, left=None)
    >>> step_of("Info:       2000 |      563       1436 |  242   758 |     21674|       1.09 ")
    RouterStep(phase=<RouterPhase.ROUTE: 'route'>, iteration=2000, left=21674)
    """
    for text, phase in _BEGINS:
        if line.startswith(text):
            return RouterStep(phase)
    if found := _PLACE.search(line):
        return RouterStep(RouterPhase.PLACE, int(found[1]))
    if found := _REFINE.search(line):
        return RouterStep(RouterPhase.REFINE, int(found[1]))
    if found := _ROUTER1.match(line) or _ROUTER2.search(line):
        return RouterStep(RouterPhase.ROUTE, int(found[1]), int(found[2]))
    return None
