"""Models in C on microcontrollers, emulated: bytes of code, flash and RAM, instructions a step.

    apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm
    apt-get install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc
    python benchmarks/c_targets.py

Compiles each model with -Os for each processor, runs its self-test and some steps in QEMU, compares
what comes out with the integer reference, and counts the executed instructions by function. RAM is
a state, the scratch, and the stack below `main`. Milliseconds are an estimate: one cycle an
instruction, which flash without a cache exceeds.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sterna.cli.terminal.tables import Table
from sterna.export.c.folder import export_c
from sterna.export.forms.selftest import sample_steps
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.sampling import Sampler

MODELS = ("micro", "vowels", "tiny")
CLOCKS = (48, 133, 240)
OPTIONS = "-Os", "-fno-tree-loop-distribute-patterns"
"""The second: no loop becomes a call of the C library."""
HARNESS = "number", "say", "host", "steps", "begin", "vectors", "frames"
HERE = Path(__file__).parent / "c_target"


@dataclass(frozen=True)
class Target:
    """A processor: how to compile for it, and the machine of QEMU that has it."""

    name: str
    compiler: tuple[str, ...]
    flash: int
    ram: int
    machine: tuple[str, ...]


_ARM = "arm-none-eabi-gcc", "-mthumb", "--specs=nano.specs"
TARGETS = (
    Target("Cortex-M0+", (*_ARM, "-mcpu=cortex-m0plus"), 0, 0x2000_0000,
           ("qemu-system-arm", "-M", "mps2-an385")),
    Target("Cortex-M4", (*_ARM, "-mcpu=cortex-m4"), 0, 0x2000_0000,
           ("qemu-system-arm", "-M", "mps2-an386")),
    Target("RV32IMC", ("riscv64-unknown-elf-gcc", "-march=rv32imc", "-mabi=ilp32",
                       "--specs=picolibc.specs"), 0x8000_0000, 0x8100_0000,
           ("qemu-system-riscv32", "-M", "virt", "-bios", "none")))
"""QEMU has no M0+: its instructions run on the M3, which has them all."""


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    rows, functions = [], []
    for name in arguments.models:
        model = load_model(name)
        for target in TARGETS:
            with tempfile.TemporaryDirectory() as work:
                row, counts = measured(model, target, Path(work), arguments.steps)
            rows.append((name, target.name, *row))
            functions.append((name, target.name, *(
                f"{function} {100 * count / counts.total():.0f}%"
                for function, count in counts.most_common(4))))
    Table(f"bytes; instructions a step, and estimated ms at {', '.join(map(str, CLOCKS))} MHz",
          ("model", "processor", "code", "flash", "RAM", "instructions", *["ms"] * len(CLOCKS)),
          rows).print()
    Table("instructions by function", ("model", "processor", "", "", "", ""), functions).print()


def measured(
    model: QuantizedModel, target: Target, work: Path, steps: int,
) -> tuple[list[str], Counter[str]]:
    """The row of a model on a processor, and the instructions of a step by function."""
    facts = export_c(model, work / "c")
    frames = sample_steps(model.entry, 1, steps)[0] if model.is_network else None
    program, one = (_compiled(target, work, count, frames) for count in (steps, 1))
    out = _run(target, program, ())
    passed, *numbers, _, stack = out.split()
    expected = _expected(model, steps, frames)
    if passed != "passed" or list(map(int, numbers)) != expected:
        raise SystemExit(f"{target.name}: {model.entry}: not the integers of the reference")
    counts = _trace(target, program, work)
    counts.subtract(_trace(target, one, work))
    own = Counter({name: count / (steps - 1) for name, count in counts.items()
                   if count > 0 and name.split(".")[0] not in HARNESS})
    flash = sum(_sizes(target, program).values())
    instructions = own.total()
    return [f"{flash - facts['weights']:,}", f"{flash:,}",
            f"{facts['state'] + facts['scratch'] + int(stack):,}", f"{instructions:,.0f}",
            *(f"{instructions / clock / 1000:.2f}" for clock in CLOCKS)], own


def _sizes(target: Target, program: Path) -> dict[str, int]:
    """Bytes in flash by symbol, those of the harness apart."""
    listed = subprocess.run([target.compiler[0].replace("-gcc", "-nm"), "-S", program],
                            capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in listed.splitlines()]
    return {at: int(size, 16) for at, size, kind, name in (
                each for each in words if len(each) == 4)
            if kind in "tTrRwW" and name.split(".")[0] not in HARNESS}


def _expected(model: QuantizedModel, steps: int, frames: np.ndarray | None) -> list[int]:
    reference = IntegerModel(model)
    if frames is not None:
        results, _ = reference.run(frames[None])
        return [int(each) & 0xFFFF for each in np.asarray(results).reshape(-1)]
    sampler = Sampler(temperature=0.7, seed=1, logit_frac=model.logit.frac)
    state, token, drawn = reference.start(1), ord("T"), []
    for _ in range(steps):
        logits, state = reference.step(np.array([token]), state)
        token = sampler(logits[0])
        drawn.append(token)
    return drawn


def _compiled(target: Target, work: Path, steps: int, frames: np.ndarray | None) -> Path:
    program = work / f"{steps}.elf"
    rows = [] if frames is None else [
        "-DFRAMES=" + ",".join("{" + ",".join(map(str, row)) + "}" for row in frames.tolist())]
    subprocess.run([
        *target.compiler, *OPTIONS, "-std=gnu11", "-ffunction-sections", "-fdata-sections",
        "-nostartfiles", "-Wl,--gc-sections", f"-Wl,--defsym=FLASH_AT={target.flash}",
        f"-Wl,--defsym=RAM_AT={target.ram}", "-T", HERE / "target.ld", f"-DSTEPS={steps}", *rows,
        f"-I{work / 'c' / 'src'}", HERE / "target.c", *(work / "c" / "src").glob("*.c"),
        "-o", program], check=True)
    return program


def _run(target: Target, program: Path, options: tuple[str | Path, ...]) -> str:
    done = subprocess.run(
        [*target.machine, "-nographic", "-monitor", "none", "-serial", "none",
         "-semihosting-config", "enable=on,target=native", "-kernel", program, *options],
        capture_output=True, text=True, check=False, timeout=300)
    return done.stdout + done.stderr


def _trace(target: Target, program: Path, work: Path) -> Counter[str]:
    """The executed instructions by function."""
    log = work / "trace"
    _run(target, program, ("-d", "in_asm,exec,nochain", "-D", log))
    counts: Counter[str] = Counter()
    sizes: dict[int, int] = {}
    names: dict[int, str] = {}
    first = name = None
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("Trace"):
                at = int(line.split("/")[1], 16)
                counts[names.get(at, "?")] += sizes.get(at, 0)
                first = None
            elif line.startswith("IN:"):
                name, first = line[3:].strip(), None
            elif found := re.match(r"0x([0-9a-f]+):  ", line):
                at = int(found[1], 16)
                if first is None:
                    first = at
                    sizes[first], names[first] = 0, name or "?"
                sizes[first] += 1
    return counts


if __name__ == "__main__":
    main()
