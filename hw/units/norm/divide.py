"""The two quotients of NormQuant, from a table or digit by digit."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.const_divider import ConstantDivider
from sterna.hw.parts.reciprocal_table import ReciprocalTable
from sterna.hw.units.norm.params import NormParams

__all__ = ["NormDivide"]


class NormDivide(wiring.Component):
    """``R = (127 << k) // max(m, 1)`` and ``V = (127 << (P + t)) // N``.

    Both are one function of two numbers, cut to different lengths, so a table gives both,
    one after the other; without it there is a divider for each.

    Members
    -------
    begin, maximum : ``In(1)``, ``In(unsigned(params.y_bits))``
        Divide by the absolute maximum m.
    rooted, n : ``In(1)``, ``In(unsigned(params.norm_bits))``
        Divide by the root N, once R is no longer needed.
    r, r_done : ``Out(unsigned(params.r_bits))``, ``Out(1)``
        R, from ``params.reciprocal_steps`` cycles after ``begin`` until V is there.
    v, v_done : ``Out(unsigned(params.scale_bits))``, ``Out(1)``
        V, from ``params.quotient_steps`` cycles after ``rooted`` until the next R is there.
    """

    def __init__(self, params: NormParams) -> None:
        self.params = params
        super().__init__({
            "begin": In(1),
            "maximum": In(unsigned(params.y_bits)),
            "rooted": In(1),
            "n": In(unsigned(params.norm_bits)),
            "r": Out(unsigned(params.r_bits)),
            "r_done": Out(1),
            "v": Out(unsigned(params.scale_bits)),
            "v_done": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        if self.params.digit_bits == 0:
            self._look_up(m)
        else:
            self._divide(m)
        return m

    def _look_up(self, m):
        table = self.params.table
        m.submodules.table = unit = ReciprocalTable(table)
        # Whether the scale is next, known long before the root is.
        scaling = Signal()
        with m.If(self.begin):
            m.d.sync += scaling.eq(1)
        with m.Elif(self.v_done):
            m.d.sync += scaling.eq(0)
        is_scale = Signal()
        with m.If(self.begin):
            m.d.sync += is_scale.eq(0)
        with m.Elif(self.rooted):
            m.d.sync += is_scale.eq(1)
        # floor(floor(a * 2^j / d) / 2^j) = floor(a / d)
        profile = self.params.profile
        m.d.comb += [
            unit.start.eq(self.begin | self.rooted),
            unit.divisor.eq(Mux(scaling, self.n, self.maximum)),
            self.r.eq(unit.quotient >> table.frac_bits - profile.reciprocal_bits),
            self.v.eq(unit.quotient >> table.frac_bits - profile.scale_frac - profile.root_frac),
            self.r_done.eq(unit.done & ~is_scale),
            self.v_done.eq(unit.done & is_scale),
        ]

    def _divide(self, m):
        m.submodules.reciprocal = divider = ConstantDivider(self.params.reciprocal)
        m.d.comb += [
            divider.start.eq(self.begin),
            divider.divisor.eq(self.maximum),
            self.r.eq(divider.quotient),
            self.r_done.eq(divider.done),
        ]
        m.submodules.scale = divider = ConstantDivider(self.params.scale)
        m.d.comb += [
            divider.start.eq(self.rooted),
            divider.divisor.eq(self.n),
            self.v.eq(divider.quotient),
            self.v_done.eq(divider.done),
        ]
