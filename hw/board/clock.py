"""The clock and the reset of a board."""

from __future__ import annotations

from amaranth.hdl import ClockDomain, ClockSignal, Const, Instance, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In

from sterna.hw.board.boards import Board
from sterna.hw.board.pll import Ecp5Pll, Ice40Pll, ecp5_pll, ice40_pll

__all__ = ["BoardClock", "board_pll"]

_START_US = 15
"""Block RAMs of an iCE40 read wrong for some microseconds after configuration."""

_MHZ = 1_000_000


def board_pll(board: Board, clock_hz: int) -> Ecp5Pll | Ice40Pll | None:
    """Return the PLL that a board needs; None if its crystal has the wanted frequency.

    Raises
    ------
    ValueError
        If its PLL cannot make that frequency.
    """
    if clock_hz == board.crystal_hz:
        return None
    return (ecp5_pll if board.is_ecp5 else ice40_pll)(board.crystal_hz, clock_hz)


class BoardClock(wiring.Component):
    """Drives the domain ``sync`` from the crystal, in reset for 15 us after the PLL has locked.

    A design around it has to make the domain.

    Parameters
    ----------
    board
        The board.
    clock_hz
        Frequency of ``sync``.

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
        elif isinstance(self.pll, Ecp5Pll):
            m.submodules.pll = self._ecp5(self.pll, clock, locked)
        else:
            m.submodules.pll = self._ice40(self.pll, clock, locked)

        # The same clock, without a reset.
        m.domains += ClockDomain("boot", reset_less=True, local=True)
        m.d.comb += [ClockSignal("boot").eq(clock), ClockSignal("sync").eq(clock)]
        is_locked = Signal()
        is_running = Signal()
        m.submodules.locked = FFSynchronizer(locked, is_locked, o_domain="boot")
        cycles = -(-_START_US * self.clock_hz // _MHZ)
        waited = Signal(range(cycles + 1))
        with m.If(~is_locked):
            m.d.boot += [waited.eq(0), is_running.eq(0)]
        with m.Elif(waited == cycles):
            m.d.boot += is_running.eq(1)
        with m.Else():
            m.d.boot += waited.eq(waited + 1)
        m.d.comb += ResetSignal("sync").eq(~is_running)
        return m

    def _ecp5(self, pll, clock, locked):
        mhz = f"{float(pll.output_hz) / _MHZ:.10g}"
        zero = Const(0)
        return Instance(
            "EHXPLLL",
            # The router derives the frequency of the clock from that of the crystal; these
            # two are for the vendor's tools.
            a_FREQUENCY_PIN_CLKI=f"{pll.input_hz / _MHZ:.10g}",
            a_FREQUENCY_PIN_CLKOP=mhz,
            a_ICP_CURRENT="12", a_LPF_RESISTOR="8", a_MFG_ENABLE_FILTEROPAMP="1",
            a_MFG_GMCREF_SEL="2",
            p_CLKI_DIV=pll.input_divider, p_CLKFB_DIV=pll.feedback_divider,
            p_CLKOP_DIV=pll.output_divider, p_CLKOP_ENABLE="ENABLED",
            p_CLKOP_CPHASE=pll.output_divider // 2, p_CLKOP_FPHASE=0,
            p_FEEDBK_PATH="CLKOP", p_OUTDIVIDER_MUXA="DIVA", p_PLLRST_ENA="DISABLED",
            p_INTFB_WAKE="DISABLED", p_STDBY_ENABLE="DISABLED", p_DPHASE_SOURCE="DISABLED",
            i_CLKI=self.clk, i_CLKFB=clock, o_CLKOP=clock, o_LOCK=locked,
            i_RST=zero, i_STDBY=zero, i_ENCLKOP=zero, i_PLLWAKESYNC=zero,
            i_PHASESEL0=zero, i_PHASESEL1=zero, i_PHASEDIR=zero, i_PHASESTEP=zero,
            i_PHASELOADREG=zero)

    def _ice40(self, pll, clock, locked):
        return Instance(
            "SB_PLL40_PAD",
            p_FEEDBACK_PATH="SIMPLE", p_DIVR=Const(pll.divr, 4), p_DIVF=Const(pll.divf, 7),
            p_DIVQ=Const(pll.divq, 3), p_FILTER_RANGE=Const(pll.filter_range, 3),
            i_PACKAGEPIN=self.clk, o_PLLOUTGLOBAL=clock, o_LOCK=locked,
            i_RESETB=Const(1), i_BYPASS=Const(0))
