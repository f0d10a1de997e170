"""Change one bit of a unit's netlist, many times, and check that its bench notices.

    python verify/mutate.py [--only TEXT] [--mutants 200] [--seed 1]

Yosys lists mutants, each a cell input that is inverted or constant, and puts all of them into one
netlist with a port that selects one. The bench is the test of the emitted folder, run for each
mutant in one simulation: its words with no, short and long pauses at both ends, and the cycles that
they take, compared as the benches of ``sterna.sim`` compare them with the cycle model. Unnoticed
mutants that Yosys proves equivalent are no faults; the others are misses of the bench.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutated_units import UNITS

from sterna.cli.terminal.tables import Table
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.tools.process import YosysError, run_yosys
from sterna.sim.testing.run import run_cocotb

_SELECT, _BITS = "mutant", 12
"""The port that selects a mutant, and its width."""
_MOST = (1 << _BITS) // 2 - 1
"""Twice as many are listed."""
_BENCH = f"""
import itertools
import json
import os
import random

import cocotb
import {{test}} as own
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge, SimTimeoutError, with_timeout
from cocotb.utils import get_sim_time

sink = own.StreamSink
own.CUTS = (23, 57, 131, 302, 477, 731)
PAUSES = (own.Pause(0.5), own.Pause(0.02, 400), None)


@cocotb.test()
async def every_mutant(dut):
    unit, vectors = (json.loads((own.FOLDER / name).read_text())
                     for name in ("params.json", "vectors.json"))
    if not json.loads(os.environ["STERNA_WAITS"]):
        own.StreamSink = lambda dut, name, pause, rng, phase, shy: sink(dut, name, None, rng, phase)
    Clock(dut.clk, 10, unit="ns").start()
    missed, cycles, patience = [], [], 1e9
    for mutant in [0, *json.loads(os.environ["STERNA_MUTANTS"])]:
        await RisingEdge(dut.clk)
        begin, ends = get_sim_time("ns"), []
        try:
            for pause, phase in itertools.product(PAUSES, vectors["phases"]):
                phase["levels"]["{_SELECT}"] = mutant
                await with_timeout(own.run_phase(
                    dut, unit, phase, vectors["patience"], pause, random.Random(1)),
                    patience, "ns")
                ends.append(get_sim_time("ns") - begin)
            cycles = cycles or ends
            assert ends == cycles, "other results would come later, or earlier"
            missed.append(mutant)
        # It may say too much for ever, or something undefined.
        except (AssertionError, SimTimeoutError, TimeoutError, ValueError):
            assert mutant, "the unit itself fails its bench"
        if not mutant:
            patience = 2 * (get_sim_time("ns") - begin)
    with open("missed.json", "w") as file:
        json.dump(missed[1:], file)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of the mutants of a unit, with the commands of the unnoticed ones."""

    mutants: int
    same: list[str]
    missed: list[str]

    @property
    def caught(self) -> int:
        return self.mutants - len(self.same) - len(self.missed)

    @property
    def share(self) -> float:
        """Share of the non-equivalent mutants that is noticed."""
        return self.caught / max(self.mutants - len(self.same), 1)


def choose(emitted: EmittedUnit, cells: str, count: int, seed: int) -> dict[int, str]:
    """Choose mutants of some cells of a unit; return their commands by number."""
    run_yosys(emitted.folder, f"""
        read_rtlil plain.il
        mutate -list {2 * count} -seed {seed} -ctrl {_SELECT} {_BITS} 1 -o mutants.txt {cells}
    """)
    # Clocks are not mutated, nor enables of memories with asynchronous read. The output of a
    # register is the input of others, and identifies the registers of two circuits.
    lines = [line for line in (emitted.folder / "mutants.txt").read_text().splitlines()
             if not re.search(r"-port (\w*CLK|Q|RD_EN|RD_\wRST) ", line)]
    return {int(re.search(rf"-ctrl {_SELECT} \d+ (\d+)", line)[1]): line for line in lines[:count]}


def read_design(emitted: EmittedUnit) -> None:
    """Write ``plain.il``, the netlist of a unit as one module."""
    sources = " ".join(path.name for path in emitted.sources)
    run_yosys(emitted.folder, f"""
        read_verilog {sources}
        hierarchy -check -top {emitted.module}
        proc
        flatten
        memory_collect
        opt_merge
        opt_clean
        write_rtlil plain.il
    """)


def plant(emitted: EmittedUnit, commands: Iterable[str]) -> None:
    """Put mutants into the Verilog of a folder."""
    folder = emitted.folder
    (folder / "mutate.ys").write_text("\n".join(commands) + "\n")
    run_yosys(folder, f"""
        read_rtlil plain.il
        script mutate.ys
        write_verilog -noattr -noparallelcase {emitted.verilog_path.name}
    """)
    manifest = json.loads((folder / "params.json").read_text())
    manifest["ports"].append({"name": _SELECT, "direction": "input", "width": _BITS})
    (folder / "params.json").write_text(json.dumps(manifest))


def missed(emitted: EmittedUnit, mutants: Sequence[int], waits: bool) -> list[int]:
    """Run the bench of a folder on these mutants; return the unnoticed ones."""
    bench = emitted.folder / "mutants_bench.py"
    bench.write_text(_BENCH.format(test=f"test_{emitted.module}"))
    work = emitted.folder / "work"
    run_cocotb(emitted.folder, bench, work=work, environment={
        "STERNA_MUTANTS": json.dumps(mutants), "STERNA_WAITS": json.dumps(waits)})
    return json.loads((work / "missed.json").read_text())


# Registers become inputs and outputs, bit by bit, to compare a single cycle. {} is for passes that
# show which of them are used.
_CUT = """
    memory_map
    dffunmap
    simplemap t:$dff
    {}
    opt_clean
    splitnets
    opt_clean -purge
    expose -dff -evert-dff
