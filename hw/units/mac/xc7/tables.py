"""The tables of style ``xc7-table`` in LUT RAM."""

from __future__ import annotations

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.trit_codes import TRIPLE_BITS

__all__ = ["Xc7Tables"]

_READ_PORTS = "ABC"
"""Ports of a RAM32M with an address of their own. Port D's is where all four are written."""


class Xc7Tables(wiring.Component):
    """A table of 32 entries for each triple of activations; read at once, written on a clock.

    A RAM32M (four LUTs) is written at one address and read at three others, two bits each.
    All tables are written alike, so ports of several tables share a RAM32M: 20 LUTs hold
    three tables of 10 bits.

    Parameters
    ----------
    triples
        Number of tables.
    entry_bits
        Bits of a signed entry.

    Members
    -------
    codes : ``In(ArrayLayout(unsigned(5), triples))``
        Address at which each table is read.
    entries : ``In(ArrayLayout(signed(entry_bits), triples))``
        An entry for each table.
    fill, fill_index : ``In(1)``, ``In(unsigned(5))``
        Whether to write the entries, and their address.
    values : ``Out(ArrayLayout(signed(entry_bits), triples))``
        The entry that each table holds at its code.
    """

    def __init__(self, triples: int, entry_bits: int) -> None:
        self.triples = triples
        self.entry_bits = entry_bits
        entries = ArrayLayout(signed(entry_bits), triples)
        super().__init__({
            "codes": In(ArrayLayout(unsigned(TRIPLE_BITS), triples)),
            "entries": In(entries),
            "fill": In(1),
            "fill_index": In(unsigned(TRIPLE_BITS)),
            "values": Out(entries),
        })

    def elaborate(self, platform):
        m = Module()

        # Two bits of an entry for each port.
        values = [[] for _ in range(self.triples)]
        ports = [(triple, low) for triple in range(self.triples)
                 for low in range(0, self.entry_bits, 2)]
        for index in range(0, len(ports), len(_READ_PORTS)):
            connections = {
                "i_WCLK": ClockSignal(), "i_WE": self.fill,
                "i_ADDRD": self.fill_index, "i_DID": Const(0, 2)}
            for letter, (triple, low) in zip(_READ_PORTS, ports[index:], strict=False):
                read = Signal(2, name=f"read{triple}_{low}")
                high = min(low + 2, self.entry_bits)
                entry = self.entries[triple][low:high]
                connections |= {
                    f"i_ADDR{letter}": self.codes[triple],
                    f"i_DI{letter}": Cat(entry, Const(0, low + 2 - high)),
                    f"o_DO{letter}": read}
                values[triple].append(read[:high - low])
            m.submodules[f"ram{index // len(_READ_PORTS)}"] = Instance(
                "RAM32M", **_unused(connections))
        m.d.comb += [self.values[triple].eq(Cat(bits)) for triple, bits in enumerate(values)]
        return m


def _unused(connections: dict) -> dict:
    """Tie the inputs of ports that are left over to 0, and their outputs to nothing."""
    ties: dict = {f"i_{pin}{letter}": Const(0, width)
                  for letter in _READ_PORTS for pin, width in (("ADDR", TRIPLE_BITS), ("DI", 2))}
    ties |= {f"o_DO{letter}": Signal(2, name=f"unused{letter}") for letter in f"{_READ_PORTS}D"}
    return ties | connections
