"""The claims about rows without tables: equal to the definition, equal to each other."""

from __future__ import annotations

from dataclasses import replace

from amaranth.hdl import Const, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.proof.row_bench import (
    Fault,
    accumulate,
    beat_inputs,
    connect_row,
    definition,
    legal_trits,
)
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams

__all__ = ["EqualRows", "ExactRow"]


class ExactRow(wiring.Component):
    """``holds`` while a row's sum is the start value plus ``w * x`` less the -1 weights.

    One step by induction: whatever the registers hold, if the sum was right before a beat,
    or the beat is the first, it is right after it. With the number of -1 weights as start
    value the sum after the last beat is that of ``w * x``.

    Parameters
    ----------
    params
        Geometry and style of the row.
    fault
        What to plant.
    """

    def __init__(self, params: MacParams, fault: Fault = Fault.NONE) -> None:
        self.params = params
        self.fault = fault
        super().__init__({**beat_inputs(params), "holds": Out(1)})

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1, 1))
        trits = legal_trits(m, self.trits)
        beat = {"first": self.first, "filled": self.filled, "start": self.start}
        row = connect_row(m, "row", params, trits, self.acts, beat, steps, self.fault)

        added = Signal(signed(params.sum_bits))
        m.d.comb += added.eq(definition(params, trits, self.acts))
        m.d.comb += self.holds.eq(row.sum == accumulate(m, params, added, beat, steps))
        return m


class EqualRows(wiring.Component):
    """``holds`` while a row and one of style ``generic`` have the same sum.

    The later one is compared with the other's of as many steps before.

    Parameters
    ----------
    params
        Geometry and style of the row.
    fault
        What to plant in the row.
    """

    def __init__(self, params: MacParams, fault: Fault = Fault.NONE) -> None:
        self.params = params
        self.generic = replace(params, style=ArrayStyle.GENERIC)
        self.fault = fault
        super().__init__({**beat_inputs(params), "holds": Out(1)})

    def elaborate(self, platform):
        m = Module()
        steps = Pipeline(m, Const(1, 1))
        trits = legal_trits(m, self.trits)
        beat = {"first": self.first, "filled": self.filled, "start": self.start}
        late = max(self.params.row_steps, self.generic.row_steps)
        totals = []
        for name, params, fault in (
                ("row", self.params, self.fault), ("generic", self.generic, Fault.NONE)):
            row = connect_row(m, name, params, trits, self.acts, beat, steps, fault)
            totals.append(steps.delay(row.sum, late - params.row_steps, f"{name}_total"))
        m.d.comb += self.holds.eq(totals[0] == totals[1])
        return m
