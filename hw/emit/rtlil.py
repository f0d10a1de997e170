"""Modules of RTLIL, the text in which Amaranth hands a design to Yosys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["RtlilCell", "RtlilModule", "modules_of", "names_in", "renamed"]

_NAME = re.compile(r"[\\$][^\s\"]+")
_MEMORY = re.compile(r'"\\(\\[^"]+)"')


@dataclass(slots=True)
class RtlilCell:
    r"""An operator, a register, a port of a memory, an instance or a process.

    ``kind`` is ``$add``, ``\module`` or ``process``. ``inputs`` are pairs of a port and the names
    of the wires there, ``output`` is the wire that an operator or a process drives. ``memory`` is
    the memory whose port it is. At an instance, every port counts as an input.
    """

    kind: str
    name: str
    inputs: list[tuple[str, list[str]]] = field(default_factory=list)
    output: str = ""
    memory: str = ""


@dataclass(slots=True)
class RtlilModule:
    """A module: its name, its text, line by line, and what was found in it."""

    name: str
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    cells: list[RtlilCell] = field(default_factory=list)


_OUTPUTS = {"\\Y", "\\Q"}


def modules_of(text: str) -> Iterator[RtlilModule]:
    """Read the modules of a design, in the order of the text."""
    module = RtlilModule("")
    for line in text.splitlines():
        if line.startswith("module "):
            module.name = line.split()[1]
        module.lines.append(line)
        if line == "end":
            _read(module)
            yield module
            module = RtlilModule("")


def names_in(text: str) -> list[str]:
    """Return the names in a signal, each once."""
    return list(dict.fromkeys(_NAME.findall(text)))


def _read(module: RtlilModule) -> None:
    """Collect names and cells from the lines of a module."""
    cell = RtlilCell("", "")
    for line in module.lines:
        word, _, rest = line.lstrip().partition(" ")
        if word in ("wire", "memory"):
            words = rest.split()
            module.names.append(words[-1])
            if word == "wire" and ("input" in words[:-1] or "output" in words[:-1]):
                module.ports.append(words[-1])
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
            cell.memory = _memory(rest)
        elif word == "connect" and line[0] == " ":
            _connect(cell, *rest.split(" ", 1))
        elif word == "connect":
            left, right = _sides(rest)
            module.cells.append(RtlilCell(
                "connect", "", [("", names_in(right))], (names_in(left) or [""])[0]))
        elif word == "assign":
            left, right = _sides(rest)
            cell.output = cell.output or (names_in(left) or [""])[0]
            cell.inputs.append(("", names_in(right)))
        elif word == "switch":
            cell.inputs.append(("", names_in(rest)))


def _connect(cell: RtlilCell, port: str, signal: str) -> None:
    is_output = port in _OUTPUTS or (port == "\\DATA" and cell.kind == "$memrd_v2")
    if cell.kind[0] == "$" and is_output:
        cell.output = (names_in(signal) or [""])[0]
    else:
        cell.inputs.append((port, names_in(signal)))


def _sides(text: str) -> tuple[str, str]:
    """Split ``{ \\a \\b } \\c [0]`` or ``\\a [3:0] \\c`` into what is assigned and its value."""
    if text.startswith("{"):
        left, _, right = text.partition("} ")
        return left, right
    found = re.match(r"\S+(?: \[[^\]]*\])?", text)
    assert found is not None
    return found[0], text[found.end():]


def _memory(text: str) -> str:
    found = _MEMORY.search(text)
    assert found is not None
    return found[1]


def renamed(
    module: RtlilModule, names: dict[str, str], modules: dict[str, str],
    ports: dict[str, dict[str, str]],
) -> Iterator[str]:
    r"""Return the lines of a module under other names.

    Parameters
    ----------
    module
        The module.
    names
        New names in it by the old ones, both with the ``\`` or ``$`` before them.
    modules, ports
        New names of the modules, and of the ports of each, by the old ones.
    """
    def replace(found: re.Match[str]) -> str:
        return names.get(found[0], found[0])

    inside: dict[str, str] | None = {}
    for line in module.lines:
        word, _, rest = line.lstrip().partition(" ")
        head = line[:len(line) - len(rest)]
        if word in ("attribute", "end", ""):
            yield line
        elif word == "module":
            yield f"module {modules[module.name]}"
        elif word == "cell":
            kind, name = rest.split()
            inside = ports.get(kind)
            yield f"{head}{modules.get(kind, kind)} {names.get(name, name)}"
        elif word == "parameter":
            memory = _MEMORY.search(rest) if rest.startswith("\\MEMID") else None
            yield (line if memory is None else
                   f'{head}\\MEMID "\\{names[memory[1]]}"')
        elif word == "connect" and line[0] == " ":
            port, signal = rest.split(" ", 1)
            port = port if inside is None else inside.get(port, port)
            yield f"{head}{port} {_NAME.sub(replace, signal)}"
        elif word == "process":
            yield line
        else:
            yield head + _NAME.sub(replace, rest)
