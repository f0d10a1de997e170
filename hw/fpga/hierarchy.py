"""Map cells and nets of a flattened netlist to the design's hierarchy."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any

from sterna.hw.emit.rtlil_names import is_derived
from sterna.hw.fpga.family import FpgaFamily, Primitive

__all__ = ["Hierarchy"]

Bit = int | str
"""A net by its number, or a constant ``"0"``, ``"1"``, ``"x"``."""

_SCOPE = "$scopeinfo"
_PACKED = re.compile(r"_(DFF|RAM|CARRY)?LC$")
# Source locations in the design are first; Yosys appends those in its files, below /share.
_DECLARED = re.compile(r"[^/|:]+\.v:(\d+)\.")
_RANGE = re.compile(r"[^/|:]+\.v:(\d+)\.\d+-(\d+)\.")


class Hierarchy:
    """The design hierarchy recovered from a flattened Yosys netlist.

    Flattening keeps the path of a wire in its name, and for each instance a cell without function
    that has the lines of its module in the Verilog. These give the block (path of an instance
    below the top module; empty for the top module itself) of every cell, and the design's wire of
    every net. ``netlist`` is Yosys' JSON of primitives of ``family``; ``prefix`` is the path of
    the unit, if it was wrapped: it is omitted from every name, and cells outside belong to no
    block.
    """

    def __init__(
        self, netlist: Mapping[str, Any], top: str, family: FpgaFamily, prefix: str = "",
    ) -> None:
        module = netlist["modules"][top]
        self._family, self.prefix = family, prefix
        self.cells: dict[str, Mapping[str, Any]] = {
            name: cell for name, cell in module["cells"].items() if cell["type"] != _SCOPE}
        self._nets: dict[str, Mapping[str, Any]] = module["netnames"]
        scopes = {name: cell["attributes"].get("module_src", "")
                  for name, cell in module["cells"].items() if cell["type"] == _SCOPE}
        self._scopes = set(scopes)
        self._by_line = _module_lines(scopes)
        self._wires = self._name_wires()
        self._readers: dict[Bit, list[str]] = defaultdict(list)
        for name, cell in self.cells.items():
            for bit in _bits(cell, "input"):
                self._readers[bit].append(name)
        self._blocks: dict[str, str] | None = None

    def block(self, cell: str) -> str | None:
        """Return the block of a cell; None if it is outside the prefix.

        A register, memory, multiplier or carry belongs to the module with its source lines. A LUT,
        a product of optimisation, belongs to the block of most cells that it drives.
        """
        if self._blocks is None:
            self._blocks = self._find_blocks()
        path = self._blocks[cell]
        if path == self.prefix:
            return ""
        if self.prefix and not path.startswith(f"{self.prefix}."):
            return None
        return self.below(path)

    def primitive(self, cell: str) -> Primitive | None:
        """Kind of a cell; None for pads, clock buffers and constants."""
        return self._family.primitive(self.cells[cell]["type"])

    def source(self, name: str) -> str | None:
        """The cell of this netlist for a cell of nextpnr; None if there is none."""
        for candidate in (name, name.partition("$")[0], name.rpartition("$")[0],
                          name.partition("/")[0], _PACKED.sub("", name)):
            if candidate in self.cells:
                return candidate
        return None

    def area(self) -> dict[str, Counter[str]]:
        """Number of cells of each type by block."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for name, cell in self.cells.items():
            block = self.block(name)
            if block is not None:
                counts[block][cell["type"]] += 1
        return dict(sorted(counts.items()))

    def wire(self, net: str) -> str | None:
        """The design's wire, with index, for a net of nextpnr; None if there is none."""
        bit = self._bit(net)
        return None if bit is None else self._wire(bit)

    def register(self, cell: str) -> str | None:
        """The wire that a flip-flop drives, or the one behind a LUT; None if there is none."""
        if self.primitive(cell) is not Primitive.REGISTER:
            behind = [name for bit in _bits(self.cells[cell], "output")
                      for name in self._readers.get(bit, ())
                      if self.primitive(name) is Primitive.REGISTER]
            if not behind:
                return None
            cell = behind[0]
        return self._wire(self.cells[cell]["connections"]["Q"][0])

    def below(self, path: str) -> str:
        """A path without the prefix."""
        return path.removeprefix(f"{self.prefix}.") if self.prefix else path

    def _wire(self, bit: Bit) -> str | None:
        name = self._wires.get(bit)
        return None if name is None else self.below(name)

    def _bit(self, net: str) -> Bit | None:
        found = self._nets.get(net)
        if found is not None and len(found["bits"]) == 1:
            return found["bits"][0]
        name = net.rpartition("[")[0]
        found = self._nets.get(name)
        if found is None:
            return None
        places = range(len(found["bits"]))
        return next((found["bits"][place] for place in places
                     if _with_index(name, found, place) == net), None)

    def _name_wires(self) -> dict[Bit, str]:
        """The design's wire for each net: the deepest with a name from the source.

        A value has a name in each module that it passes; the module that computes it is deepest.
        """
        best: dict[Bit, tuple[tuple[bool, int, str], str]] = {}
        for name, net in self._nets.items():
            source = net["attributes"].get("src", "")
            if not _DECLARED.match(source) or "|" in source:
                continue
            is_made = "$" in name or is_derived(name)
            rank = (is_made, -name.count("."), name)
            for place, bit in enumerate(net["bits"]):
                if isinstance(bit, int) and (bit not in best or rank < best[bit][0]):
                    best[bit] = (rank, _with_index(name, net, place))
        return {bit: name for bit, (_, name) in best.items()}

    def _find_blocks(self) -> dict[str, str]:
        blocks = {
            name: self._block_by_source(cell) or self._block_by_name(name)
            for name, cell in self.cells.items()
            if self.primitive(name) not in (Primitive.LUT, Primitive.MUX)}
        driven = {
            name: [reader for bit in _bits(cell, "output")
                   for reader in self._readers.get(bit, ())]
            for name, cell in self.cells.items() if name not in blocks}
        # The cells driven come before the driver; there are no loops without a register.
        for name in TopologicalSorter(driven).static_order():
            if name in driven:
                known = Counter(blocks[each] for each in driven[name])
                blocks[name] = (min(known, key=lambda block: (-known[block], block))
                                if known else self._block_by_name(name))
        return blocks

    def _block_by_source(self, cell: Mapping[str, Any]) -> str | None:
        found = _DECLARED.match(cell["attributes"].get("src", ""))
        if found is None:
            return None
        line = int(found[1])
        return next((scope for first, last, scope in self._by_line if first <= line <= last), None)

    def _block_by_name(self, name: str) -> str:
        """The longest instance path that is a prefix of a name."""
        path = name
        while path and path not in self._scopes:
            path = path.rpartition(".")[0]
        return path


def _module_lines(scopes: Mapping[str, str]) -> list[tuple[int, int, str]]:
    """First line, last line and path of every module with a single instance."""
    paths: dict[tuple[int, int], list[str]] = defaultdict(list)
    for path, source in scopes.items():
        found = _RANGE.match(source)
        if found:
            paths[int(found[1]), int(found[2])].append(path)
    return [(first, last, found[0]) for (first, last), found in sorted(paths.items())
            if len(found) == 1]


def _with_index(name: str, net: Mapping[str, Any], place: int) -> str:
    """The name of a bit of a net, as declared."""
    width = len(net["bits"])
    if width == 1:
        return name
    index = width - 1 - place if net.get("upto") else place
    return f"{name}[{index + net.get('offset', 0)}]"


def _bits(cell: Mapping[str, Any], direction: str) -> Iterator[int]:
    """The nets at the ports of a direction, without constants."""
    for port, bits in cell["connections"].items():
        if cell["port_directions"][port] == direction:
            yield from (bit for bit in bits if isinstance(bit, int))
