"""Synthesis for an FPGA family: cells, and what became of every memory."""

from __future__ import annotations

import enum
import json
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sterna.hw.emit.tools import YosysError, run_yosys
from sterna.hw.flow.primitives import Area, Primitive, primitive_of

__all__ = ["Family", "MappedMemory", "MemoryStyle", "Synthesis", "synthesis_script", "synthesize"]


class Family(enum.StrEnum):
    """An FPGA family."""

    ECP5 = "ecp5"  # Lattice ECP5
    XC7 = "xc7"  # Xilinx 7 series
    ICE40 = "ice40"  # Lattice iCE40
    GOWIN = "gowin"  # Gowin GW2A
    NEXUS = "nexus"  # Lattice Nexus


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
# iCE40: Yosys 0.70 moves a sum of more than 32 bits into the multiplier before it, whose adder has
# 32: bit 32 of the other operand is lost, or the net has two drivers. It moves nothing beyond a
# product that is to be kept; which sums are so wide is known after their widths are reduced.
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
    Family.ICE40: """
        synth_ice40 -top {top} {switches} -run begin:coarse
        opt_expr
        opt_clean
        opt -nodffe -nosdff
        wreduce t:$add t:$mul
        setattr -set keep 1 t:$add r:Y_WIDTH>=33 %i %ci9:+[A,B,D,Q,Y] t:$mul %co1:+[Y] %i w:* %i
        synth_ice40 -top {top} {switches} -run coarse:map_ram
        setattr -unset keep w:*
        synth_ice40 -top {top} {switches} -run map_ram:""",
    Family.GOWIN: "synth_gowin -family gw2a -top {top} {switches}",
    Family.NEXUS: "synth_nexus -noccu2 -top {top} {switches}",
}
# Switches that use, or leave unused, the multiplier blocks.
_MULTIPLIERS = {family: ("", "-nodsp") for family in Family} | {Family.ICE40: ("-dsp", "")}
_SCRIPT = """
read_verilog design.v
tee -o synthesis.log script commands.ys
write_json netlist.json
"""
_TIMEOUT_S = 7200


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
    def area(self) -> Area:
        return Area.of_cells(self.cells)


def synthesis_script(top: str, family: Family, *, multipliers: bool = True) -> str:
    """What Yosys is told to do with a design, a command a line."""
    return _COMMANDS[family].format(top=top, switches=_MULTIPLIERS[family][not multipliers])


def synthesize(
    files: Mapping[str, str], top: str, family: Family, *, multipliers: bool = True,
) -> tuple[Synthesis, dict[str, Any]]:
    """Synthesise Verilog, whose outermost module is ``top``, with Yosys; return its netlist, too.

    ``files`` are one ``.v`` and what its memories contain, texts by name. A small core takes half
    a minute, the bundled model at 8 x 64 several minutes. Not every iCE40 has ``multipliers``. The
    netlist is what Yosys writes as JSON.
    """
    command = synthesis_script(top, family, multipliers=multipliers)
    with tempfile.TemporaryDirectory(prefix="sterna-synthesis-") as name:
        folder = Path(name)
        for each, text in files.items():
            path = folder / ("design.v" if each.endswith(".v") else each)
            path.write_text(text, encoding="utf-8")
        (folder / "commands.ys").write_text(command, encoding="utf-8")
        run_yosys(folder, _SCRIPT, timeout_s=_TIMEOUT_S)
        log = (folder / "synthesis.log").read_text(encoding="utf-8")
        netlist = json.loads((folder / "netlist.json").read_bytes())
    kinds = {name: cell["type"] for name, cell in netlist["modules"][top]["cells"].items()}
    counts = Counter(kind for kind in kinds.values() if not kind.startswith("$"))
    return Synthesis(
        family, re.split(r" \(", netlist["creator"])[0], dict(sorted(counts.items())),
        _memories(log, kinds, top)), netlist


def _memories(log: str, kinds: Mapping[str, str], top: str) -> dict[str, MappedMemory]:
    """Read from the log which memories there are, from the names of the cells what they are.

    A cell of memory ``a.b`` is ``a.b.0.1``: with two numbers for its place. One without is an
    instance in the design itself, and no memory to Yosys.
    """
    styles: dict[str, MemoryStyle] = {}
    for memory, primitive in re.findall(r"^mapping memory (\S+) via (\S+)$", log, re.M):
        is_lut = re.search(r"LUTRAM|DPR16X4", primitive)
        styles[memory.removeprefix(f"{top}.")] = MemoryStyle.LUT if is_lut else MemoryStyle.BLOCK
    for memory in re.findall(r"^using FF mapping for memory (\S+)$", log, re.M):
        styles[memory.removeprefix(f"{top}.")] = MemoryStyle.LOGIC
    places = [re.fullmatch(r"(.*?)(\.\d+){2}", name) for name, kind in kinds.items()
              if primitive_of(kind) in (Primitive.LUT_RAM, Primitive.BLOCK_RAM)]
    counted = Counter(place[1] for place in places if place)
    unknown = counted.keys() - styles.keys()
    if unknown:
        raise YosysError(f"Yosys made RAM cells of no known memory: {sorted(unknown)[0]}")
    return {memory: MappedMemory(style, counted[memory])
            for memory, style in sorted(styles.items())}
