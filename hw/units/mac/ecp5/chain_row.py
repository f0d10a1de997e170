"""A row of the array in ECP5 carry cells that select, negate and add."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Value

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.base.row import ArrayRow
from sterna.hw.units.mac.base.steps import CHAIN_COLUMNS
from sterna.hw.units.mac.ecp5.accumulator import Ecp5Accumulator
from sterna.hw.units.mac.ecp5.ccu2c import SELECT, CarryChains, Half
from sterna.hw.units.mac.ecp5.tree import add_tree

__all__ = ["Ecp5ChainRow"]


class Ecp5ChainRow(ArrayRow):
    """One row of style ``ecp5-chain``: chains of four columns, a tree, the accumulator.

    Every adder ends in a register, so a column of a chain is added one step after the one
    before it. A ``-x`` is added as its one's complement; the missing +1s are the number of
    -1 weights of the row, from which the accumulator starts.

    The activation of column i comes ``i % 4`` steps after the weights of its beat; the start
    value is the number of -1 weights in the row. Parameters and members are those of
    :class:`~sterna.hw.units.mac.base.row.ArrayRow`.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, self.advance)
        chains = CarryChains(m, "carry")

        sums = [
            self._chain(steps, chains, low, min(CHAIN_COLUMNS, params.cols - low))
            for low in range(0, params.cols, CHAIN_COLUMNS)]
        operand = add_tree(steps, chains, sums) if len(sums) > 1 else sums[0].as_signed()
        chains.finish()

        accumulator = Ecp5Accumulator(params.sum_bits, len(operand), params.start_shape)
        self.accumulate(m, accumulator, operand)
        return m

    def _chain(self, steps: Pipeline, chains: CarryChains, low: int, columns: int) -> Value:
        """Add ``columns`` columns from ``low`` on; offset binary if there are more chains."""
        params = self.params
        has_offset = params.cols > CHAIN_COLUMNS
        nonzero, negative = self.weights[low].as_value()
        selected = ((self.acts[low] & nonzero.replicate(params.act_bits))
                    ^ negative.replicate(params.act_bits))[:params.act_bits]
        if has_offset and columns == 1:
            selected = Cat(selected[:-1], ~selected[-1])
        value = steps.register(selected, f"selected{low}")
        for step in range(1, columns):
            column = low + step
            nonzero, negative = steps.delay(
                self.weights[column].as_value(), step, f"weight{column}")
            act = Value.cast(self.acts[column])
            halves = [
                Half(SELECT, value[min(bit, len(value) - 1)],
                     act[min(bit, params.act_bits - 1)], nonzero, negative)
                for bit in range(params.operand_bits(step + 1))]
            if has_offset and step == columns - 1:
                halves[-1] = halves[-1].inverted()
            value = steps.register(chains.add(halves), f"chain{column}")
        wait = min(CHAIN_COLUMNS, params.cols) - columns
        return steps.delay(value, wait, f"wait{low}")
