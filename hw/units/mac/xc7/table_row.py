"""A row of the array that looks up the sums of three activations in LUT RAM."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.base.row import ArrayRow
from sterna.hw.units.mac.xc7.tables import Xc7Tables
from sterna.hw.units.mac.xc7.ternary_adder import TernaryAdder
from sterna.hw.units.mac.xc7.tree import PartialSum, add_tree

__all__ = ["Xc7TableRow"]


class Xc7TableRow(ArrayRow):
    """One row of style ``xc7-table``: tables, adders of three operands, accumulator.

    A table holds the sum of each of the 27 combinations of three activations at the address
    that is its code (:mod:`sterna.hw.parts.trit_codes`), negatives in two's complement: there is
    nothing to correct, so a row starts from 0. Every adder ends in a register. The last one
    adds two operands to the accumulator.

    Parameters and members are those of :class:`~sterna.hw.units.mac.base.row.ArrayRow`.
    """

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
