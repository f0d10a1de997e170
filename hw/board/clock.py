"""The clock and the reset of a board."""

from __future__ import annotations

from amaranth.hdl import ClockDomain, ClockSignal, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In

from sterna.hw.board.board import Board
from sterna.hw.fpga.pll import MHZ, Pll

__all__ = ["BoardClock", "board_pll"]

_START_US = 15
"""iCE40 block RAMs return wrong data for some microseconds after configuration."""


def board_pll(board: Board, clock_hz: int) -> Pll | None:
    """Return the PLL that a board needs; None if the crystal has the clock frequency."""
    if clock_hz == board.crystal_hz:
        return None
    return board.support.pll(board.crystal_hz, clock_hz)


class BoardClock(wiring.Component):
    """Drives the domain ``sync`` from the crystal, in reset for 15 us after the PLL has locked.

    The enclosing design must create the domain.

    Members
    -------
    clk : ``In(1)``
        The crystal.
    """

    def __init__(self, board: Board, clock_hz: int) -> None:
        self.board, self.clock_hz = board, clock_hz
        self.pll = board_pll(board, clock_hz)
        super().__init__({"clk": In(1)})

    def elaborate(self, platform):
        m = Module()
        clock = Signal()
        locked = Signal()
        if self.pll is None:
            m.d.comb += [clock.eq(self.clk), locked.eq(1)]
        else:
            m.submodules.pll = self.board.support.pll_cell(
                self.pll, self.board.crystal_hz, self.clk, clock, locked)

        # The same clock, without a reset.
        m.domains += ClockDomain("boot", reset_less=True, local=True)
        m.d.comb += [ClockSignal("boot").eq(clock), ClockSignal("sync").eq(clock)]
        is_locked = Signal()
        is_running = Signal()
        m.submodules.locked = FFSynchronizer(locked, is_locked, o_domain="boot")
        cycles = -(-_START_US * self.clock_hz // MHZ)
        waited = Signal(range(cycles + 1))
        with m.If(~is_locked):
            m.d.boot += [waited.eq(0), is_running.eq(0)]
        with m.Elif(waited == cycles):
            m.d.boot += is_running.eq(1)
        with m.Else():
            m.d.boot += waited.eq(waited + 1)
        m.d.comb += ResetSignal("sync").eq(~is_running)
        return m
