"""Xilinx 7 series. pip has no router for it."""

from __future__ import annotations

from sterna.hw.fpga.family import RAMS_OF_18_KBIT, Area, FpgaFamily, FpgaTarget, Primitive
from sterna.hw.units.mac.array_style import ArrayStyle

__all__ = ["TARGETS", "XC7"]

_PRIMITIVES = (
    (r"LUT[1-6](_2)?", Primitive.LUT, Area(lut=1)),
    (r"INV|BUF", Primitive.LUT, Area()),
    (r"MUXF[789]", Primitive.MUX, Area()),
    (r"CARRY4", Primitive.CARRY, Area(carry=1)),
    (r"FD[RSPC]E(_1)?", Primitive.REGISTER, Area(ff=1)),
    (r"SRL16E|SRLC32E", Primitive.SHIFT, Area(lut=1)),
    (r"RAM32X1S", Primitive.LUT_RAM, Area(lut=1)),
    (r"RAM16X1D|RAM32X1D|RAM64X1S", Primitive.LUT_RAM, Area(lut=2)),
    (r"RAM32M|RAM64M|RAM128X1D", Primitive.LUT_RAM, Area(lut=4)),
    (r"RAM256X1D", Primitive.LUT_RAM, Area(lut=8)),
    (r"RAMB18E1", Primitive.BLOCK_RAM, Area(block_ram=1)),
    (r"RAMB36E1", Primitive.BLOCK_RAM, Area(block_ram=2)),
    (r"DSP48E1", Primitive.MULTIPLIER, Area(dsp=1)))

XC7 = FpgaFamily(
    "xc7", "Xilinx 7 series",
    "synth_xilinx -family xc7 -flatten -noiopad -noclkbuf -top {top} {switches}", _PRIMITIVES,
    RAMS_OF_18_KBIT, style=ArrayStyle.XC7_PAIR)

TARGETS = (FpgaTarget("xc7", "Xilinx 7 series", XC7),)
