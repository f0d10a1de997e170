"""Two activations selected, negated and added in one LUT for each bit."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.units.mac.base.pair_codes import PAIR_BITS
from sterna.hw.units.mac.xc7.carry import CarryChain
from sterna.hw.units.mac.xc7.lut import lut6_2, lut_init

__all__ = ["PAIR_INIT", "PairAdder"]


def _operand(x0: int, x1: int, *select: int) -> int:
    """Return the lower half: a bit of the one operand, or where two meet, their carry."""
    number = select[0] | select[1] << 1 | select[2] << 2
    return (0, x0, x0 ^ 1, x1, x1 ^ 1, 0, 0, 0)[number]


def _half_sum(x0: int, x1: int, *select: int) -> int:
    """Return the upper half: the exclusive or of two operands, equal or opposite in sign."""
    number = select[0] | select[1] << 1 | select[2] << 2
    same = x0 ^ x1
    return (0, same, same, same ^ 1, same ^ 1, 0, 0, 0)[number]


PAIR_INIT = lut_init(_operand, _half_sum)
"""Contents of the LUT: I0, I1 = x0, x1; I2 to I4 = the low code bits; I5 = two operands."""


class PairAdder(wiring.Component):
    """``w0 * x0 + w1 * x1`` in one's complement; combinational.

    A CARRY4 needs of each bit whether it propagates a carry (O6) and, if not, the carry
    out (O5). With one operand, both outputs are its bit: no carry ever begins. With two,
    O6 is their exclusive or, and where that is 0 they are equal, so that either is the
    carry: the code names the one that O5 gives.

    Parameters
    ----------
    act_bits
        Bits of a signed activation.

    Members
    -------
    code : ``In(unsigned(4))``
        The weights, as :mod:`sterna.hw.units.mac.base.pair_codes` packs them.
    x0, x1 : ``In(signed(act_bits))``
        Activations.
    total : ``Out(signed(act_bits + 1))``
        ``w0 * x0 + w1 * x1`` less the number of -1 weights; in ``[-2**act_bits,
        2**act_bits - 2]``.
    """

    def __init__(self, act_bits: int) -> None:
        self.act_bits = act_bits
        super().__init__({
            "code": In(unsigned(PAIR_BITS)),
            "x0": In(signed(act_bits)),
            "x1": In(signed(act_bits)),
            "total": Out(signed(act_bits + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.chain = chain = CarryChain(self.act_bits + 1)
        for place in range(self.act_bits + 1):
            bit = min(place, self.act_bits - 1)        # the sign once more on top
            o5, o6 = Signal(name=f"o5_{place}"), Signal(name=f"o6_{place}")
            m.submodules[f"lut{place}"] = lut6_2(
                PAIR_INIT, [self.x0[bit], self.x1[bit], *self.code], o5, o6)
            m.d.comb += [chain.generate[place].eq(o5), chain.propagate[place].eq(o6)]
        m.d.comb += self.total.eq(chain.total.as_signed())
        return m
