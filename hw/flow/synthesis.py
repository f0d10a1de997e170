"""Synthesis for an FPGA family: cells, and what became of every memory."""

from __future__ import annotations

import enum
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sterna.hw.emit.tools import YosysError, copy_memories, run_yosys

__all__ = ["Family", "MappedMemory", "MemoryStyle", "Synthesis", "synthesis_script", "synthesize"]


class Family(enum.StrEnum):
    """An FPGA family."""

    ECP5 = "ecp5"  # Lattice ECP5
    XC7 = "xc7"  # Xilinx 7 series
    ICE40 = "ice40"  # Lattice iCE40


class MemoryStyle(enum.StrEnum):
    """What a memory is made of."""

    BLOCK = "block RAM"
    LUT = "LUT RAM"
    LOGIC = "logic"


# Both flatten: the modules of Sterna are small, and registers can then move into the block
# RAMs and multipliers beside them. A core is part of a design, so it gets no pads.
# ECP5: Yosys takes a register of the AND of two signals, before a multiplier, for one with a
# synchronous reset, which the registers inside the multiplier do not have. That is taken back.
# And its own script counts 300 ps for a wire, which is little in a full device: with 1,000 ps
# the control paths lose two levels of logic, and the core some LUTs.
_COMMANDS = {
    Family.ECP5: """
        synth_ecp5 -top {top} {switches} -run :map_ffs
        dffunmap -srst-only t:MULT18X18D %ci2 t:$_SDFF* %i
        synth_ecp5 -top {top} {switches} -run map_ffs:map_luts
        check -latchonly -assert
        abc9 -W 1000
        clean
        synth_ecp5 -top {top} {switches} -run map_cells:""",
    Family.XC7: "synth_xilinx -family xc7 -flatten -noiopad -noclkbuf -top {top} {switches}",
    Family.ICE40: "synth_ice40 -top {top} {switches}",
}
# Switches that use, or leave unused, the multiplier blocks.
_MULTIPLIERS = {
    Family.ECP5: ("", "-nodsp"), Family.XC7: ("", "-nodsp"), Family.ICE40: ("-dsp", "")}
_SCRIPT = """
read_verilog design.v
tee -o synthesis.log script commands.ys
tee -o cells.json stat -json
tee -o rams.txt select -list {rams}
{netlist}
"""

_TIMEOUT_S = 7200

_BLOCK_RAMS = {"DP16KD": 1, "PDPW16KD": 1, "RAMB18E1": 1, "RAMB36E1": 2} | {
    f"SB_RAM40_4K{edges}": 1 for edges in ("", "NR", "NW", "NRNW")}
_LUT_RAMS = {
    "TRELLIS_DPR16X4", "RAM16X1D", "RAM32M", "RAM32X1D", "RAM32X1S", "RAM64M", "RAM64X1D",
    "RAM64X1S", "RAM128X1D", "RAM256X1D"}
_FLIP_FLOPS = re.compile(r"TRELLIS_FF|FD[RSPC]E(_1)?|SB_DFF\w*")
_LUTS = re.compile(r"LUT[1-6](_2)?|SB_LUT4")
_CARRIES = {"CCU2C", "CARRY4", "SB_CARRY"}
_DSPS = {"MULT18X18D", "DSP48E1", "SB_MAC16"}
_LUTS_OF = {
    "CCU2C": 2, "TRELLIS_DPR16X4": 6, "SRL16E": 1, "SRLC32E": 1, "RAM16X1D": 2, "RAM32X1S": 1,
    "RAM32X1D": 2, "RAM64X1S": 1, "RAM64X1D": 2, "RAM128X1D": 4, "RAM256X1D": 8, "RAM32M": 4,
    "RAM64M": 4}


