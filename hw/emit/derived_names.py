r"""Names for what nobody named, from the signal it serves.

Amaranth calls the result of each operation ``$1``, ``$2``, ... Here it gets the name of the signal
that it is made for and of the operation: ``total_add`` is a sum on the way to ``total``, and
``total_next`` what the register ``total`` takes at the next edge. What serves several signals is
named after the first that it is made of.
"""

from __future__ import annotations

import re
from collections import defaultdict

from sterna.hw.emit.names import Names, plain
from sterna.hw.emit.rtlil import RtlilCell, RtlilModule

__all__ = ["AT_START", "all_names", "given_names", "is_derived"]

AT_START = "evaluate_at_start"
"""The register through which Yosys has every block evaluated once, in each module."""

_ANONYMOUS = re.compile(r"\$\d+|\\(\$signal(\$\d+)?|port\$\d+\$\d+)")
_OPERATIONS = {
    "process": "value", "$dff": "reg", "$adff": "reg", "$memrd_v2": "read", "$logic_not": "not",
    "$reduce_or": "any", "$reduce_and": "all", "$reduce_bool": "any", "$reduce_xor": "parity",
    "$shiftx": "part", "connect": "value",
}
_DERIVED = re.compile(
    "_(next|value|reg|read|not|any|all|parity|part|add|sub|mul|mux|and|or|xor|neg|pos|eq|ne|lt|le"
    r"|gt|ge|shl|shr|sshl|sshr|shift|divfloor|modfloor|in)(_\d+)?(\[\d+\])?$")
_NO_SOURCES = ("\\clk", "\\rst")
_REGISTERS = ("$dff", "$adff")


def is_derived(name: str) -> bool:
    """Tell whether a name looks like one that was made here.

    >>> is_derived("total_add_3"), is_derived("total")
    (True, False)
    """
    return _DERIVED.search(name) is not None


def given_names(module: RtlilModule, avoided: set[str]) -> dict[str, str]:
    r"""Return plain names for what has a name in a module, both with the ``\`` before them.

    Those that are plain already stay, and come first.

    Parameters
    ----------
    module
        The module.
    avoided
        Names that nothing else may get: of its instance, which a signal would hide.
    """
    given = [name for name in module.names if not _ANONYMOUS.fullmatch(name)]
    names = {name: name for name in given if plain(name[1:]) == name[1:]}
    taken = Names({name[1:] for name in names} | avoided)
    bases: dict[str, str] = {name[1:]: name[1:] for name in names}
    for name in given:
        if name in names:
            continue
        # A field follows the signal it is of: payload$7.last is payload_2_last.
        found = re.fullmatch(r"\\([^.\[]*)(.*)", name)
        assert found is not None
        base, rest = found.groups()
        if not rest:
            bases[base] = taken.new(plain(base))
            names[name] = f"\\{bases[base]}"
        else:
            names[name] = f"\\{taken.new(plain(bases.get(base, plain(base)) + rest))}"
    return names


def all_names(
    module: RtlilModule, named: dict[str, str], avoided: set[str],
    ports: dict[str, dict[str, str]],
) -> dict[str, str]:
    r"""Return a plain name for every name in a module, both with the ``\`` before them.

    Parameters
    ----------
    module
        The module.
    named, avoided
        What :func:`given_names` returned for it, and what it was told to avoid.
    ports
        New names of the ports of the modules in it, by the old ones.
    """
    names = dict(named)
    taken = Names({name[1:] for name in names.values()} | avoided)
    origins = _Origins(module, names, ports)
    for name in module.names:
        if name not in names:
            names[name] = f"\\{taken.new(origins.name(name))}"
    return names


class _Origins:
    """What each anonymous wire of a module is made of, and for."""

    def __init__(
        self, module: RtlilModule, names: dict[str, str], ports: dict[str, dict[str, str]],
    ) -> None:
        self._names = names
        self._drivers: dict[str, RtlilCell] = {}
        self._ends: dict[str, str] = {}
        self._served: dict[str, dict[str, None]] = defaultdict(dict)
        self._goals: dict[str, str] = {}
        self._next: set[str] = set()
        for cell in module.cells:
            if cell.output and cell.output not in names:
                self._drivers.setdefault(cell.output, cell)
        for cell in module.cells:
            self._note(cell, ports)
        self._sources = self._find_sources(module)
        self._find_goals(module)

    def _note(self, cell: RtlilCell, ports: dict[str, dict[str, str]]) -> None:
        """Note what a cell is to the anonymous wires that it is connected to."""
        for port, wires in cell.inputs:
            for wire in wires:
                if wire in self._names:
                    continue
                if cell.kind[0] == "\\":
                    end = ports.get(cell.kind, {}).get(port, port)[1:]
                    goal = f"{plain(self._names[cell.name][1:])}_{plain(end)}"
                    if wire not in self._drivers:
                        self._ends.setdefault(wire, goal)
                elif cell.memory and cell.kind != "$meminit_v2":
                    goal = f"{plain(self._names[cell.memory][1:])}_{port[1:].lower()}"
                else:
                    goal = cell.output
                    if port == "\\D" and cell.kind in _REGISTERS:
                        self._next.add(wire)
                if goal:
                    self._served[wire][goal] = None

    def _find_sources(self, module: RtlilModule) -> dict[str, str]:
        """The first named wire that each anonymous one depends on."""
        found: dict[str, str] = {}
        # Twice, for the ports are first in the text, before what they are made of.
        for name in module.names * 2:
            driver = self._drivers.get(name)
            if name in self._names or name in found or driver is None:
                continue
            for wire in (wire for _, wires in driver.inputs for wire in wires):
                if wire in _NO_SOURCES:
                    continue
                source = self._names[wire][1:] if wire in self._names else found.get(wire)
                if source:
                    found[name] = source
                    break
        return found

    def _find_goals(self, module: RtlilModule) -> None:
        """The one signal that each anonymous wire serves, from the last wire to the first."""
        for name in reversed(module.names):
            if name in self._names:
                continue
            goals = list(self._served[name])
            if len(goals) == 1 and goals[0][0] not in "\\$":
                self._ends[name] = goals[0]
            reached = list(dict.fromkeys(self._reached(goal) for goal in goals))
            if len(reached) == 1:
                self._goals[name] = reached[0]
            self._sources.setdefault(name, next(filter(None, reached), ""))

    def _reached(self, goal: str) -> str:
        """The named signal behind a goal; empty if there is none, or more than one."""
        if goal[0] not in "\\$":
            return goal
        return self._names[goal][1:] if goal in self._names else self._goals.get(goal, "")

    def name(self, wire: str) -> str:
        """Return a name for an anonymous wire, which others may have as well."""
        driver = self._drivers.get(wire)
        if wire in self._ends:
            return self._ends[wire]
        goal = self._goals.get(wire, "")
        if driver is None:
            operation = "in"
        elif goal and wire in self._next and driver.kind == "process":
            operation = "next"
        else:
            operation = _OPERATIONS.get(driver.kind, driver.kind.lstrip("$"))
        base = goal or self._sources[wire]
        return f"{base}_{operation}" if base else plain(operation)
