"""The claims about the rows of the array, as designs with an output ``holds``.

A row without tables is claimed to equal the definition, and the generic row. Of a row that looks
sums up it is claimed what fills its tables, what they keep, and what is read. Of the accumulator:
at the derived width it never overflows.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Member, Out

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.array_style import CHAIN_COLUMNS, ArrayStyle
from sterna.hw.units.mac.ecp5_rows import Ecp5Tables
from sterna.hw.units.mac.mac_array import FILLERS, ROWS, Accumulator
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_codes import (
    SIGNED_TRIPLES,
    TRIPLE_BITS,
    TRIPLES,
    missing_ones,
    pack,
    to_relative,
    unpack,
)
from sterna.hw.units.mac.weight_packing import CODES
from sterna.hw.units.mac.xc7_rows import Xc7Tables


class Fault(enum.StrEnum):
    """What is planted to see that a proof notices it."""

    NONE = "none"
    CELL = "one bit of a cell's contents"
    CODE = "one code of the packer"
    WIDTH = "one bit less"


class Claimed(wiring.Component):
    """A claim about an array; a fault may be planted in the design or in the claim itself."""

    def __init__(self, params: MacParams, fault: Fault = Fault.NONE) -> None:
        self.params = params
        self.fault = fault
        super().__init__({**self.inputs(params), "holds": Out(1)})

    @staticmethod
    def inputs(params: MacParams) -> dict[str, Member]:
        """The free inputs: one beat in every cycle, of anything."""
        return {
            "trits": In(ArrayLayout(unsigned(2), params.cols)),
            "acts": In(ArrayLayout(signed(params.act_bits), params.cols)),
            "start": In(params.start_shape), "first": In(1), "filled": In(1)}

    def beat(self, m: Module) -> tuple[Pipeline, list[Signal], dict[str, Value]]:
        """A pipeline that never stops, the weights, and what else a row takes of a beat."""
        return Pipeline(m, Const(1, 1)), legal_trits(m, self.trits), {
            "first": self.first, "filled": self.filled, "start": self.start}


def legal_trits(m: Module, raw: Sequence[Value]) -> list[Signal]:
    """Return every weight that is not legal as 0, signed; the legal ones as they are."""
    trits = [Signal(signed(2), name=f"trit{column}") for column in range(len(raw))]
    for trit, value in zip(trits, raw, strict=True):
        m.d.comb += trit.eq(Mux(value == 2, 0, value))
    return trits


def encode(m: Module, style: ArrayStyle, trits: Sequence[Signal], fault: Fault) -> Value:
    """Return the weights of a beat as the packer of a style stores them.

    The codes are the packer's: it is asked for each combination. With ``Fault.CODE`` the
    first weights have the code of their negatives where that of (-1, 0, ...) is due.
    """
    size, width = len(CODES[style][0]), max(CODES[style]).bit_length()
    codes = []
    for low in range(0, len(trits), size):
        group = trits[low:low + size]
        key = Cat(*group, Const(0, 2 * (size - len(group))))
        code = Signal(width, name=f"{style.replace('-', '_')}_code{low}")
        with m.Switch(key):
            for weights in itertools.product((-1, 0, 1), repeat=size):
                stored = np.array([weights])
                if fault is Fault.CODE and low == 0 and weights == (-1,) + (0,) * (size - 1):
                    stored = -stored
                with m.Case(sum((w & 3) << (2 * place) for place, w in enumerate(weights))):
                    m.d.comb += code.eq(int(pack(stored, CODES[style]).item()))
        codes.append(code)
    if style is not ArrayStyle.ECP5_TABLE:
        return Cat(codes)
    # Relative signs: those with which a sign is exclusive-ored are the packer's, too.
    linked = to_relative(np.eye(len(codes), dtype=np.uint8) << (width - 1)) >> (width - 1)
    return Cat(
        Cat(code[:-1], Cat(codes[other][-1] for other in range(len(codes))
                           if linked[other, index]).xor())
        for index, code in enumerate(codes))


def lacking(m: Module, style: ArrayStyle, trits: Sequence[Signal]) -> Value:
    """Return what the complements of a beat lack, as the packer counts it."""
    match style:
        case ArrayStyle.XC7_TABLE:
            return Const(0, 1)
        case ArrayStyle.ECP5_TABLE:
            codes = encode(m, style, trits, Fault.NONE)
            signs = Cat(codes[place] for place in range(TRIPLE_BITS - 1, len(codes), TRIPLE_BITS))
            lacks = Signal(signed(len(signs) + 1), name="lacks")
            with m.Switch(signs):
                for number in range(1 << len(signs)):
                    bits = (number >> np.arange(len(signs))) & 1
                    with m.Case(number):
                        m.d.comb += lacks.eq(int(missing_ones(bits << (TRIPLE_BITS - 1))))
            return lacks
    return sum((trit[1] for trit in trits[1:]), start=trits[0][1])


def definition(params: MacParams, trits: Sequence[Value], acts: Sequence[Value]) -> Value:
    """Return ``w * x`` summed up, less the number of -1 weights; written with ``*``."""
    return in_order(params.style, [
        trit * act - trit[1] for trit, act in zip(trits, acts, strict=True)])


def in_order(style: ArrayStyle, values: Sequence[Value]) -> Value:
    """Return the sum of the values, of columns or of triples, added in the order of a row.

    The order does not change the result, but the solver then has the shortest way.
    """
    match style:
        case ArrayStyle.ECP5_CHAIN:
            return _balanced(_in_groups(values, CHAIN_COLUMNS), 2)
        case ArrayStyle.XC7_PAIR:
            return _balanced(_in_groups(values, 2), 3)
        case ArrayStyle.XC7_TABLE:
            return _balanced(values, 3)
    return _balanced(values, 2)


def _in_groups(values: Sequence[Value], size: int) -> list[Value]:
    """Return the sums of every ``size`` neighbours."""
    return [sum(values[low + 1:low + size], start=values[low])
            for low in range(0, len(values), size)]


def _balanced(values: Sequence[Value], size: int) -> Value:
    """Return the sum by a tree that adds ``size`` neighbours at a time."""
    level = list(values)
    while len(level) > 1:
        level = _in_groups(level, size)
    return level[0]


def connect_row(
    m: Module, name: str, params: MacParams, trits: Sequence[Signal], acts: Sequence[Value],
    beat: dict[str, Value], steps: Pipeline, fault: Fault,
):
    """Add a row that always advances, with its weights and what its accumulator takes.

    ``beat`` has ``first``, ``filled`` and ``start``. The row's sum is that of a beat
    ``row_steps + 1`` steps later. Tables are left to the caller.
    """
    row = ROWS[params.style](params)
    m.submodules[name] = row
    late = params.row_steps
    m.d.comb += [
        row.advance.eq(1),
        Value.cast(getattr(row, params.weight_name)).eq(encode(m, params.style, trits, fault)),
        row.first.eq(steps.delay(beat["first"], late, f"{name}_first")),
        row.filled.eq(steps.delay(beat["filled"], late, f"{name}_filled")),
    ]
    if params.start_name:
        start = Signal(params.start_shape, name=f"{name}_start")
        port = getattr(row, row.start_port)
        m.d.comb += [
            start.eq(beat["start"]), port.eq(steps.delay(start, late, f"{name}_late_start"))]
    if not params.style.has_tables:
        m.d.comb += [
            row.acts[column].eq(steps.delay(
                acts[column], _act_steps(params.style, column), f"{name}_act{column}"))
            for column in range(params.cols)]
    return row


def accumulate(
    m: Module, params: MacParams, added: Value, beat: dict[str, Value], steps: Pipeline,
) -> Signal:
    """Return what the sum of :func:`connect_row` must be: each beat adds ``added`` to it."""
    exact = Signal(signed(params.sum_bits), reset_less=True)
    late_added, first, filled, start = (
        steps.delay(value, params.row_steps, name)
        for name, value in (("added", added), *beat.items()))
    with m.If(filled):
        m.d.sync += exact.eq(Mux(first, start, exact) + late_added)
    return exact


def _act_steps(style: ArrayStyle, column: int) -> int:
    """The array delays the activations of a chain by a step for each column."""
    return column % CHAIN_COLUMNS if style is ArrayStyle.ECP5_CHAIN else 0


class ExactRow(Claimed):
    """``holds`` while a row's sum is the start value plus ``w * x`` less the -1 weights.

    One step by induction: whatever the registers hold, if the sum was right before a beat,
    or the beat is the first, it is right after it. With the number of -1 weights as start
    value the sum after the last beat is that of ``w * x``.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps, trits, beat = self.beat(m)
        row = connect_row(m, "row", params, trits, self.acts, beat, steps, self.fault)

        added = Signal(signed(params.sum_bits))
        m.d.comb += added.eq(definition(params, trits, self.acts))
        m.d.comb += self.holds.eq(row.sum == accumulate(m, params, added, beat, steps))
        return m


