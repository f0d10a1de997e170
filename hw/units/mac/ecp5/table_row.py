"""A row of the array that looks up the sums of three activations in ECP5 LUT RAM."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Value

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.base.row import ArrayRow
from sterna.hw.units.mac.ecp5.accumulator import Ecp5Accumulator
from sterna.hw.units.mac.ecp5.ccu2c import CarryChains
from sterna.hw.units.mac.ecp5.tables import Ecp5Tables
from sterna.hw.units.mac.ecp5.tree import add_tree

__all__ = ["Ecp5TableRow"]


class Ecp5TableRow(ArrayRow):
    """One row of style ``ecp5-table``: tables, a tree of adders, the accumulator.

    The sign of a triple chooses in the adder that takes it as second operand whether it, and
    what was added to it before, is complemented. So it is relative to the sign of the first
    operand (:func:`sterna.hw.parts.trit_codes.to_relative`); only the first triple of all has
    gates for its own. The complements lack a number of +1s that depends on the weights only,
    from which the row starts. Every adder ends in a register.

    Signs of ``codes`` are relative; ``entries`` are in offset binary, as the adders take them.
    Parameters and members are those of :class:`~sterna.hw.units.mac.base.row.ArrayRow`.
    """

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

        accumulator = Ecp5Accumulator(params.sum_bits, len(operand), params.start_shape)
        self.accumulate(m, accumulator, operand)
        return m
