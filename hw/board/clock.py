"""The clock and the reset of a board, and the settings of its PLL for a wanted frequency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from amaranth.hdl import ClockDomain, ClockSignal, Const, Instance, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In

from sterna.hw.board.boards import Board

__all__ = ["BoardClock", "Ecp5Pll", "Ice40Pll", "board_pll", "ecp5_pll", "ice40_pll"]

_MHZ = 1_000_000

_ECP5_INPUT = (8 * _MHZ, 400 * _MHZ)
_ECP5_COMPARED = (3_125_000, 400 * _MHZ)
_ECP5_OSCILLATOR = (400 * _MHZ, 800 * _MHZ)
_ECP5_IDEAL = 600 * _MHZ
_ECP5_OUTPUT = (3_125_000, 400 * _MHZ)
_ECP5_DIVIDERS, _ECP5_FEEDBACK, _ECP5_OUTPUTS = 128, 80, 128

_ICE40_INPUT = (10 * _MHZ, 133 * _MHZ)
_ICE40_COMPARED = (10 * _MHZ, 133 * _MHZ)
_ICE40_OSCILLATOR = (533 * _MHZ, 1066 * _MHZ)
_ICE40_OUTPUT = (16 * _MHZ, 275 * _MHZ)
_ICE40_DIVIDERS, _ICE40_FEEDBACK, _ICE40_HALVINGS = 16, 128, 6
_ICE40_FILTERS = ((17, 1), (26, 2), (44, 3), (66, 4), (101, 5))


@dataclass(frozen=True, slots=True)
class Ecp5Pll:
    """Settings of an ``EHXPLLL`` whose output CLKOP feeds itself back.

    Parameters
    ----------
    input_hz
        Frequency of the crystal.
    input_divider, feedback_divider, output_divider
        ``CLKI_DIV``, ``CLKFB_DIV``, ``CLKOP_DIV``.
    """

    input_hz: int
    input_divider: int
    feedback_divider: int
    output_divider: int

    @property
    def output_hz(self) -> Fraction:
        """Frequency of the output."""
        return Fraction(self.input_hz * self.feedback_divider, self.input_divider)

    @property
    def oscillator_hz(self) -> Fraction:
        """Frequency of the oscillator inside."""
        return self.output_hz * self.output_divider


@dataclass(frozen=True, slots=True)
class Ice40Pll:
    """Settings of an ``SB_PLL40_PAD`` with simple feedback.

    Parameters
    ----------
    input_hz
        Frequency of the crystal.
    divr, divf, divq
        ``DIVR``, ``DIVF`` (each a divider less one) and ``DIVQ`` (halvings).
    """

    input_hz: int
    divr: int
    divf: int
    divq: int

    @property
    def output_hz(self) -> Fraction:
        """Frequency of the output."""
        return self.oscillator_hz / (1 << self.divq)

    @property
    def oscillator_hz(self) -> Fraction:
        """Frequency of the oscillator inside."""
        return Fraction(self.input_hz * (self.divf + 1), self.divr + 1)

    @property
    def filter_range(self) -> int:
        """``FILTER_RANGE``, which follows from the frequency that is compared."""
        compared = Fraction(self.input_hz, (self.divr + 1) * _MHZ)
        return next((value for limit, value in _ICE40_FILTERS if compared < limit), 6)


_Pll = TypeVar("_Pll", Ecp5Pll, Ice40Pll)


def ecp5_pll(input_hz: int, output_hz: int) -> Ecp5Pll:
    """Return the settings that give exactly ``output_hz``.

    >>> ecp5_pll(25_000_000, 150_000_000)
    Ecp5Pll(input_hz=25000000, input_divider=1, feedback_divider=6, output_divider=4)
    """
    _check_ranges(input_hz, _ECP5_INPUT, output_hz, _ECP5_OUTPUT)
    return min(_exactly(output_hz, _ecp5_plls(input_hz)),
               key=lambda pll: abs(pll.oscillator_hz - _ECP5_IDEAL))


def ice40_pll(input_hz: int, output_hz: int) -> Ice40Pll:
    """Return the settings that give exactly ``output_hz``; errors as :func:`ecp5_pll`.

    >>> ice40_pll(12_000_000, 24_000_000)
    Ice40Pll(input_hz=12000000, divr=0, divf=63, divq=5)
    """
    _check_ranges(input_hz, _ICE40_INPUT, output_hz, _ICE40_OUTPUT)
    return _exactly(output_hz, _ice40_plls(input_hz))[0]


def _ecp5_plls(input_hz: int) -> Iterator[Ecp5Pll]:
    """All settings within the limits."""
    for divider in range(1, _ECP5_DIVIDERS + 1):
        if not _within(Fraction(input_hz, divider), _ECP5_COMPARED):
            continue
        for feedback in range(1, _ECP5_FEEDBACK + 1):
            base = Fraction(input_hz * feedback, divider)
            if not _within(base, _ECP5_OUTPUT):
                continue
            low, high = _ECP5_OSCILLATOR
            first, last = -(-low // base), min(high // base, _ECP5_OUTPUTS)
            for output in range(first, last + 1):
                yield Ecp5Pll(input_hz, divider, feedback, output)


def _ice40_plls(input_hz: int) -> Iterator[Ice40Pll]:
    """All settings within the limits."""
    for divr in range(_ICE40_DIVIDERS):
        if not _within(Fraction(input_hz, divr + 1), _ICE40_COMPARED):
            continue
        for divf in range(_ICE40_FEEDBACK):
            for divq in range(1, _ICE40_HALVINGS + 1):
                pll = Ice40Pll(input_hz, divr, divf, divq)
                if _within(pll.oscillator_hz, _ICE40_OSCILLATOR) and _within(
                        pll.output_hz, _ICE40_OUTPUT):
                    yield pll


def _within(value: Fraction | int, limits: tuple[int, int]) -> bool:
    return limits[0] <= value <= limits[1]


def _check_ranges(
    input_hz: int, input_limits: tuple[int, int], output_hz: int, output_limits: tuple[int, int],
) -> None:
    for name, value, limits in (
            ("the crystal", input_hz, input_limits), ("the clock", output_hz, output_limits)):
        if not _within(value, limits):
            raise ValueError(
                f"{name} must be from {limits[0] / _MHZ:g} to {limits[1] / _MHZ:g} MHz for the "
                f"PLL, got {value / _MHZ:g} MHz")


def _exactly(wanted: int, plls: Iterable[_Pll]) -> list[_Pll]:
    """The settings of that output frequency; ValueError with the nearest ones if none has it."""
    plls = list(plls)
    found = [pll for pll in plls if pll.output_hz == wanted]
    if found:
        return found
    reachable = {pll.output_hz for pll in plls}
    below = max((hz for hz in reachable if hz < wanted), default=None)
    above = min((hz for hz in reachable if hz > wanted), default=None)
    nearest = " and ".join(
        f"{float(hz / _MHZ):.10g}" for hz in (below, above) if hz is not None)
    raise ValueError(
        f"the PLL cannot make {wanted / _MHZ:g} MHz; the nearest it can are {nearest} MHz")


_START_US = 15
"""Block RAMs of an iCE40 read wrong for some microseconds after configuration."""


def board_pll(board: Board, clock_hz: int) -> Ecp5Pll | Ice40Pll | None:
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