class EqualRows(Claimed):
    """``holds`` while a row and one of style ``generic`` have the same sum.

    The later one is compared with the other's of as many steps before.
    """

    def elaborate(self, platform):
        m = Module()
        steps, trits, beat = self.beat(m)
        generic = replace(self.params, style=ArrayStyle.GENERIC)
        late = max(self.params.row_steps, generic.row_steps)
        totals = []
        for name, params, fault in (
                ("row", self.params, self.fault), ("generic", generic, Fault.NONE)):
            row = connect_row(m, name, params, trits, self.acts, beat, steps, fault)
            totals.append(steps.delay(row.sum, late - params.row_steps, f"{name}_total"))
        m.d.comb += self.holds.eq(totals[0] == totals[1])
        return m


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


class FilledEntries(Claimed):
    """``holds`` while what the filler writes is right.

    That is the sum of the combination of activations whose code, as the packer makes it, is
    the address written to. The fault of a code is planted in the claim.
    """

    @staticmethod
    def inputs(params: MacParams) -> dict[str, Member]:
        return {"acts": In(ArrayLayout(signed(params.act_bits), params.cols))}

    def elaborate(self, platform):
        m = Module()
        params = self.params
        filling = _Filling(m, params, self.acts)
        filler, acts = filling.filler, filling.acts

        weights = [Signal(signed(2), name=f"weight{place}") for place in range(3)]
        with m.Switch(filler.fill_index):
            for code in _codes(params.style):
                (trits,) = unpack(np.array([[code]]), 3, SIGNED_TRIPLES).tolist()
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


