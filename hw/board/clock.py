"""The clock and the reset of a board, and the settings of its PLL for a wanted frequency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from amaranth.hdl import ClockDomain, ClockSignal, Const, Instance, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In

from sterna.hw.board.boards import Board

__all__ = ["BoardClock", "Pll", "board_pll", "ecp5_pll", "ice40_pll"]

_MHZ = 1_000_000

# Limits in Hz are those of the vendor's data sheets, as ``ecppll`` and ``icepll`` have them; where
# several settings give the same frequency, those are taken that these tools would take.
_ECP5_COMPARED = _ECP5_OUTPUT = (3_125_000, 400 * _MHZ)
_ECP5_IDEAL = 600 * _MHZ
_ICE40_COMPARED = (10 * _MHZ, 133 * _MHZ)
_ICE40_OSCILLATOR = (533 * _MHZ, 1066 * _MHZ)
_ICE40_OUTPUT = (16 * _MHZ, 275 * _MHZ)
_ICE40_FILTERS = ((17, 1), (26, 2), (44, 3), (66, 4), (101, 5), (134, 6))


@dataclass(frozen=True, slots=True)
class Pll:
    """Settings of a PLL by the names of its cell's parameters, and the frequencies they give.

    Of ECP5 it is an ``EHXPLLL`` whose output CLKOP feeds itself back, of iCE40 an
    ``SB_PLL40_PAD`` with simple feedback. The oscillator is the one inside.
    """

    settings: Mapping[str, int]
    output_hz: Fraction
    oscillator_hz: Fraction


def ecp5_pll(input_hz: int, output_hz: int) -> Pll:
    """Return the settings that give exactly ``output_hz``.

    ValueError if there are none; the message has the nearest frequencies that can be reached.

    >>> ecp5_pll(25_000_000, 150_000_000).settings
    {'CLKI_DIV': 1, 'CLKFB_DIV': 6, 'CLKOP_DIV': 4}
    """
    _check_range("crystal", input_hz, (8 * _MHZ, 400 * _MHZ))
    _check_range("clock", output_hz, _ECP5_OUTPUT)
    # The oscillator runs at 400 to 800 MHz.
    plls = [
        Pll({"CLKI_DIV": divider, "CLKFB_DIV": feedback, "CLKOP_DIV": output}, made, made * output)
        for divider in range(1, 129)
        if _within(compared := Fraction(input_hz, divider), _ECP5_COMPARED)
        for feedback in range(1, 81) if _within(made := compared * feedback, _ECP5_OUTPUT)
        for output in range(math.ceil(400 * _MHZ / made), min(800 * _MHZ // made, 128) + 1)]
    return min(_exactly(output_hz, plls),
               key=lambda pll: abs(pll.oscillator_hz - _ECP5_IDEAL))


def ice40_pll(input_hz: int, output_hz: int) -> Pll:
    """Return the settings that give exactly ``output_hz``; errors as :func:`ecp5_pll`.

    >>> ice40_pll(12_000_000, 24_000_000).settings
    {'DIVR': 0, 'DIVF': 63, 'DIVQ': 5, 'FILTER_RANGE': 1}
    """
    _check_range("crystal", input_hz, _ICE40_COMPARED)
    _check_range("clock", output_hz, _ICE40_OUTPUT)
    plls = [
        Pll({"DIVR": divr, "DIVF": divf, "DIVQ": divq, "FILTER_RANGE": next(
            value for limit, value in _ICE40_FILTERS if compared < limit * _MHZ)}, made, oscillator)
        for divr in range(16)
        if _within(compared := Fraction(input_hz, divr + 1), _ICE40_COMPARED)
        for divf in range(128)
        if _within(oscillator := compared * (divf + 1), _ICE40_OSCILLATOR)
        for divq in range(1, 7) if _within(made := oscillator / (1 << divq), _ICE40_OUTPUT)]
    return _exactly(output_hz, plls)[0]


def _within(value: Fraction | int, limits: tuple[int, int]) -> bool:
    return limits[0] <= value <= limits[1]


def _check_range(name: str, hz: int, limits: tuple[int, int]) -> None:
    if not _within(hz, limits):
        raise ValueError(
            f"the {name} must be from {limits[0] / _MHZ:g} to {limits[1] / _MHZ:g} MHz for the "
            f"PLL, got {hz / _MHZ:g} MHz")


def _exactly(wanted: int, plls: Sequence[Pll]) -> list[Pll]:
    """The settings of that output frequency; ValueError with the nearest ones if none has it."""
    found = [pll for pll in plls if pll.output_hz == wanted]
    if not found:
        reachable = {pll.output_hz for pll in plls}
        nearest = (max((hz for hz in reachable if hz < wanted), default=None),
                   min((hz for hz in reachable if hz > wanted), default=None))
        raise ValueError(
            f"the PLL cannot make {wanted / _MHZ:g} MHz; the nearest it can are "
            + " and ".join(f"{float(hz / _MHZ):.10g}" for hz in nearest if hz is not None) + " MHz")
    return found


_START_US = 15
"""Block RAMs of an iCE40 read wrong for some microseconds after configuration."""


def board_pll(board: Board, clock_hz: int) -> Pll | None:
    """Return the PLL that a board needs; None if its crystal has the wanted frequency."""
    if clock_hz == board.crystal_hz:
        return None
    return (ecp5_pll if board.is_ecp5 else ice40_pll)(board.crystal_hz, clock_hz)


class BoardClock(wiring.Component):
    """Drives the domain ``sync`` from the crystal, in reset for 15 us after the PLL has locked.

    A design around it has to make the domain.

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
        elif self.board.is_ecp5:
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
            a_FREQUENCY_PIN_CLKI=f"{self.board.crystal_hz / _MHZ:.10g}",
            a_FREQUENCY_PIN_CLKOP=mhz,
            a_ICP_CURRENT="12", a_LPF_RESISTOR="8", a_MFG_ENABLE_FILTEROPAMP="1",
            a_MFG_GMCREF_SEL="2",
            **{f"p_{name}": value for name, value in pll.settings.items()},
            p_CLKOP_ENABLE="ENABLED", p_CLKOP_CPHASE=pll.settings["CLKOP_DIV"] // 2,
            p_CLKOP_FPHASE=0,
            p_FEEDBK_PATH="CLKOP", p_OUTDIVIDER_MUXA="DIVA", p_PLLRST_ENA="DISABLED",
            p_INTFB_WAKE="DISABLED", p_STDBY_ENABLE="DISABLED", p_DPHASE_SOURCE="DISABLED",
            i_CLKI=self.clk, i_CLKFB=clock, o_CLKOP=clock, o_LOCK=locked,
            i_RST=zero, i_STDBY=zero, i_ENCLKOP=zero, i_PLLWAKESYNC=zero,
            i_PHASESEL0=zero, i_PHASESEL1=zero, i_PHASEDIR=zero, i_PHASESTEP=zero,
            i_PHASELOADREG=zero)

    def _ice40(self, pll, clock, locked):
        return Instance(
            "SB_PLL40_PAD",
            p_FEEDBACK_PATH="SIMPLE",
            **{f"p_{name}": Const(pll.settings[name], bits) for name, bits in (
                ("DIVR", 4), ("DIVF", 7), ("DIVQ", 3), ("FILTER_RANGE", 3))},
            i_PACKAGEPIN=self.clk, o_PLLOUTGLOBAL=clock, o_LOCK=locked,
            i_RESETB=Const(1), i_BYPASS=Const(0))
