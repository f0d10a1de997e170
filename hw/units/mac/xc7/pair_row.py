"""A row of the array in LUT6_2 and CARRY4 cells, two weights in each LUT."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.base.row import ArrayRow
from sterna.hw.units.mac.xc7.pair_adder import PairAdder
from sterna.hw.units.mac.xc7.tree import PartialSum, add_tree

__all__ = ["Xc7PairRow"]


class Xc7PairRow(ArrayRow):
    """One row of style ``xc7-pair``: pair adders, adders of three operands, accumulator.

    Every adder ends in a register. A ``-x`` is added as its one's complement; the missing
    +1s are the number of -1 weights of the row, from which the accumulator starts.

    Weights come in pairs, see :mod:`sterna.hw.units.mac.base.pair_codes`; the start value is
    the number of -1 weights in the row. Parameters and members are those of
    :class:`~sterna.hw.units.mac.base.row.ArrayRow`.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, self.advance)

        partials = []
        for index in range(len(self.weights)):
            m.submodules[f"pair{index}"] = pair = PairAdder(params.act_bits)
            m.d.comb += [pair.code.eq(self.weights[index]), pair.x0.eq(self.acts[2 * index])]
            columns = min(2, params.cols - 2 * index)
            if columns == 2:
                m.d.comb += pair.x1.eq(self.acts[2 * index + 1])
            partials.append(PartialSum(steps.register(pair.total, f"pair{index}_sum"), columns))

        (operand,) = add_tree(m, steps, partials, 1, params.operand_bits)

        # One LUT for each bit: the choice is part of the adder's.
        total = Signal(signed(params.sum_bits), reset_less=True)
        before = Mux(self.first, self.start, total)
        with m.If(self.advance & self.filled):
            m.d.sync += total.eq((before + operand.value)[:params.sum_bits])
        m.d.comb += self.sum.eq(total)
        return m
