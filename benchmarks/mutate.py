"""Change one bit of the netlist of a unit, many times, and see that its bench notices.

    python benchmarks/mutate.py [--only TEXT] [--mutants 200] [--seed 1]

Yosys lists mutants, each an input of a cell that is inverted or constant, and puts all of them into
one netlist, where a port chooses. The bench is the test of the emitted folder: its words, with
pauses at both ends, once for each mutant, in one simulation. What it does not notice and Yosys
proves to be the same circuit is no fault; the others are what the bench misses.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sterna.cli.terminal.tables import Table
from sterna.hw.catalog import emit_verilog
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.tools import YosysError, run_yosys
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.testing.run import run_cocotb

_MODEL = random_model(ModelConfig(d=8, layers=1, dff=12, vocab=16), S16, seed=3)
# With as many states as let a beat come in every cycle.
_WIDER = random_model(ModelConfig(d=16, layers=1, dff=12, vocab=16), S16, seed=3)
UNITS: dict[str, tuple[QuantizedModel, str, dict[str, Any]]] = {
    "mac": (_MODEL, "mac", {"rows": 2, "cols": 5}),
    "mlgru": (_WIDER, "mlgru", {"lanes": 2}),
    "glu": (_MODEL, "glu", {"lanes": 2}),
}
"""By name: the model, the unit, its sizes."""

_SELECT = "mutant"
_BENCH = f"""
import json
import os
import random

import cocotb
import {{test}} as own
from cocotb.clock import Clock
from cocotb.triggers import SimTimeoutError, with_timeout
from cocotb.utils import get_sim_time


