"""Generic word-level cells of a unit, counted when its Verilog is written."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from amaranth.lib import wiring

from sterna.hw.emit.verilog import written_by_yosys

__all__ = ["CellCounts", "cell_counts"]

# The coarse half of `synth`, without the passes that hide a multiplier in a `$macc`. It takes
# seconds instead of minutes and tells more about an arithmetic unit than a mapping to gates.
_COUNT = """\
proc
flatten
opt_expr
opt_clean
opt -nodffe -nosdff
wreduce
opt
memory_collect
opt_clean
write_json -compat-int
"""
_BOOKKEEPING = {"$scopeinfo"}
_MULTIPLIERS = {"$mul", "$macc", "$macc_v2"}


@dataclass(frozen=True, slots=True)
class CellCounts:
    """Generic cells of a flattened module."""

    cells: dict[str, int]  #: number of cells by type (``$add``, ``$dffe``, ...), sorted by type
    #: bits of all registers and of all memories
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


def cell_counts(component: wiring.Component, module: str) -> CellCounts:
    """Count the word-level cells of a component, including its submodules.

    Raises YosysError if Yosys rejects it.
    """
    design = json.loads(written_by_yosys(component, module, _COUNT))
    cells: Counter[str] = Counter()
    register_bits = memory_bits = 0
    for cell in design["modules"][module]["cells"].values():
        kind, sizes = cell["type"], cell["parameters"]
        if kind in _BOOKKEEPING:
            continue
        cells[kind] += 1
        if "dff" in kind:
            register_bits += sizes["WIDTH"]
        elif kind == "$mem_v2":
            memory_bits += sizes["SIZE"] * sizes["WIDTH"]
    return CellCounts(dict(sorted(cells.items())), register_bits, memory_bits)
