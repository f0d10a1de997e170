"""What a unit is made of: generic word-level cells, counted by Yosys."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sterna.hw.emit.tools import copy_memories, run_yosys

__all__ = ["CellCounts", "cell_counts"]

# The coarse half of `synth`, without the passes that hide a multiplier in a `$macc`. It takes
# seconds where mapping to gates takes minutes, and says more about an arithmetic unit.
_SCRIPT = """
read_verilog unit.v
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


def cell_counts(verilog_path: str | Path, top: str) -> CellCounts:
    """Count the word-level cells of a module of a Verilog file, with everything in it.

    The 8 x 128 array takes about 4 seconds, the MLGRU unit 2. MissingToolError if Yosys is not
    installed, YosysError if it does not accept the file.
    """
    with tempfile.TemporaryDirectory(prefix="sterna-report-") as name:
        folder = Path(name)
        shutil.copyfile(verilog_path, folder / "unit.v")
        copy_memories(Path(verilog_path), folder)
        run_yosys(folder, _SCRIPT.format(top=top))
        cells_found, memories_found = (
            json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["design"]
            for name in ("cells", "memories"))
    cells: Counter[str] = Counter()
    register_bits = 0
    for sized_kind, count in sorted(cells_found["num_cells_by_type"].items()):
        kind, _, width = sized_kind.rpartition("_")
        if not width.isdigit():
            kind = sized_kind  # memories carry a version instead of a width
        if kind in _BOOKKEEPING:
            continue
        cells[kind] += count
        if "dff" in kind:
            register_bits += count * int(width)
    return CellCounts(dict(sorted(cells.items())), register_bits, memories_found["num_memory_bits"])