class FilledAddresses(Claimed):
    """``holds`` unless the filler ends before it has written where a code can point."""

    @staticmethod
    def inputs(params: MacParams) -> dict[str, Member]:
        return {"watched": In(params.index_bits)}

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


class KeptEntries(Claimed):
    """``holds`` while a row's tables give at a code what was last written there.

    The codes of the first cycle stay; anything is written, at any address and time. As
    nothing tells the codes apart, that is so for every one. The fault is planted in the claim: the
    lowest bit of each code is wrong.
    """

    @staticmethod
    def inputs(params: MacParams) -> dict[str, Member]:
        return {"codes": In(ArrayLayout(params.index_bits, params.triples)),
                "fill": In(1), "fill_index": In(params.index_bits),
                "entries": In(ArrayLayout(params.entry_shape, params.triples))}

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


class TableRow(Claimed):
    """``holds`` while a row's sum is the start value plus what its tables give, with signs.

    To be read with :data:`TRANSPARENT_RAM`: the tables then give whatever ``entries`` is,
    at any code. One step by induction, as for rows without tables.
    """

    extra_models = TRANSPARENT_RAM

    @staticmethod
    def inputs(params: MacParams) -> dict[str, Member]:
        return {**Claimed.inputs(params), "trits": In(ArrayLayout(2, 3 * params.triples)),
                "entries": In(ArrayLayout(params.entry_shape, params.triples))}

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps, trits, beat = self.beat(m)
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


class OneBitLess(MacParams):
    """An array whose accumulators are a bit too narrow."""

    __slots__ = ()

    @property
    def sum_bits(self) -> int:
        """One bit less than it takes."""
        return MacParams.sum_bits.fget(self) - 1


class _OneBitMore(MacParams):
    __slots__ = ()

    @property
    def sum_bits(self) -> int:
        return MacParams.sum_bits.fget(self) + 1


class NoOverflow(Claimed):
    """``holds`` while an accumulator and a wider copy on the same inputs are equal.

    The environment may do anything within the contract: a start value of at most
    ``max_columns``, at most ``max_columns`` columns in a row (``columns`` is how many of a
    beat hold weights), and an operand within the range of that many one's complements.
    """

    @staticmethod
    def inputs(params: MacParams) -> dict[str, Member]:
        return {"advance": In(1), "filled": In(1), "first": In(1),
                "minus_count": In(unsigned(params.count_bits)),
                "columns": In(range(params.cols + 1)),
                "operand": In(signed(params.operand_bits(params.cols)))}

    def elaborate(self, platform):
        m = Module()
        params = self.params
        lowest = -1 << (params.act_bits - 1)
        m.submodules.exact = exact = Accumulator(params)
        m.submodules.wide = wide = Accumulator(_OneBitMore(
            params.rows, params.cols, params.max_columns, params.act_bits))
        for copy in (exact, wide):
            m.d.comb += [getattr(copy, name).eq(getattr(self, name)) for name in (
                "advance", "filled", "first", "minus_count", "operand")]

        used = Signal(range(params.max_columns + params.cols + 1), reset_less=True)
        started = Signal(reset_less=True)
        lawful = Signal(init=1, reset_less=True)
        used_then = Signal.like(used)
        m.d.comb += used_then.eq(self.columns)
        with m.If(~self.first):
            m.d.comb += used_then.eq(used + self.columns)
        allowed = (
            (started | self.first)
            & (self.minus_count <= params.max_columns)
            & (self.columns <= params.cols) & (used_then <= params.max_columns)
            & (self.operand >= lowest * self.columns)
            & (self.operand <= ~lowest * self.columns))
        with m.If(self.advance & self.filled):
            m.d.sync += [used.eq(used_then), started.eq(1), lawful.eq(lawful & allowed)]

        # The bounds make the claim inductive; they are the argument of MacParams.sum_bits.
        bounded = ((wide.sum >= lowest * used) & (used <= params.max_columns)
                   & (wide.sum <= params.max_columns + ~lowest * used))
        m.d.comb += self.holds.eq(
            ~lawful | ((exact.sum == wide.sum) & (~started | bounded)))
        return m
