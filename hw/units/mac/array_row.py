"""Base classes of the rows of every style."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.units.mac.mac_params import MacParams

__all__ = ["Accumulator", "ArrayRow"]


class Accumulator(wiring.Component):
    """Accumulates the sum of a row beat by beat, starting at the number of its -1 weights.

    It cannot overflow: :attr:`~sterna.hw.units.mac.mac_params.MacParams.sum_bits` gives the
    bound, proven by ``verify/prove.py``. One LUT per bit also selects the start value or the sum.
    """

    def __init__(self, params: MacParams) -> None:
        self.params = params
        super().__init__({
            "advance": In(1),
            "filled": In(1),
            "first": In(1),
            "minus_count": In(unsigned(params.count_bits)),
            "operand": In(signed(params.operand_bits(params.cols))),
            "sum": Out(signed(params.sum_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        total = Signal(signed(self.params.sum_bits), reset_less=True)
        with m.If(self.advance & self.filled):
            m.d.sync += total.eq(self.following(m, total))
        m.d.comb += self.sum.eq(total)
        return m

    def following(self, m, total):
        """The next value of ``total``."""
        return Mux(self.first, self.minus_count, total) + self.operand


class ArrayRow(wiring.Component):
    """One row of the array, implemented by each style, some with another ``accumulator``.

    ``first``, ``filled`` and ``minus_count`` belong to the beat that reaches the accumulator,
    ``params.row_steps`` steps after its operands.

    A ``bare`` row has no accumulator and none of the ports that only it reads; its sum is the
    contribution of one beat.
    """

    accumulator = Accumulator

    def __init__(self, params: MacParams, *, bare: bool = False) -> None:
        self.params = params
        self._bare = bare
        super().__init__({
            "advance": In(1),
            "weights": In(params.weight_layout),
            "acts": In(ArrayLayout(signed(params.act_bits), params.cols)),
            **({} if bare else {
                "first": In(1),     # the beat starts a row
                "filled": In(1),    # a beat is present
                "minus_count": In(params.count_bits)}),
            "sum": Out(signed(params.operand_bits(params.cols) if bare else params.sum_bits)),
        })

    def accumulate(self, m, operand):
        """Accumulate the contribution of each beat."""
        if self._bare:
            m.d.comb += self.sum.eq(operand)
            return
        m.submodules.accumulator = accumulator = self.accumulator(self.params)
        m.d.comb += [
            accumulator.advance.eq(self.advance),
            accumulator.filled.eq(self.filled),
            accumulator.first.eq(self.first),
            accumulator.minus_count.eq(self.minus_count),
            accumulator.operand.eq(operand),
            self.sum.eq(accumulator.sum),
        ]
