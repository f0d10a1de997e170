"""The claims about the rows of the array, as designs with an output ``holds``.

A row equals the definition and the generic row. The accumulator never overflows at the derived
width.
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
from sterna.hw.units.mac.array_row import Accumulator
from sterna.hw.units.mac.array_style import CHAIN_COLUMNS, ArrayStyle
from sterna.hw.units.mac.mac_array import ROWS
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_packing import CODES, row_codes


class Fault(enum.StrEnum):
    """Faults to plant, to check that a proof notices them."""

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
        """The free inputs: one arbitrary beat in every cycle."""
        return {
            "trits": In(ArrayLayout(unsigned(2), params.cols)),
            "acts": In(ArrayLayout(signed(params.act_bits), params.cols)),
            "start": In(params.count_bits), "first": In(1), "filled": In(1)}

    def beat(self, m: Module) -> tuple[Pipeline, list[Signal], dict[str, Value]]:
        """A pipeline that never stalls, the weights, and a row's other inputs from a beat."""
        return Pipeline(m, Const(1, 1)), legal_trits(m, self.trits), {
            "first": self.first, "filled": self.filled, "start": self.start}


def legal_trits(m: Module, raw: Sequence[Value]) -> list[Signal]:
    """Return the weights, signed, with illegal ones replaced by 0."""
    trits = [Signal(signed(2), name=f"trit{column}") for column in range(len(raw))]
    for trit, value in zip(trits, raw, strict=True):
        m.d.comb += trit.eq(Mux(value == 2, 0, value))
    return trits


def encode(m: Module, style: ArrayStyle, trits: Sequence[Signal], fault: Fault) -> Value:
    """Return the weights of a beat as the packer of a style stores them.

    The codes come from the packer, for each combination. With ``Fault.CODE`` the first weights
    have the code of their negatives in place of that of (-1, 0, ...).
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
                    m.d.comb += code.eq(int(row_codes(stored, style).item()))
        codes.append(code)
    return Cat(codes)


def definition(params: MacParams, trits: Sequence[Value], acts: Sequence[Value]) -> Value:
    """Return the sum of ``w * x`` minus the number of -1 weights; written with ``*``."""
    return in_order(params.style, [
        trit * act - trit[1] for trit, act in zip(trits, acts, strict=True)])


def in_order(style: ArrayStyle, values: Sequence[Value]) -> Value:
    """Return the sum of the values of columns, added in the order of a row.

    The order does not change the result, but makes the proof easiest.
    """
    match style:
        case ArrayStyle.ECP5_CHAIN:
            return _balanced(_in_groups(values, CHAIN_COLUMNS), 2)
        case ArrayStyle.XC7_PAIR:
            return _balanced(_in_groups(values, 2), 3)
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
    """Add a row that always advances, with its weights and accumulator inputs.

    ``beat`` has ``first``, ``filled`` and ``start``. The row's sum is that of a beat
    ``row_steps + 1`` steps later.
    """
    row = ROWS[params.style](params)
    m.submodules[name] = row
    late = params.row_steps
    m.d.comb += [
        row.advance.eq(1),
        Value.cast(row.weights).eq(encode(m, params.style, trits, fault)),
        row.first.eq(steps.delay(beat["first"], late, f"{name}_first")),
        row.filled.eq(steps.delay(beat["filled"], late, f"{name}_filled")),
    ]
    m.d.comb += row.minus_count.eq(steps.delay(beat["start"], late, f"{name}_start"))
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
    """The array delays the activations of a chain by one step per column."""
    return column % CHAIN_COLUMNS if style is ArrayStyle.ECP5_CHAIN else 0


class ExactRow(Claimed):
    """``holds`` while a row's sum is the start value plus ``w * x`` minus the number of -1 weights.

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

    The later one is compared with the delayed sum of the other.
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


class OneBitLess(MacParams):
    """An array whose accumulators are a bit too narrow."""

    __slots__ = ()

    @property
    def sum_bits(self) -> int:
        """One bit less than necessary."""
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
