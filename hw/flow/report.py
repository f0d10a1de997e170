"""What a unit is made of: generic word-level cells, counted by Yosys."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sterna.hw.emit.yosys import run_yosys

__all__ = ["CellCounts", "cell_counts", "modules_below"]

# The coarse half of `synth`, without the passes that hide a multiplier in a `$macc`. It takes
# seconds where mapping to gates takes minutes, and says more about an arithmetic unit.
_SCRIPT = """
read_verilog {file}
hierarchy -check -top {top}
proc
flatten
opt_expr
opt_clean
check -assert
opt -nodffe -nosdff
wreduce
peepopt
opt
tee -o memories.json stat -json
memory -nomap
opt_clean
tee -o cells.json stat -json -width
"""
_NAME = re.compile(r"\\\S+|[A-Za-z_][\w$]*")
# A module with the attributes before it, of which `blackbox` would be one.
_MODULE = re.compile(
    rf"(?:^\(\*[^\n]*\*\)\n)*^module\s+({_NAME.pattern}).*?^endmodule[^\n]*\n",
    re.DOTALL | re.MULTILINE)
_BOOKKEEPING = {"$scopeinfo"}
_MULTIPLIERS = {"$mul", "$macc", "$macc_v2"}


@dataclass(frozen=True, slots=True)
class CellCounts:
    """Generic cells of a flattened module.

    Parameters
    ----------
    cells
        Number of cells by type (``$add``, ``$dffe``, ...), sorted by type.
    register_bits, memory_bits
        Bits of all registers and of all memories.
    """

    cells: dict[str, int]
    register_bits: int
    memory_bits: int

    @property
    def multipliers(self) -> int:
        """Number of cells that multiply."""
        return sum(self.cells.get(kind, 0) for kind in _MULTIPLIERS)

    @property
    def adders(self) -> int:
        """Number of cells that add or subtract."""
        return sum(self.cells.get(kind, 0) for kind in ("$add", "$sub", "$alu"))


def cell_counts(verilog_path: str | Path, top: str) -> CellCounts:
    """Count the word-level cells of a Verilog file.

    The 8 x 128 array takes about 4 seconds, the MLGRU unit 2. Yosys gets no module but those
    below the top: the memory images of a whole core would take it a minute to read.

    Parameters
    ----------
    verilog_path
        The file.
    top
        Name of the module to count, with everything in it.

    Raises
    ------
    MissingToolError
        If Yosys is not installed.
    YosysError
        If Yosys does not accept the file.
    """
    with tempfile.TemporaryDirectory(prefix="sterna-report-") as name:
        folder = Path(name)
        text = Path(verilog_path).read_text(encoding="utf-8")
        (folder / "unit.v").write_text(modules_below(text, top), encoding="utf-8")
        run_yosys(folder, _SCRIPT.format(file="unit.v", top=top))
        sized = _totals(folder / "cells.json")["num_cells_by_type"]
        memory_bits = _totals(folder / "memories.json")["num_memory_bits"]
    cells: Counter[str] = Counter()
    register_bits = 0
    for sized_kind, count in sorted(sized.items()):
        kind, _, width = sized_kind.rpartition("_")
        if not width.isdigit():
            kind = sized_kind  # memories carry a version instead of a width
        if kind in _BOOKKEEPING:
            continue
        cells[kind] += count
        if "dff" in kind:
            register_bits += count * int(width)
    return CellCounts(dict(sorted(cells.items())), register_bits, memory_bits)


def modules_below(text: str, top: str) -> str:
    """Return the Verilog of a module and of every module in it, in the order of the file.

    Parameters
    ----------
    text
        Verilog as Yosys writes it: ``module`` and ``endmodule`` begin lines of their own.
    top
        Name of the module. If there is none, the whole text is returned, for Yosys to say so.
    """
    modules = {_plain(found[1]): found[0] for found in _MODULE.finditer(text)}
    if top not in modules:
        return text
    needed, left = set(), [top]
    while left:
        name = left.pop()
        if name not in needed:
            needed.add(name)
            # Whatever is called like a module is taken for one: a few too many do no harm.
            words = {_plain(word) for word in _NAME.findall(modules[name])}
            left += words & modules.keys()
    return "".join(modules[name] for name in modules if name in needed)


def _plain(name: str) -> str:
    """A name without the backslash that escapes it."""
    return name.removeprefix("\\")


def _totals(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))["design"]
