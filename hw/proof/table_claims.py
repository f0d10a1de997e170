"""The claims about rows that look sums up: what fills the tables, and what is read."""

from __future__ import annotations

import numpy as np
from amaranth.hdl import Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.proof.row_bench import (
    Fault,
    accumulate,
    beat_inputs,
    connect_row,
    encode,
    in_order,
    lacking,
    legal_trits,
)
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.ecp5_rows import Ecp5Tables
from sterna.hw.units.mac.mac_array import FILLERS
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_codes import TRIPLE_BITS, TRIPLES, unpack_triples
from sterna.hw.units.mac.xc7_rows import Xc7Tables

__all__ = ["TRANSPARENT_RAM", "FilledAddresses", "FilledEntries", "KeptEntries", "TableRow"]

_SIGN = 1 << (TRIPLE_BITS - 1)
_TABLES = {ArrayStyle.ECP5_TABLE: Ecp5Tables, ArrayStyle.XC7_TABLE: Xc7Tables}

TRANSPARENT_RAM = """
module RAM32M (
    input WCLK, input WE,
    input [4:0] ADDRA, input [4:0] ADDRB, input [4:0] ADDRC, input [4:0] ADDRD,
    input [1:0] DIA, input [1:0] DIB, input [1:0] DIC, input [1:0] DID,
    output [1:0] DOA, output [1:0] DOB, output [1:0] DOC, output [1:0] DOD
);
  assign {DOA, DOB, DOC, DOD} = {DIA, DIB, DIC, DID};
endmodule
module TRELLIS_DPR16X4 (
    input [3:0] DI, input [3:0] WAD, input WRE, input WCK, input [3:0] RAD, output [3:0] DO
);
  assign DO = DI;
endmodule
"""
"""LUT RAM that gives at once what is offered for writing, whatever the addresses.

It stands for all contents at a time: what the RAM itself keeps is a claim of its own.
"""


def _value(params: MacParams, entry: Value) -> Value:
    """Return an entry as a number: it may be in offset binary."""
    return entry if params.entry_shape.signed else entry - (1 << (params.entry_bits - 1))


def _added(total: Value, weight: Value, act: Value) -> Value:
    """Return ``total + weight * act`` of a weight of -1, 0 or 1."""
    return Mux(weight == -1, total - act, Mux(weight == 1, total + act, total))


class _Filling:
    """A filler that loads the activations of the first cycle, and when it has done so."""

    def __init__(self, m: Module, params: MacParams, acts: Value) -> None:
        self.acts = Signal(
            ArrayLayout(signed(params.act_bits), params.cols), name="kept", reset_less=True)
        self.begun, self.ended = Signal(name="begun"), Signal(name="ended")
        m.submodules.filler = self.filler = FILLERS[params.style](params)
        m.d.sync += self.begun.eq(1)
        with m.If(~self.begun):
            m.d.sync += self.acts.eq(acts)
        with m.If(self.filler.done):
            m.d.sync += self.ended.eq(1)
        m.d.comb += [
            self.filler.request.eq(self.begun & ~self.ended), self.filler.acts.eq(self.acts)]


class FilledEntries(wiring.Component):
    """``holds`` while what the filler writes is right.

    That is the sum of the combination of activations whose code, as the packer makes it, is
    the address written to.

    Parameters
    ----------
    params
        Geometry and style of the array.
    fault
        What to plant. The code is planted in the claim.
    """

    def __init__(self, params: MacParams, fault: Fault = Fault.NONE) -> None:
        self.params = params
        self.fault = fault
        super().__init__({
            "acts": In(ArrayLayout(signed(params.act_bits), params.cols)),
            "holds": Out(1)})

    def elaborate(self, platform):
        m = Module()
        params = self.params
        filling = _Filling(m, params, self.acts)
        filler, acts = filling.filler, filling.acts

        weights = [Signal(signed(2), name=f"weight{place}") for place in range(3)]
        with m.Switch(filler.fill_index):
            for code in _codes(params.style):
                (trits,) = unpack_triples(np.array([[code]], dtype=np.uint8), 3).tolist()
                if self.fault is Fault.CODE and code & ~_SIGN == 1:
                    trits = [-trit for trit in trits]
                with m.Case(code):
                    m.d.comb += [weight.eq(trit) for weight, trit in zip(
                        weights, trits, strict=True)]
        right = []
        for triple in range(params.triples):
            due: Value = Const(0, 1)
            for column in range(min(3 * triple + 3, params.cols) - 1, 3 * triple - 1, -1):
                due = _added(due, weights[column % 3], acts[column])
            right.append(_value(params, filler.entries[triple]) == due)
        m.d.comb += self.holds.eq(~filler.fill | (sum(right) == params.triples))
        return m


