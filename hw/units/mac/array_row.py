"""What the rows of every style share."""

from __future__ import annotations

from amaranth.hdl import signed
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.units.mac.mac_params import MacParams

__all__ = ["ArrayRow"]


class ArrayRow(wiring.Component):
    """One row of the array; each style builds its own.

    ``first``, ``filled`` and ``minus_count`` belong to the beat that reaches the accumulator,
    ``params.row_steps`` steps after its operands.

    A ``bare`` row has no accumulator: its sum is what a beat adds to one, and it has no ports for
    what only that reads.
    """

    def __init__(self, params: MacParams, *, bare: bool = False) -> None:
        self.params = params
        self._bare = bare
        super().__init__({
            "advance": In(1),
            "weights": In(params.weight_layout),
            "acts": In(ArrayLayout(signed(params.act_bits), params.cols)),
            **({} if bare else {
                "first": In(1),     # the beat starts a row
                "filled": In(1),    # there is a beat at all
                "minus_count": In(params.count_bits)}),
            "sum": Out(signed(params.operand_bits(params.cols) if bare else params.sum_bits)),
        })

    def accumulate(self, m, make, operand):
        """Have an accumulator, which ``make`` makes, gather what each beat adds."""
        if self._bare:
            m.d.comb += self.sum.eq(operand)
            return
        m.submodules.accumulator = accumulator = make()
        m.d.comb += [
            accumulator.advance.eq(self.advance),
            accumulator.filled.eq(self.filled),
            accumulator.first.eq(self.first),
            accumulator.minus_count.eq(self.minus_count),
            accumulator.operand.eq(operand),
            self.sum.eq(accumulator.sum),
        ]
