"""A row of the array in LUT6_2 and CARRY4 cells, two weights in each LUT."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.base.pair_codes import PAIR_BITS
from sterna.hw.units.mac.base.params import MacParams
from sterna.hw.units.mac.xc7.pair_adder import PairAdder
from sterna.hw.units.mac.xc7.tree import PartialSum, add_tree

__all__ = ["Xc7PairRow"]


class Xc7PairRow(wiring.Component):
    """One row of style ``xc7-pair``: pair adders, adders of three operands, accumulator.

    Every adder ends in a register. A ``-x`` is added as its one's complement; the missing
    +1s are the number of -1 weights of the row, from which the accumulator starts.

    Parameters
    ----------
    params
        Geometry of the array.

    Members
    -------
    advance : ``In(1)``
        Step in this cycle.
    weights : ``In(ArrayLayout(unsigned(4), ceil(cols / 2)))``
        Pairs of weights of a beat, see :mod:`sterna.hw.units.mac.base.pair_codes`.
    acts : ``In(ArrayLayout(signed(act_bits), cols))``
        Activations of a beat.
    first, start, filled : ``In``
        Whether a beat starts a row, and the number of -1 weights in the row; whether there
        is a beat at all. All of the beat that reaches the accumulator,
        ``params.row_steps`` steps after its operands.
    sum : ``Out(signed(sum_bits))``
        The accumulator.
    """

    def __init__(self, params: MacParams) -> None:
        self.params = params
        super().__init__({
            "advance": In(1),
            "weights": In(ArrayLayout(unsigned(PAIR_BITS), -(-params.cols // 2))),
            "acts": In(ArrayLayout(signed(params.act_bits), params.cols)),
            "first": In(1),
            "start": In(unsigned(params.count_bits)),
            "filled": In(1),
            "sum": Out(signed(params.sum_bits)),
        })

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