class FilledAddresses(wiring.Component):
    """``holds`` unless the filler ends before it has written where a code can point.

    Parameters
    ----------
    params
        Geometry and style of the array.
    fault
        What to plant: a code that no packer makes.
    """

    def __init__(self, params: MacParams, fault: Fault = Fault.NONE) -> None:
        self.params = params
        self.fault = fault
        super().__init__({"watched": In(params.index_bits), "holds": Out(1)})

    @staticmethod
    def clocks(params: MacParams) -> int:
        """Return the clocks from reset until the tables are filled."""
        return params.fill_steps + 3

    def elaborate(self, platform):
        m = Module()
        filling = _Filling(m, self.params, Const(0))
        filler = filling.filler
        watched, seen = Signal.like(self.watched, reset_less=True), Signal()
        with m.If(~filling.begun):
            m.d.sync += watched.eq(self.watched)
        with m.If(filler.fill & (filler.fill_index == watched)):
            m.d.sync += seen.eq(1)
        codes = _codes(self.params.style) + [14] * (self.fault is Fault.CODE)
        m.d.comb += self.holds.eq(~filling.ended | seen | ~watched.matches(*codes))
        return m


def _codes(style: ArrayStyle) -> list[int]:
    """Return the addresses that codes point to: an index, or a code with its sign."""
    codes = range(len(TRIPLES))
    if style is ArrayStyle.ECP5_TABLE:
        return list(codes)
    return [*codes, *(_SIGN | code for code in codes[1:])]


class KeptEntries(wiring.Component):
    """``holds`` while a row's tables give at a code what was last written there.

    The codes of the first cycle stay; anything is written, at any address and time. As
    nothing tells the codes apart, that is so for every one.

    Parameters
    ----------
    params
        Geometry and style of the array.
    fault
        What to plant. The code is planted in the claim: its lowest bit is wrong.
    """

    def __init__(self, params: MacParams, fault: Fault = Fault.NONE) -> None:
        self.params = params
        self.fault = fault
        super().__init__({
            "codes": In(ArrayLayout(params.index_bits, params.triples)),
            "fill": In(1),
            "fill_index": In(params.index_bits),
            "entries": In(ArrayLayout(params.entry_shape, params.triples)),
            "holds": Out(1)})

    def elaborate(self, platform):
        m = Module()
        params = self.params
        m.submodules.tables = tables = _TABLES[params.style](params.triples, params.entry_bits)
        m.d.comb += [
            Value.cast(getattr(tables, name)).eq(Value.cast(getattr(self, name)))
            for name in ("fill", "fill_index", "entries")]
        codes, begun = Signal.like(self.codes, reset_less=True), Signal()
        m.d.sync += begun.eq(1)
        with m.If(~begun):
            m.d.sync += codes.eq(self.codes)
        read_at = tables.indices if params.style is ArrayStyle.ECP5_TABLE else tables.codes
        m.d.comb += read_at.eq(codes)

        right = []
        for triple in range(params.triples):
            code = codes[triple] ^ (self.fault is Fault.CODE)
            written = Signal(name=f"written{triple}")
            entry = Signal(params.entry_shape, name=f"entry{triple}", reset_less=True)
            with m.If(begun & self.fill & (self.fill_index == code)):
                m.d.sync += [written.eq(1), entry.eq(self.entries[triple])]
            right.append(~written | (tables.values[triple] == entry))
        m.d.comb += self.holds.eq(sum(right) == params.triples)
        return m


class TableRow(wiring.Component):
    """``holds`` while a row's sum is the start value plus what its tables give, with signs.

    To be read with :data:`TRANSPARENT_RAM`: the tables then give whatever ``entries`` is,
    at any code. One step by induction, as for rows without tables.

    Parameters
    ----------
    params
        Geometry and style of the row.
    fault
        What to plant in the row.
    """

    extra_models = TRANSPARENT_RAM

    def __init__(self, params: MacParams, fault: Fault = Fault.NONE) -> None:
        self.params = params
        self.fault = fault
        super().__init__({
            **beat_inputs(params),
            "trits": In(ArrayLayout(2, 3 * params.triples)),
            "entries": In(ArrayLayout(params.entry_shape, params.triples)),
            "holds": Out(1)})

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1, 1))
        trits = legal_trits(m, self.trits)
        beat = {"first": self.first, "filled": self.filled, "start": self.start}
        row = connect_row(m, "row", params, trits, (), beat, steps, self.fault)
        m.d.comb += Value.cast(row.entries).eq(Value.cast(self.entries))

        # A complement is one less than the negative: -v is ~v + 1.
        codes = encode(m, ArrayStyle.XC7_TABLE, trits, Fault.NONE)
        values, negatives = [], Const(0, 1)
        for triple in range(params.triples):
            value = _value(params, self.entries[triple])
            if params.style is ArrayStyle.ECP5_TABLE:
                negative = codes[TRIPLE_BITS * triple + TRIPLE_BITS - 1]
                value, negatives = Mux(negative, ~value, value), negatives + negative
            values.append(value)
        added = Signal(signed(params.sum_bits))
        m.d.comb += added.eq(in_order(params.style, values)
                             + (negatives - lacking(m, params.style, trits)))
        m.d.comb += self.holds.eq(row.sum == accumulate(m, params, added, beat, steps))
        return m
