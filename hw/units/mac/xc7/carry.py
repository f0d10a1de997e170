"""The carry chain of the Xilinx 7 series."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Instance, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["CarryChain"]


class CarryChain(wiring.Component):
    """A chain of CARRY4 cells, four bits each; combinational, no carry in.

    Parameters
    ----------
    width
        Bits; at least 1.

    Members
    -------
    propagate : ``In(width)``
        Bits that pass a carry on and, exclusive-ored with it, are the total.
    generate : ``In(width)``
        The carry out of each bit that does not propagate.
    total : ``Out(width)``
        ``propagate`` with the carries added.
    """

    def __init__(self, width: int) -> None:
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        self.width = width
        super().__init__({"propagate": In(width), "generate": In(width), "total": Out(width)})

    def elaborate(self, platform):
        m = Module()
        carry = Const(0, 1)
        totals = []
        for low in range(0, self.width, 4):
            high = min(low + 4, self.width)
            unused = Const(0, low + 4 - high)
            carries, total = Signal(4, name=f"carries{low}"), Signal(4, name=f"total{low}")
            m.submodules[f"carry{low}"] = Instance(
                "CARRY4",
                i_CI=carry, i_CYINIT=Const(0, 1),
                i_S=Cat(self.propagate[low:high], unused),
                i_DI=Cat(self.generate[low:high], unused),
                o_O=total, o_CO=carries)
            carry = carries[3]
            totals.append(total)
        m.d.comb += self.total.eq(Cat(totals))
        return m
