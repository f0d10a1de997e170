"""Synthesis for an FPGA family: cells, and the mapping of every memory."""

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

from sterna.hw.fpga.family import Area, FpgaFamily, Primitive
from sterna.hw.tools.process import YosysError, run_yosys

__all__ = ["MappedMemory", "MemoryStyle", "Synthesis", "synthesize"]


class MemoryStyle(enum.StrEnum):
    """Implementation of a memory."""

    BLOCK = "block RAM"
    LUT = "LUT RAM"
    LOGIC = "logic"


_SCRIPT = """
read_verilog design.v
tee -o synthesis.log script commands.ys
write_json netlist.json
"""
_TIMEOUT_S = 7200


@dataclass(frozen=True, slots=True)
class MappedMemory:
    """Mapping of a memory of the design: its style and its RAM primitives (0 for logic)."""

    style: MemoryStyle
    cells: int


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A synthesised design: its primitives and its memories."""

    family: FpgaFamily
    tool: str  # the Yosys version
    cells: dict[str, int]  # number of primitives by type, sorted by type
    memories: dict[str, MappedMemory]  # by path below the top module

    @property
    def area(self) -> Area:
        return self.family.area(self.cells)


def synthesize(
    files: Mapping[str, str], top: str, family: FpgaFamily, *, multipliers: bool = True,
) -> tuple[Synthesis, dict[str, Any]]:
    """Synthesise Verilog with top module ``top`` in Yosys; also return the JSON netlist.

    ``files`` maps names to texts: one ``.v`` file and the contents of its memories. A small core
    takes half a minute, the bundled model at 8 x 64 several minutes. Not every iCE40 has
    ``multipliers``.
    """
    command = family.synthesis_script(top, multipliers=multipliers)
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
        _memories(log, kinds, top, family)), netlist


def _memories(
    log: str, kinds: Mapping[str, str], top: str, family: FpgaFamily,
) -> dict[str, MappedMemory]:
    """Read the memories from the log and their styles from the names of the cells.

    A cell of memory ``a.b`` is ``a.b.0.1``, with two numbers for its position. A cell without them
    is an instance in the design, not a memory inferred by Yosys.
    """
    styles: dict[str, MemoryStyle] = {}
    for memory, primitive in re.findall(r"^mapping memory (\S+) via (\S+)$", log, re.M):
        is_lut = re.search(r"LUTRAM|DPR16X4", primitive)
        styles[memory.removeprefix(f"{top}.")] = MemoryStyle.LUT if is_lut else MemoryStyle.BLOCK
    for memory in re.findall(r"^using FF mapping for memory (\S+)$", log, re.M):
        styles[memory.removeprefix(f"{top}.")] = MemoryStyle.LOGIC
    places = [re.fullmatch(r"(.*?)(\.\d+){2}", name) for name, kind in kinds.items()
              if family.primitive(kind) in (Primitive.LUT_RAM, Primitive.BLOCK_RAM)]
    counted = Counter(place[1] for place in places if place)
    unknown = counted.keys() - styles.keys()
    if unknown:
        raise YosysError(f"Yosys made RAM cells of no known memory: {sorted(unknown)[0]}")
    return {memory: MappedMemory(style, counted[memory])
            for memory, style in sorted(styles.items())}
