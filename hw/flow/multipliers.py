"""Which modules of a Verilog file multiply: cells of a generic synthesis, module by module."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sterna.hw.emit.tools import copy_memories, run_yosys

__all__ = ["PROJECTION_MODULES", "ModuleCells", "Multiplier", "module_cells"]

PROJECTION_MODULES = ("array", "issuer", "activations", "weights", "dispatcher", "sums")
"""Modules of the core, with all below them, that a projection goes through."""

# No `flatten`: every cell stays in its module. None of these passes hides a multiplier, as
# `alumacc` does in a `$macc` and `peepopt` in a shift; `opt` and `wreduce` narrow operands and
# turn products with 0, 1 and powers of two into wires.
_SCRIPT = """
read_verilog design.v
hierarchy -check -top {top}
uniquify
hierarchy -top {top}
proc
opt_expr
opt_clean
check -assert
opt -nodffe -nosdff
wreduce
memory_collect
opt_clean
tee -o cells.json stat -json
select t:$mul t:$macc t:$macc_v2 t:$div t:$mod t:$divfloor t:$modfloor t:$pow
write_json -selected multipliers.json
"""


@dataclass(frozen=True, slots=True)
class Multiplier:
    """A cell of a Verilog module that multiplies, or divides: its type (``$mul``) and widths."""

    module: str
    kind: str
    operand_bits: tuple[int, ...]
    product_bits: int


@dataclass(frozen=True, slots=True)
class ModuleCells:
    """What one instance of a module holds, without the instances in it.

    ``module`` is its path. ``cells`` counts word-level cells by type (``$add``, ``$dffe``, ...),
    sorted by type; ``multipliers`` are sorted by width.
    """

    module: str
    cells: dict[str, int]
    multipliers: tuple[Multiplier, ...]


def module_cells(
    verilog_path: str | Path, top: str, *, timeout_s: float = 3600,
) -> dict[str, ModuleCells]:
    """Return what every instance in a Verilog file holds, by path, the hierarchy kept:
    ``matmul_free_core.array.row0``.

    Parameters
    ----------
    verilog_path
        The file.
    top
        Name of the outermost module.
    timeout_s
        Deadline in seconds.

    Raises
    ------
    MissingToolError
        If Yosys is not installed.
    YosysError
        If Yosys does not accept the file, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="sterna-cells-") as name:
        folder = Path(name)
        shutil.copyfile(verilog_path, folder / "design.v")
        copy_memories(Path(verilog_path), folder)
        run_yosys(folder, _SCRIPT.format(top=top), timeout_s=timeout_s)
        counted = json.loads((folder / "cells.json").read_text(encoding="utf-8"))["modules"]
        selected = json.loads((folder / "multipliers.json").read_text(encoding="utf-8"))
    counts = {escaped.removeprefix("\\"): module["num_cells_by_type"]
              for escaped, module in counted.items()}
    found: dict[str, list[Multiplier]] = {module: [] for module in counts}
    for module, content in selected["modules"].items():
        for cell in content.get("cells", {}).values():
            widths = {port: len(bits) for port, bits in cell["connections"].items()}
            product_bits = widths.pop("Y")
            found[module].append(Multiplier(
                module, cell["type"], tuple(widths.values()), product_bits))
    return {
        module: ModuleCells(
            module,
            {kind: count for kind, count in sorted(cells.items()) if kind not in counts},
            tuple(sorted(found[module], key=lambda each: (each.product_bits,
                                                          each.operand_bits))))
        for module, cells in sorted(counts.items())}