"""
_USED = """
    select t:$mul %n
    techmap
    select -clear
    opt_expr -full
    opt_clean
    opt_expr -full
"""
# Products are kept whole, so that equal ones are merged.
_COMPARE = """
    miter -equiv -flatten gold gate miter
    hierarchy -top miter
    opt -full
    select t:$mul %n
    techmap
    select -clear
    opt -full
    write_rtlil miter.il
    sat -timeout 20 -prove trigger 0 miter
"""
_PROVEN = "SAT proof finished - no model found: SUCCESS!"
_OUTPUT = re.compile(r" output \d+ (\S+)$", re.M)
_HISTORY = 5
"""Cycles from an arbitrary state, to restrict the proof to states reached after them."""


def is_same(emitted: EmittedUnit, command: str) -> bool:
    """Whether a mutant is proven equivalent to the unit: from register to register, in every state,
    or in every state that the unit reaches some cycles after another."""
    folder, top = emitted.folder, emitted.module
    if not (folder / "used.il").exists():
        _cut_registers(emitted, "used", look=_USED)
        _cut_registers(emitted, "gold")
    gold = (folder / "gold.il").read_text()
    cell = re.search(r"-cell (\S+)", command)[1]
    change = re.sub(r" -(ctrl \S+ \S+ \S+|(module|src|wire|wirebit) \S+)", "", command)
    if f" {cell}\n" in gold:        # only its output cone
        sides = f"""
            read_rtlil gold.il
            select -set cone gold/c:{cell} %co*
            delete -output gold/o:* @cone %d
            opt_clean -purge
            copy gold gate
            {change} -module gate
        """
    else:       # of a register, or a memory
        _cut_registers(emitted, "gate", f"{change} -module {top}")
        sides = """
            read_rtlil gold.il
            read_rtlil gate.il
        """
    try:
        if _PROVEN in run_yosys(folder, sides + _COMPARE):
            return True
    except YosysError:      # a register is constant in one of the two, and removed there
        return False
    (folder / "history.v").write_text(_with_registers(gold, (folder / "miter.il").read_text()))
    return _PROVEN in run_yosys(folder, f"""
        read_rtlil gold.il
        read_rtlil miter.il
        read_verilog history.v
        hierarchy -top history
        proc
        flatten
        setattr -unset init w:*
        opt_clean -purge
        opt
        sat -timeout 60 -seq {_HISTORY} -prove-skip {_HISTORY - 1} -prove trigger 0 history
    """)


def _cut_registers(emitted: EmittedUnit, name: str, change: str = "", look: str = "") -> None:
    """Write a unit with its registers as inputs, and with those outputs that are used."""
    path = emitted.folder / f"{name}.il"
    run_yosys(emitted.folder, f"""
        read_rtlil plain.il
        {change}
        {_CUT.format(look)}
        rename {emitted.module} {name}
        write_rtlil {path.name}
    """)
    used = set(_OUTPUT.findall((emitted.folder / "used.il").read_text()))
    path.write_text(_OUTPUT.sub(
        lambda found: found[0] if found[1] in used else f" {found[1]}", path.read_text()))


def _with_registers(gold: str, miter: str) -> str:
    """Verilog of a unit with its registers restored, and of a miter on their values."""
    inputs = re.findall(r"^  wire (?:width (\d+) )?input \d+ \\(\S+)$", gold, re.M)
    states = [name[:-2] for _, name in inputs if name.endswith(".q")]
    declared = [f"input [{int(width or 1) - 1}:0] {name}"
                for width, name in inputs if not name.endswith(".q")]
    nets = {name: name for _, name in inputs} | {
        f"{name}.q": f"q[{at}]" for at, name in enumerate(states)}
    ends = {name: f"d[{at}]" for at, name in enumerate(states)}
    return f"""
        module history({', '.join(declared)}, output trigger);
        reg [{len(states) - 1}:0] q;
        wire [{len(states) - 1}:0] d;
        always @(posedge clk) q <= d;
        gold unit({', '.join([*(f'.{chr(92)}{name} ({net})' for name, net in nets.items()),
                              *(f'.{chr(92)}{name}.d ({net})' for name, net in ends.items())])});
        miter check({', '.join(f'.{chr(92)}in_{name} ({net})' for name, net in nets.items())},
            .trigger(trigger));
        endmodule
    """


def mutate(name: str, count: int, seed: int = 1) -> Outcome:
    """Run the bench of a unit on ``count`` mutants."""
    with tempfile.TemporaryDirectory(prefix="sterna-mutate-") as place:
        unit = UNITS[name]
        folders = [emit(Path(place) / str(number)) for number, emit in enumerate(unit.emits)]
        for emitted in folders:
            read_design(emitted)
        commands = choose(folders[0], unit.cells, count, seed)
        left = list(commands)
        for emitted in folders:
            plant(emitted, commands.values())
            left = missed(emitted, left, unit.waits)
        same = {mutant for mutant in left
                if all(is_same(emitted, commands[mutant]) for emitted in folders)}
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
    if not names or not 1 <= options.mutants <= _MOST:
        parser.error(f"no unit has {options.only!r} in its name, or --mutants is not in 1 to "
                     f"{_MOST}")
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
