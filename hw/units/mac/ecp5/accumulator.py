"""The accumulator of a row in ECP5 carry cells."""

from __future__ import annotations

from amaranth.hdl import Module, Shape, ShapeLike, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.units.mac.ecp5.ccu2c import CHOOSE, CarryChains, Half

__all__ = ["Ecp5Accumulator"]


class Ecp5Accumulator(wiring.Component):
    """The sum of a row, gathered beat by beat; one LUT for each bit.

    It adds modulo ``2**sum_bits``, so the sum is right if it fits, whatever the start value
    and the sums on the way are.

    Parameters
    ----------
    sum_bits, operand_bits
        Signed widths.
    start_shape
        Shape of the start value.

    Members
    -------
    advance, filled, first : ``In(1)``
        Whether to step, whether there is a beat, and whether it starts a row.
    start : ``In(start_shape)``
        Start value, read with ``first``.
    operand : ``In(signed(operand_bits))``
        What the beat adds.
    sum : ``Out(signed(sum_bits))``
        The sum so far.
    """

    def __init__(self, sum_bits: int, operand_bits: int, start_shape: ShapeLike) -> None:
        self.sum_bits = sum_bits
        super().__init__({
            "advance": In(1),
            "filled": In(1),
            "first": In(1),
            "start": In(Shape.cast(start_shape)),
            "operand": In(signed(operand_bits)),
            "sum": Out(signed(sum_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        total = Signal(signed(self.sum_bits), reset_less=True)
        wide = Signal(signed(self.sum_bits))
        start = Signal(signed(self.sum_bits))
        m.d.comb += [
            wide.eq(self.operand), start.eq(self.start), self.sum.eq(total)]
        chains = CarryChains(m, "accumulate", self.sum_bits + 2)
        following = chains.add([
            Half(CHOOSE, wide[bit], start[bit], total[bit], self.first)
            for bit in range(self.sum_bits)])
        chains.finish()
        with m.If(self.advance & self.filled):
            m.d.sync += total.eq(following)
        return m
