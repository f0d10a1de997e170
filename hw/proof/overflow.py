"""The claim about the accumulator: at the derived width it never overflows."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.units.mac.mac_array import Accumulator
from sterna.hw.units.mac.mac_params import MacParams

__all__ = ["NoOverflow", "OneBitLess"]


class OneBitLess(MacParams):
    """An array whose accumulators are a bit too narrow."""

    __slots__ = ()

    @property
    def sum_bits(self) -> int:
        """One bit less than it takes."""
        return MacParams.sum_bits.fget(self) - 1


class _OneBitMore(MacParams):
    __slots__ = ()

    @property
    def sum_bits(self) -> int:
        return MacParams.sum_bits.fget(self) + 1


class NoOverflow(wiring.Component):
    """``holds`` while an accumulator and a wider copy on the same inputs are equal.

    The environment may do anything within the contract: a start value of at most
    ``max_columns``, at most ``max_columns`` columns in a row (``columns`` is how many of a
    beat hold weights), and an operand within the range of that many one's complements.

    Parameters
    ----------
    params
        Geometry of the array.
    """

    def __init__(self, params: MacParams) -> None:
        self.params = params
        super().__init__({
            "advance": In(1), "filled": In(1), "first": In(1),
            "minus_count": In(unsigned(params.count_bits)),
            "columns": In(range(params.cols + 1)),
            "operand": In(signed(params.operand_bits(params.cols))),
            "holds": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        lowest = -1 << (params.act_bits - 1)
        m.submodules.exact = exact = Accumulator(params)
        m.submodules.wide = wide = Accumulator(_OneBitMore(
            params.rows, params.cols, params.max_columns, params.act_bits))
        for copy in (exact, wide):
            m.d.comb += [getattr(copy, name).eq(getattr(self, name)) for name in (
                "advance", "filled", "first", "minus_count", "operand")]

        used = Signal(range(params.max_columns + params.cols + 1), reset_less=True)
        started = Signal(reset_less=True)
        lawful = Signal(init=1, reset_less=True)
        used_then = Signal.like(used)
        m.d.comb += used_then.eq(self.columns)
        with m.If(~self.first):
            m.d.comb += used_then.eq(used + self.columns)
        allowed = (
            (started | self.first)
            & (self.minus_count <= params.max_columns)
            & (self.columns <= params.cols) & (used_then <= params.max_columns)
            & (self.operand >= lowest * self.columns)
            & (self.operand <= ~lowest * self.columns))
        with m.If(self.advance & self.filled):
            m.d.sync += [used.eq(used_then), started.eq(1), lawful.eq(lawful & allowed)]

        # The bounds make the claim inductive; they are the argument of MacParams.sum_bits.
        bounded = ((wide.sum >= lowest * used) & (used <= params.max_columns)
                   & (wide.sum <= params.max_columns + ~lowest * used))
        m.d.comb += self.holds.eq(
            ~lawful | ((exact.sum == wide.sum) & (~started | bounded)))
        return m
