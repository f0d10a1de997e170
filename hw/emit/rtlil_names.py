"""Plain names for all objects of a design in RTLIL, the format between Amaranth and Yosys.

Amaranth names the result of each operation ``$1``, ``$2``, ... Here it is named after the signal
that it contributes to and the operation: ``total_add`` is a sum on the way to ``total``, and
``total_next`` the next value of the register ``total``. A result for several signals is named
after its first source.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from sterna.hw.emit.names import Names, plain

__all__ = ["AT_START", "is_derived", "readable"]

_NAME = re.compile(r"[\\$][^\s\"]+")
_SIGNAL = re.compile(r"\{[^}]*\}|[^\s{]+(?: \[[^\]]*\])?")
_MEMORY = re.compile(r'"\\(\\[^"]+)"')
_OUTPUTS = {"\\Y", "\\Q"}
_OF_TYPES = "\\enum_"      # prefix of the attributes of a signal with the value names of its enum
_KIND = re.compile(r"^(  cell )(\\\S+)", re.M)


@dataclass(slots=True)
class RtlilCell:
    """An operator, a register, a port of a memory, an instance, a process or a connection."""

    kind: str  # ``$add``, ``\module`` or ``process``
    name: str = ""
    # pairs of a port and the names of its wires; for an instance, every port
    inputs: list[tuple[str, list[str]]] = field(default_factory=list)
    output: str = ""  # the wire that an operator or a process drives
    memory: str = ""  # the memory, for a memory port

    def assign(self, signals: str) -> None:
        """Record target and value of an assignment ``{ \\a \\b } \\c [0]`` or ``\\a [3:0] \\c``."""
        target, value = _SIGNAL.findall(signals)
        self.output = self.output or _first_name(target)
        self.inputs.append(("", _NAME.findall(value)))


@dataclass(slots=True)
class RtlilModule:
    """A module: its name, its lines, and the objects in it."""

    name: str = ""
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    cells: list[RtlilCell] = field(default_factory=list)


def modules_of(text: str) -> Iterator[RtlilModule]:
    """Read the modules of a design, in the order of the text."""
    module, cell = RtlilModule(), RtlilCell("")
    for line in text.splitlines():
        module.lines.append(line)
        word, _, rest = line.lstrip().partition(" ")
        if word == "module":
            module.name = rest
        elif line == "end":
            yield module
            module = RtlilModule()
        elif word in ("wire", "memory"):
            *options, name = rest.split()
            module.names.append(name)
            if word == "wire" and ("input" in options or "output" in options):
                module.ports.append(name)
        elif word == "cell":
            kind, name = rest.split()
            cell = RtlilCell(kind, name)
            module.cells.append(cell)
            if cell.name[0] == "\\":
                module.names.append(cell.name)
        elif word == "process":
            cell = RtlilCell("process", rest)
            module.cells.append(cell)
        elif word == "parameter" and rest.startswith("\\MEMID"):
            cell.memory = _MEMORY.findall(rest)[0]
        elif word == "connect" and line[0] == " ":
            port, signal = rest.split(" ", 1)
            is_output = port in _OUTPUTS or (port == "\\DATA" and cell.kind == "$memrd_v2")
            if cell.kind[0] == "$" and is_output:
                cell.output = _first_name(signal)
            else:
                cell.inputs.append((port, _NAME.findall(signal)))
        elif word == "connect":
            module.cells.append(RtlilCell("connect"))
            module.cells[-1].assign(rest)
        elif word == "assign":
            cell.assign(rest)
        elif word == "switch":
            cell.inputs.append(("", _NAME.findall(rest)))


def _first_name(signal: str) -> str:
    found = _NAME.search(signal)
    return found[0] if found else ""


def renamed(
    module: RtlilModule, names: dict[str, str], modules: dict[str, str],
    ports: dict[str, dict[str, str]],
) -> Iterator[str]:
    """Return the lines of a module with renamed objects, modules and ports (new names by old)."""
    def replace(found: re.Match[str]) -> str:
        return names.get(found[0], found[0])

    inside: dict[str, str] = {}
    for line in module.lines:
        word, _, rest = line.lstrip().partition(" ")
        head = line[:len(line) - len(rest)]
        if word == "module":
            rest = modules[module.name]
        elif word == "cell":
            kind, name = rest.split()
            inside = ports.get(kind, {})
            rest = f"{modules.get(kind, kind)} {names.get(name, name)}"
        elif word == "parameter" and rest.startswith("\\MEMID"):
            rest = f'\\MEMID "\\{names[_MEMORY.findall(rest)[0]]}"'
        elif word == "connect" and line[0] == " ":
            port, signal = rest.split(" ", 1)
            rest = f"{inside.get(port, port)} {_NAME.sub(replace, signal)}"
        elif word not in ("attribute", "process", "parameter"):
            rest = _NAME.sub(replace, rest)
        if word != "attribute" or not rest.startswith(_OF_TYPES):
            yield head + rest


AT_START = "evaluate_at_start"
"""The register that makes every block be evaluated once at the start, in each module."""

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
    """Whether a name looks like one generated here.

    >>> is_derived("scale.total_add_3"), is_derived("total_next[3]"), is_derived("scale.total")
    (True, True, False)
    """
    return _DERIVED.search(name) is not None


def given_names(module: RtlilModule, avoided: set[str]) -> dict[str, str]:
    r"""Return plain names for the named objects of a module, both with a leading ``\``.

    Plain names are kept and have priority. The ``avoided`` names are not used: a signal with the
    name of the module's instance would hide it.
    """
    given = [name for name in module.names if not _ANONYMOUS.fullmatch(name)]
    names = {name: name for name in given if plain(name[1:]) == name[1:]}
    taken = Names({name[1:] for name in names} | avoided)
    bases: dict[str, str] = {name[1:]: name[1:] for name in names}
    for name in given:
        if name in names:
            continue
        # A field is named after its signal: payload$7.last is payload_2_last.
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
    r"""Return a plain name for every name in a module, both with a leading ``\``."""
    names = dict(named)
    taken = Names({name[1:] for name in names.values()} | avoided)
    origins = _Origins(module, names, ports)
    for name in module.names:
        if name not in names:
            names[name] = f"\\{taken.new(origins.name(name))}"
    return names


class _Origins:
    """The sources and destinations of each anonymous wire of a module."""

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
            if cell.output:
                self._drivers.setdefault(cell.output, cell)
        for cell in module.cells:
            self._note(cell, ports)
        self._sources = self._find_sources(module)
        self._find_goals(module)

    def _note(self, cell: RtlilCell, ports: dict[str, dict[str, str]]) -> None:
        """Record how a cell uses its anonymous input wires."""
        for port, wires in cell.inputs:
            for wire in wires:
                if wire in self._names:
                    continue
                if cell.kind[0] == "\\":
                    end = ports.get(cell.kind, {}).get(port, port)[1:]
                    goal = f"{self._names[cell.name][1:]}_{plain(end)}"
                    if wire not in self._drivers:
                        self._ends.setdefault(wire, goal)
                elif cell.memory:
                    goal = f"{self._names[cell.memory][1:]}_{port[1:].lower()}"
                else:
                    goal = cell.output
                    if port == "\\D" and cell.kind in _REGISTERS:
                        self._next.add(wire)
                if goal:
                    self._served[wire][goal] = None

    def _find_sources(self, module: RtlilModule) -> dict[str, str]:
        """The first named wire that each anonymous one depends on."""
        found: dict[str, str] = {}
        # Twice, since the ports precede their sources in the text.
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
        """The single signal that each anonymous wire contributes to, from last to first wire."""
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
        """The named signal behind a goal; empty if there is none or more than one."""
        if goal[0] not in "\\$":
            return goal
        return self._names[goal][1:] if goal in self._names else self._goals.get(goal, "")

    def name(self, wire: str) -> str:
        """Return a name for an anonymous wire, not necessarily unique."""
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


def readable(text: str) -> str:
    """Give every module, port, wire, memory and instance of RTLIL a plain name.

    The ports of the top module and all plain names are kept. A submodule is named after the path
    of its instance: ``core__array__row0``.
    """
    modules = list(modules_of(text))
    taken = Names(set())
    names = {module.name: f"\\{taken.new(plain(module.name[1:].replace('.', '__')))}"
             for module in modules}
    avoided: dict[str, set[str]] = defaultdict(lambda: {AT_START})
    inner: dict[str, dict[str, str]] = {}
    ports: dict[str, dict[str, str]] = {}
    # A module precedes its submodules, which avoid the names of their instances ...
    for module in modules:
        found = inner[module.name] = given_names(module, avoided[module.name])
        for cell in module.cells:
            if cell.kind in names:
                avoided[cell.kind] = {AT_START, found[cell.name][1:]}
    # ... and wires outside are named after their ports.
    for module in reversed(modules):
        found = all_names(module, inner[module.name], avoided[module.name], ports)
        inner[module.name] = found
        ports[module.name] = {port: found[port] for port in module.ports}
    texts = {
        names[module.name]: "\n".join(renamed(module, inner[module.name], names, ports))
        for module in modules}
    return "\n".join(_equal_once(texts, taken))


def _equal_once(texts: dict[str, str], taken: Names) -> Iterator[str]:
    """Deduplicate modules, given by name, each before its submodules; the first one is kept.

    A module shared by several instances loses their number: ``core__array__row``.
    """
    kept: dict[str, str] = {}
    equal: dict[str, list[str]] = defaultdict(list)
    for name, text in reversed(texts.items()):
        text = _KIND.sub(lambda found: found[1] + kept.get(found[2], found[2]), text)
        same = equal[text.replace(f"module {name}\n", "module\n", 1)]
        same.append(name)
        kept[name] = same[0]
    shown = {}
    for same in reversed(equal.values()):
        shared = same[-1].rstrip("0123456789")
        shown[same[0]] = (f"\\{taken.new(shared[1:])}" if len(same) > 1 and shared != same[-1]
                          else same[-1])
    for text, same in reversed(equal.items()):
        text = _KIND.sub(lambda found: found[1] + shown.get(found[2], found[2]), text)
        yield text.replace("module\n", f"module {shown[same[0]]}\n", 1)
