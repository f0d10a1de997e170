"""A row of the array that looks up the sums of three activations in ECP5 LUT RAM."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.parts.trit_codes import TRIPLE_BITS
from sterna.hw.units.mac.base.params import MacParams
from sterna.hw.units.mac.ecp5.accumulator import Ecp5Accumulator
from sterna.hw.units.mac.ecp5.ccu2c import CarryChains
from sterna.hw.units.mac.ecp5.tables import Ecp5Tables
from sterna.hw.units.mac.ecp5.tree import add_tree

__all__ = ["Ecp5TableRow"]


class Ecp5TableRow(wiring.Component):
    """One row of style ``ecp5-table``: tables, a tree of adders, the accumulator.

    The sign of a triple chooses in the adder that takes it as second operand whether it, and
    what was added to it before, is complemented. So it is relative to the sign of the first
    operand (:func:`sterna.hw.parts.trit_codes.to_relative`); only the first triple of all has
    gates for its own. The complements lack a number of +1s that depends on the weights only,
    from which the row starts. Every adder ends in a register.

    Parameters
    ----------
    params
        Geometry of the array.

    Members
    -------
    advance : ``In(1)``
        Step in this cycle.
    codes : ``In(ArrayLayout(unsigned(5), triples))``
        Triples of weights of a beat, signs relative.
    fill, fill_index, entries : ``In``
        Write an entry of every triple's table at an index of four bits. An entry is in
        offset binary, as the adders take it: ``unsigned(act_bits + 2)``. Takes effect with
        the next cycle, whether or not the pipeline advances.
    first, filled : ``In(1)``
        Whether a beat starts a row; whether there is a beat at all. Both of the beat that
        reaches the accumulator, ``params.row_steps`` steps after its codes.
    start : ``In(signed(start_bits))``
        The start value of the row, with ``first``.
    sum : ``Out(signed(sum_bits))``
        The accumulator.
    """

    def __init__(self, params: MacParams) -> None:
        self.params = params
        super().__init__({
            "advance": In(1),
            "codes": In(ArrayLayout(unsigned(TRIPLE_BITS), params.triples)),
            "fill": In(1),
            "fill_index": In(unsigned(TRIPLE_BITS - 1)),
            "entries": In(ArrayLayout(params.entry_shape, params.triples)),
            "first": In(1),
            "filled": In(1),
            "start": In(params.start_shape),
            "sum": Out(signed(params.sum_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, self.advance)
        chains = CarryChains(m, "carry")

        m.submodules.tables = tables = Ecp5Tables(params.triples, params.entry_bits)
        m.d.comb += [
            tables.entries.eq(self.entries),
            tables.fill.eq(self.fill),
            tables.fill_index.eq(self.fill_index)]
        values, signs = [], []
        for index in range(params.triples):
            code = self.codes[index]
            m.d.comb += tables.indices[index].eq(code[:-1])
            value = Value.cast(tables.values[index])
            if params.triples == 1:     # no adder that would give a signed sum
                value = Cat(value[:-1], ~value[-1])
            if index == 0:
                value ^= code[-1].replicate(params.entry_bits)
            values.append(steps.register(value, f"value{index}"))
            signs.append(steps.register(code[-1], f"sign0_{index}") if index else code[-1])
        operand = (add_tree(steps, chains, values, signs) if params.triples > 1
                   else values[0].as_signed())
        chains.finish()

        m.submodules.accumulator = accumulator = Ecp5Accumulator(
            params.sum_bits, len(operand), params.start_shape)
        m.d.comb += [
            accumulator.advance.eq(self.advance),
            accumulator.filled.eq(self.filled),
            accumulator.first.eq(self.first),
            accumulator.start.eq(self.start),
            accumulator.operand.eq(operand),
            self.sum.eq(accumulator.sum),
        ]
        return m
