"""The tables of style ``ecp5-table`` in LUT RAM."""

from __future__ import annotations

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Signal, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

__all__ = ["Ecp5Tables"]

_RAM_BITS = 4
"""Bits of a word of a TRELLIS_DPR16X4, which holds 16 of them."""


class Ecp5Tables(wiring.Component):
    """A table of 16 entries for each triple of activations; read at once, written on a clock.

    Parameters
    ----------
    triples
        Number of tables.
    entry_bits
        Bits of an entry.

    Members
    -------
    indices : ``In(ArrayLayout(unsigned(4), triples))``
        Address at which each table is read.
    entries : ``In(ArrayLayout(unsigned(entry_bits), triples))``
        An entry for each table.
    fill, fill_index : ``In(1)``, ``In(unsigned(4))``
        Whether to write the entries, and their address.
    values : ``Out(ArrayLayout(unsigned(entry_bits), triples))``
        What each table holds at its index.
    """

    def __init__(self, triples: int, entry_bits: int) -> None:
        self.triples = triples
        self.entry_bits = entry_bits
        super().__init__({
            "indices": In(ArrayLayout(unsigned(4), triples)),
            "entries": In(ArrayLayout(unsigned(entry_bits), triples)),
            "fill": In(1),
            "fill_index": In(unsigned(4)),
            "values": Out(ArrayLayout(unsigned(entry_bits), triples)),
        })

    def elaborate(self, platform):
        m = Module()
        for triple in range(self.triples):
            entry, value = Value.cast(self.entries[triple]), Value.cast(self.values[triple])
            for low in range(0, self.entry_bits, _RAM_BITS):
                high = min(low + _RAM_BITS, self.entry_bits)
                read = Signal(_RAM_BITS, name=f"read{triple}_{low}")
                m.submodules[f"ram{triple}_{low}"] = Instance(
                    "TRELLIS_DPR16X4",
                    i_WCK=ClockSignal(), i_WRE=self.fill, i_WAD=self.fill_index,
                    i_DI=Cat(entry[low:high], Const(0, low + _RAM_BITS - high)),
                    i_RAD=self.indices[triple], o_DO=read)
                m.d.comb += value[low:high].eq(read)
        return m