@dataclass(frozen=True, slots=True)
class MappedMemory:
    """What a memory of the design is made of: its style, and its RAM primitives (0 for logic)."""

    style: MemoryStyle
    cells: int


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A synthesised design: its primitives and its memories."""

    family: Family
    tool: str  # the Yosys that did it
    cells: dict[str, int]  # number of primitives by type, sorted by type
    memories: dict[str, MappedMemory]  # by path below the top module

    @property
    def luts(self) -> int:
        """Look-up tables, of four inputs or up to six (7 series), without carries."""
        return sum(n for kind, n in self.cells.items() if _LUTS.fullmatch(kind))

    @property
    def luts_with_carries(self) -> int:
        """LUTs, and those that carries, LUT RAM and shift registers are made of.

        A carry of the ECP5 is two LUTs, 16 x 4 bits of its RAM are four, and their address
        registers take the place of two. Elsewhere carries lie beside the LUTs.
        """
        return self.luts + sum(
            self.cells.get(kind, 0) * luts for kind, luts in _LUTS_OF.items())

    @property
    def carries(self) -> int:
        """Carry cells: two LUTs each (ECP5), four bits (7 series) or one (iCE40) of a chain."""
        return _total(self.cells, _CARRIES)

    @property
    def flip_flops(self) -> int:
        """Flip-flops, those inside of other primitives not counted."""
        return sum(n for kind, n in self.cells.items() if _FLIP_FLOPS.fullmatch(kind))

    @property
    def lut_rams(self) -> int:
        """Primitives of LUT RAM: four LUTs or so each."""
        return _total(self.cells, _LUT_RAMS)

    @property
    def block_rams(self) -> int:
        """Block RAMs of 18 kbit, of which one of 36 counts as two; of 4 kbit in iCE40."""
        return sum(self.cells.get(kind, 0) * size for kind, size in _BLOCK_RAMS.items())

    @property
    def multipliers(self) -> int:
        """Multiplier blocks."""
        return _total(self.cells, _DSPS)


def synthesis_script(top: str, family: Family, *, multipliers: bool = True) -> str:
    """What Yosys is told to do with a design, a command a line."""
    return _COMMANDS[family].format(top=top, switches=_MULTIPLIERS[family][not multipliers])


def synthesize(
    verilog_path: str | Path, top: str, family: Family, *, multipliers: bool = True,
    netlist_path: str | Path | None = None,
) -> Synthesis:
    """Synthesise a Verilog file, whose outermost module is ``top``, with Yosys.

    A small core takes half a minute, the bundled model at 8 x 64 several minutes. Not every
    iCE40 has ``multipliers``. The netlist goes to ``netlist_path``, if given, in Yosys' JSON.
    """
    command = synthesis_script(top, family, multipliers=multipliers)
    with tempfile.TemporaryDirectory(prefix="sterna-synthesis-") as name:
        folder = Path(name)
        shutil.copyfile(verilog_path, folder / "design.v")
        copy_memories(Path(verilog_path), folder)
        (folder / "commands.ys").write_text(command, encoding="utf-8")
        run_yosys(folder, _SCRIPT.format(
            netlist="write_json netlist.json" if netlist_path else "",
            rams=" ".join(f"t:{kind}" for kind in sorted(_BLOCK_RAMS.keys() | _LUT_RAMS)),
        ), timeout_s=_TIMEOUT_S)
        report = json.loads((folder / "cells.json").read_text(encoding="utf-8"))
        log = (folder / "synthesis.log").read_text(encoding="utf-8")
        rams = (folder / "rams.txt").read_text(encoding="utf-8").split()
        if netlist_path is not None:
            shutil.move(folder / "netlist.json", netlist_path)
    cells = report["design"]["num_cells_by_type"]
    return Synthesis(
        family, re.split(r" \(", report["creator"])[0],
        {kind: n for kind, n in sorted(cells.items()) if not kind.startswith("$")},
        _memories(log, rams, top))


def _total(cells: Mapping[str, int], kinds: set[str]) -> int:
    return sum(cells.get(kind, 0) for kind in kinds)


def _memories(log: str, rams: list[str], top: str) -> dict[str, MappedMemory]:
    """Read from the log which memories there are, from the names of the cells what they are.

    A cell of memory ``a.b`` is ``top/a.b.0.1``: with two numbers for its place. One without
    is an instance in the design itself, and no memory to Yosys.
    """
    styles: dict[str, MemoryStyle] = {}
    for memory, primitive in re.findall(r"^mapping memory (\S+) via (\S+)$", log, re.M):
        is_lut = re.search(r"LUTRAM|DPR16X4", primitive)
        styles[memory.removeprefix(f"{top}.")] = MemoryStyle.LUT if is_lut else MemoryStyle.BLOCK
    for memory in re.findall(r"^using FF mapping for memory (\S+)$", log, re.M):
        styles[memory.removeprefix(f"{top}.")] = MemoryStyle.LOGIC
    places = [re.fullmatch(rf"{re.escape(top)}/(.*?)(\.\d+){{2}}", name) for name in rams]
    counted = Counter(place[1] for place in places if place)
    unknown = counted.keys() - styles.keys()
    if unknown:
        raise YosysError(f"Yosys made RAM cells of no known memory: {sorted(unknown)[0]}")
    return {memory: MappedMemory(style, counted[memory])
            for memory, style in sorted(styles.items())}
