"""A row of the array that looks up the sums of three activations in LUT RAM."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.parts.trit_codes import TRIPLE_BITS
from sterna.hw.units.mac.base.params import MacParams
from sterna.hw.units.mac.xc7.tables import Xc7Tables
from sterna.hw.units.mac.xc7.ternary_adder import TernaryAdder
from sterna.hw.units.mac.xc7.tree import PartialSum, add_tree

__all__ = ["Xc7TableRow"]


class Xc7TableRow(wiring.Component):
    """One row of style ``xc7-table``: tables, adders of three operands, accumulator.

    A table holds the sum of each of the 27 combinations of three activations at the address
    that is its code (:mod:`sterna.hw.parts.trit_codes`), negatives in two's complement: there is
    nothing to correct, so a row starts from 0. Every adder ends in a register. The last one
    adds two operands to the accumulator.

    Parameters
    ----------
    params
        Geometry of the array.

    Members
    -------
    advance : ``In(1)``
        Step in this cycle.
    codes : ``In(ArrayLayout(unsigned(5), ceil(cols / 3)))``
        Triples of weights of a beat.
    fill, fill_index, entries : ``In``
        Write an entry, ``signed(entry_bits)``, of every triple's table at an address of
        five bits. Takes effect with the next cycle, whether or not the pipeline advances.
    first, filled : ``In(1)``
        Whether a beat starts a row; whether there is a beat at all. Both of the beat that
        reaches the accumulator, ``params.row_steps`` steps after its codes.
    sum : ``Out(signed(sum_bits))``
        The accumulator.
    """

    def __init__(self, params: MacParams) -> None:
        self.params = params
        super().__init__({
            "advance": In(1),
            "codes": In(ArrayLayout(unsigned(TRIPLE_BITS), params.triples)),
            "fill": In(1),
            "fill_index": In(unsigned(TRIPLE_BITS)),
            "entries": In(ArrayLayout(signed(params.entry_bits), params.triples)),
            "first": In(1),
            "filled": In(1),
            "sum": Out(signed(params.sum_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, self.advance)

        m.submodules.tables = tables = Xc7Tables(params.triples, params.entry_bits)
        m.d.comb += [getattr(tables, name).eq(getattr(self, name)) for name in (
            "codes", "entries", "fill", "fill_index")]
        partials = [
            PartialSum(steps.register(tables.values[index], f"value{index}"),
                       min(3, params.cols - 3 * index))
            for index in range(params.triples)]

        partials = add_tree(m, steps, partials, 2, self._sum_bits)

        total = Signal(signed(params.sum_bits), reset_less=True)
        m.submodules.accumulate = adder = TernaryAdder(params.sum_bits)
        m.d.comb += [
            port.eq(partial.value)
            for port, partial in zip((adder.a, adder.b), partials, strict=False)]
        m.d.comb += [adder.c.eq(total), adder.clear.eq(self.first), self.sum.eq(total)]
        with m.If(self.advance & self.filled):
            m.d.sync += total.eq(adder.total)
        return m

    def _sum_bits(self, columns: int) -> int:
        """Signed width of a sum of so many products, each in [-2**(b-1), 2**(b-1)]."""
        return (columns << (self.params.act_bits - 1)).bit_length() + 1
