"""The primitives of FPGA families that Yosys maps to: what each is, and what it takes."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass

__all__ = ["Area", "Primitive", "primitive_of"]


class Primitive(enum.StrEnum):
    """What a primitive is."""

    REGISTER = "register"
    LUT = "LUT"
    MUX = "mux"  # of the outputs of LUTs
    CARRY = "carry"
    SHIFT = "shift register"  # of a LUT
    LUT_RAM = "LUT RAM"
    BLOCK_RAM = "block RAM"
    MULTIPLIER = "multiplier"


@dataclass(frozen=True, slots=True)
class Area:
    """Cells of a design or of a block of it, as Yosys counts."""

    lut: int = 0  # those that carries and RAM are made of included; in iCE40 carries lie beside
    carry: int = 0  # two LUTs each (ECP5), four bits (7 series), or one of a chain
    ff: int = 0  # those inside of other primitives not counted
    block_ram: int = 0  # of 18 kbit, one of 36 counts as two; of 4 kbit in iCE40
    dsp: int = 0  # multiplier blocks

    def __add__(self, other: Area) -> Area:
        return Area(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def of_cells(cls, cells: Mapping[str, int]) -> Area:
        """The area of so many primitives of each type; what is none has no area."""
        total = cls()
        for kind, number in cells.items():
            if found := _found(kind):
                total += cls(*(number * each for each in astuple(found[1])))
        return total


# 16 x 4 bits of the RAM of ECP5 and Nexus are four LUTs, and their address takes the place of two;
# those of Gowin take the eight of a tile.
_PRIMITIVES = (
    (r"LUT[1-6](_2)?|SB_LUT4", Primitive.LUT, Area(lut=1)),
    (r"WIDEFN9", Primitive.LUT, Area(lut=2)),
    (r"INV|BUF", Primitive.LUT, Area()),
    (r"PFUMX|L6MUX21|MUXF[789]|MUX2_LUT[5-8]", Primitive.MUX, Area()),
    (r"CCU2C", Primitive.CARRY, Area(lut=2, carry=1)),
    (r"ALU", Primitive.CARRY, Area(lut=1, carry=1)),
    (r"CARRY4|SB_CARRY", Primitive.CARRY, Area(carry=1)),
    (r"TRELLIS_FF|FD[RSPC]E(_1)?|SB_DFF\w*|FD1P3[BDIJ]X|DFFN?[CPRS]?E?", Primitive.REGISTER,
     Area(ff=1)),
    (r"SRL16E|SRLC32E", Primitive.SHIFT, Area(lut=1)),
    (r"RAM32X1S", Primitive.LUT_RAM, Area(lut=1)),
    (r"RAM16X1D|RAM32X1D|RAM64X1S", Primitive.LUT_RAM, Area(lut=2)),
    (r"RAM32M|RAM64M|RAM128X1D", Primitive.LUT_RAM, Area(lut=4)),
    (r"TRELLIS_DPR16X4|DPR16X4", Primitive.LUT_RAM, Area(lut=6)),
    (r"RAM256X1D|RAM16SDP4", Primitive.LUT_RAM, Area(lut=8)),
    (r"(DP|SP|PDPW|PDPSC)16KD?|RAMB18E1|SB_RAM40_4K(N[RW]|NRNW)?|(SP|DP|SDP|pROM)(X9)?B?",
     Primitive.BLOCK_RAM, Area(block_ram=1)),
    (r"RAMB36E1", Primitive.BLOCK_RAM, Area(block_ram=2)),
    (r"MULT\d+X\d+D?|DSP48E1|SB_MAC16", Primitive.MULTIPLIER, Area(dsp=1)))


def primitive_of(kind: str) -> Primitive | None:
    """What a type of cell is; None for pads, clock buffers and constants.

    >>> primitive_of("CCU2C"), primitive_of("IB")
    (<Primitive.CARRY: 'carry'>, None)
    """
    found = _found(kind)
    return found[0] if found else None


@functools.cache
def _found(kind: str) -> tuple[Primitive, Area] | None:
    return next(((what, area) for pattern, what, area in _PRIMITIVES
                 if re.fullmatch(pattern, kind)), None)