@cocotb.test()
async def every_mutant(dut):
    unit, vectors = (json.loads((own.FOLDER / name).read_text())
                     for name in ("params.json", "vectors.json"))
    Clock(dut.clk, 10, unit="ns").start()
    missed, patience = [], 1e9
    for mutant in [0, *json.loads(os.environ["STERNA_MUTANTS"])]:
        begin = get_sim_time("ns")
        try:
            for phase in vectors["phases"]:
                phase["levels"]["{_SELECT}"] = mutant
                await with_timeout(own.run_phase(
                    dut, unit, phase, 300, own.Pause(0.5), random.Random(1)), patience, "ns")
            missed.append(mutant)
        # It may say too much for ever, or something undefined.
        except (AssertionError, SimTimeoutError, ValueError):
            assert mutant, "the unit itself fails its bench"
        if not mutant:
            patience = 2 * (get_sim_time("ns") - begin)
    with open("missed.json", "w") as file:
        json.dump(missed[1:], file)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the mutants of a unit: the commands of those that were not noticed."""

    mutants: int
    same: list[str]
    missed: list[str]

    @property
    def caught(self) -> int:
        return self.mutants - len(self.same) - len(self.missed)

    @property
    def share(self) -> float:
        """Of the mutants that are another circuit, the part that is noticed."""
        return self.caught / max(self.mutants - len(self.same), 1)


def plant(emitted: EmittedUnit, count: int, seed: int) -> dict[int, str]:
    """Put mutants into the Verilog of a folder; return their commands by number."""
    folder, top = emitted.folder, emitted.module
    bits = (2 * count).bit_length()
    sources = " ".join(path.name for path in emitted.sources)
    run_yosys(folder, f"""
        read_verilog {sources}
        hierarchy -check -top {top}
        proc
        flatten
        memory_collect
        opt_clean
        write_rtlil plain.il
        mutate -list {2 * count} -seed {seed} -ctrl {_SELECT} {bits} 1 -o mutants.txt
    """)
    # Clocks stay what they are, and a memory that is read at once is always enabled. The output of
    # a register is the input of others, and stays what tells the registers of two circuits apart.
    commands = [line for line in (folder / "mutants.txt").read_text().splitlines()
                if not re.search(r"-port (\w*CLK|Q|RD_EN|RD_\wRST) ", line)][:count]
    (folder / "mutate.ys").write_text("\n".join(commands) + "\n")
    run_yosys(folder, f"""
        read_rtlil plain.il
        script mutate.ys
        write_rtlil mutated.il
        write_verilog -noattr -noparallelcase {emitted.verilog_path.name}
    """)
    manifest = json.loads((folder / "params.json").read_text())
    manifest["ports"].append({"name": _SELECT, "direction": "input", "width": bits})
    (folder / "params.json").write_text(json.dumps(manifest))
    return {int(re.search(rf"-ctrl {_SELECT} \d+ (\d+)", line)[1]): line for line in commands}


def is_same(emitted: EmittedUnit, mutant: int) -> bool:
    """Whether a mutant is proven to be the same circuit as the unit."""
    *ports, select = json.loads((emitted.folder / "params.json").read_text())["ports"]
    declared = ", ".join(
        f"{port['direction']} [{port['width'] - 1}:0] {port['name']}" for port in ports)
    connected = ", ".join(f".{port['name']}({port['name']})" for port in ports)
    sides = "".join(
        f"module {side}({declared});\n  {emitted.module} unit({connected}, "
        f".{_SELECT}({select['width']}'d{number}));\nendmodule\n"
        for side, number in (("gold", 0), ("gate", mutant)))
    (emitted.folder / "sides.v").write_text(sides)
    # Registers become inputs and outputs, bit by bit, once those that nothing depends on are gone:
    # what a cycle does is compared. Products are left whole, so that equal ones are merged.
    script = f"""
        read_rtlil mutated.il
        read_verilog sides.v
        flatten gold gate
        delete {emitted.module}
        memory_map
        opt -full
        dffunmap
        select t:$mul %n
        techmap
        select -clear
        opt -full -nodffe -nosdff
        splitnets
        clean -purge
        expose -dff -evert-dff
        miter -equiv -flatten gold gate miter
        hierarchy -top miter
        opt -full
        sat -timeout 20 -prove trigger 0 miter
    """
    try:
        log = run_yosys(emitted.folder, script)
    except YosysError:      # a register is constant in one of the two, and left out there
        return False
    return "SAT proof finished - no model found: SUCCESS!" in log


def mutate(name: str, count: int, seed: int = 1) -> Outcome:
    """Run the bench of a unit on so many mutants."""
    model, unit, sizes = UNITS[name]
    with tempfile.TemporaryDirectory(prefix="sterna-mutate-") as place:
        emitted = emit_verilog(model, unit, Path(place) / "unit", **sizes)
        commands = plant(emitted, count, seed)
        test = f"test_{emitted.module}"
        bench = emitted.folder / "mutants_bench.py"
        bench.write_text(_BENCH.format(test=test))
        work = Path(place) / "work"
        run_cocotb(emitted.folder, bench, work=work,
                   environment={"STERNA_MUTANTS": json.dumps(list(commands))})
        left = json.loads((work / "missed.json").read_text())
        same = {mutant for mutant in left if is_same(emitted, mutant)}
    return Outcome(len(commands), [commands[each] for each in left if each in same],
                   [commands[each] for each in left if each not in same])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each unit; return 1 if the bench of one misses more than 1 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="units whose name has this in it")
    parser.add_argument("--mutants", type=int, default=200, help="of each unit")
    parser.add_argument("--seed", type=int, default=1, help="of their choice")
    options = parser.parse_args(arguments)
    names = [name for name in UNITS if options.only in name]
    if not names or options.mutants < 1:
        parser.error(f"no unit has {options.only!r} in its name, or --mutants is below 1")
    rows, bad = [], False
    for name in names:
        found = mutate(name, options.mutants, options.seed)
        rows.append((name, found.mutants, found.caught, len(found.same), len(found.missed),
                     f"{found.share:.1%}"))
        bad |= found.share < 0.99
        for line in found.missed:
            print(f"{name} misses {line}", flush=True)
    Table("mutants", ("unit", "mutants", "caught", "the same circuit", "missed", "of the others"),
          rows).print()
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
