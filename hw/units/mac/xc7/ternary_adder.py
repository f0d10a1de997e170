"""An adder of three operands, one LUT for each bit."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.units.mac.xc7.carry import CarryChain
from sterna.hw.units.mac.xc7.lut import lut6_2, lut_init

__all__ = ["TERNARY_INIT", "TernaryAdder"]

TERNARY_INIT = lut_init(
    lambda a, b, c, below, clear: a + b + (c & ~clear) >= 2,
    lambda a, b, c, below, clear: a ^ b ^ (c & ~clear) ^ below)
"""Contents of the LUT: I0 to I2 = the operands, I3 = O5 of the bit below, I4 = clear."""


class TernaryAdder(wiring.Component):
    """``a + b + c``, or ``a + b`` while ``clear`` is high; combinational.

    The LUT of a bit reduces three operands to two: their exclusive or, and their majority
    (O5), which counts for the bit above. There it enters the exclusive or (O6) and is the
    other operand of the carry chain.

    Parameters
    ----------
    width
        Bits of each operand and of the total, which is modulo ``2**width``: the caller
        makes it wide enough.

    Members
    -------
    a, b, c : ``In(signed(width))``
        Operands.
    clear : ``In(1)``
        Whether to leave out ``c``.
    total : ``Out(signed(width))``
        Their sum.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__({
            "a": In(signed(width)),
            "b": In(signed(width)),
            "c": In(signed(width)),
            "clear": In(1),
            "total": Out(signed(width)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.chain = chain = CarryChain(self.width)
        majority = Signal(self.width)
        half_sum = Signal(self.width)
        below = Cat(Const(0, 1), majority)[:self.width]
        for place in range(self.width):
            m.submodules[f"lut{place}"] = lut6_2(
                TERNARY_INIT,
                [self.a[place], self.b[place], self.c[place], below[place], self.clear,
                 Const(1, 1)],
                majority[place], half_sum[place])
        m.d.comb += [
            chain.propagate.eq(half_sum),
            chain.generate.eq(below),
            self.total.eq(chain.total.as_signed()),
        ]
        return m
