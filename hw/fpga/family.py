"""Description of an FPGA family and its devices.

The families are in :mod:`sterna.hw.fpga.families`, one file each.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from sterna.hw.fpga.pll import Pll
from sterna.hw.units.mac.array_style import ArrayStyle

__all__ = [
    "RAMS_OF_18_KBIT", "Area", "BoardSupport", "FpgaFamily", "FpgaTarget", "Pin", "Primitive",
    "Resource", "Router", "part_pins", "resources"]


class Resource(enum.StrEnum):
    """Resource of a device."""

    # including those of carries and LUT RAM; in iCE40 logic cells of a LUT, a carry and a flip-flop
    LUT = "LUT"
    FF = "FF"  # flip-flops
    BLOCK_RAM = "block RAM"  # of 18 kbit, in iCE40 of 4 kbit
    DSP = "DSP"  # multiplier blocks


class Primitive(enum.StrEnum):
    """Kind of a primitive."""

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
    """Cells of a design or one of its blocks, as counted by Yosys."""

    lut: int = 0  # including those of carries and RAM; in iCE40 carries are separate
    carry: int = 0  # two LUTs each (ECP5), four bits (7 series), or one of a chain
    ff: int = 0  # without those inside other primitives
    block_ram: int = 0  # of 18 kbit, one of 36 counts as two; of 4 kbit in iCE40
    dsp: int = 0  # multiplier blocks

    def __add__(self, other: Area) -> Area:
        return Area(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Router:
    """A place-and-route tool from pip: a package and its entry function."""

    extra: str  # the extra of Sterna that installs it
    package: str
    module: str
    function: str
    # nextpnr's names of each resource, starting with the one it counts
    bels: Mapping[Resource, Sequence[str]]
    # Whether a part of a design can be placed without pads; otherwise it is wrapped in registers
    # with two data pins.
    out_of_context: bool
    tile_cells: int  # LUTs and flip-flops of a logic tile, in nextpnr's units
    pins_option: str  # option for the constraints file

    @property
    def tool(self) -> str:
        """Its name and version, for reports."""
        return f"{self.package.removeprefix('yowasp-')} {version(self.package)}"


@dataclass(frozen=True, slots=True)
class Pin:
    """A pin of a board, by its name on the package.

    ``is_inverted`` says whether the signal is active low; ``attributes`` are the electrical
    settings from amaranth-boards, such as ``IO_TYPE``.
    """

    site: str
    is_inverted: bool
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BoardSupport:
    """Support for designs of a family on boards."""

    # settings of the PLL for a crystal and an output in Hz; ValueError if there are none
    pll: Callable[[int, int], Pll]
    # Amaranth instance of the PLL from its settings, the crystal in Hz, and the input, output and
    # lock signals.
    pll_cell: Callable[[Pll, int, Any, Any, Any], Any]
    # constraint lines from the pin of each port and the crystal frequency in MHz
    constraints: Callable[[Mapping[str, Pin], float], list[str]]
    constraints_suffix: str
    bitstream_suffix: str
    routed_option: str  # option for the router's output file
    packer: tuple[str, ...]  # makes ``bits`` from ``routed``: function and arguments
    sdram_pads: str = ""  # Verilog between the controller and the pins of a 16-bit SDRAM


@dataclass(frozen=True, eq=False)
class FpgaFamily:
    """FPGAs with the same primitives."""

    name: str
    description: str
    # Yosys commands with placeholders ``top`` and ``switches``, which enable or disable multipliers
    script: str
    # primitives that Yosys maps to, by name pattern, without pads, clock buffers and constants
    primitives: Sequence[tuple[str, Primitive, Area]]
    ram_shapes: Sequence[tuple[int, int]]  # supported widths and depths of a block RAM
    multiplier_switches: tuple[str, str] = ("", "-nodsp")
    # netlist passes before placement; each returns its changes as a dataclass
    passes: Sequence[Callable[[dict[str, Any], str], Any]] = ()
    router: Router | None = None  # None if pip has no place-and-route tool
    style: ArrayStyle = ArrayStyle.GENERIC  # array style with the fewest cells
    lut_name: str = "LUT"  # name of :attr:`Resource.LUT`
    # Fraction of a core's flip-flops in cells with an unused LUT, if both are counted together.
    ff_alone: float = 0.0
    small: Mapping[str, Any] = field(default_factory=dict)  # sizes of a network for small devices
    board: BoardSupport | None = None  # None if no board is supported

    def synthesis_script(self, top: str, *, multipliers: bool = True) -> str:
        """The Yosys commands for a design, one per line."""
        return self.script.format(top=top, switches=self.multiplier_switches[not multipliers])

    def primitive(self, kind: str) -> Primitive | None:
        """What a type of cell is; None for pads, clock buffers and constants."""
        found = _found(self, kind)
        return found[0] if found else None

    def area(self, cells: Mapping[str, int]) -> Area:
        """The area of a number of cells of each type; other cells count as zero."""
        total = Area()
        for kind, number in cells.items():
            if found := _found(self, kind):
                total += Area(*(number * each for each in astuple(found[1])))
        return total

    def block_rams(self, depth: int, width: int) -> int:
        """Block RAMs of a memory, in the shape that needs the fewest."""
        return min(-(-width // wide) * -(-depth // deep) for wide, deep in self.ram_shapes)


@functools.cache
def _found(family: FpgaFamily, kind: str) -> tuple[Primitive, Area] | None:
    return next(((what, area) for pattern, what, area in family.primitives
                 if re.fullmatch(pattern, kind)), None)


@dataclass(frozen=True, slots=True)
class FpgaTarget:
    """A device, or a family for synthesis without choosing a device."""

    name: str  # on the command line
    description: str
    family: FpgaFamily
    # Resources of the device, as the router counts; empty for a family.
    available: Mapping[Resource, int] = field(default_factory=dict, hash=False)
    router_options: tuple[str, ...] = ()  # device, package and speed grade
    clock_mhz: float = 100.0  # default target clock of place and route
    # columns and rows of tiles, including those of the pads; None for a family or if unknown
    grid: tuple[int, int] | None = None
    # Pin constraints for a part of a design, for a router that cannot choose pins. Such a router
    # cannot count a part without pins either: Yosys does.
    part_pins: str | None = None
    fitting: str | None = None  # a bundled model that fits, with the sizes chosen for it

    @property
    def router(self) -> Router | None:
        """The place-and-route tool; None if pip has none."""
        return self.family.router

    def name_of(self, resource: Resource) -> str:
        """The name of a resource here: iCE40 counts logic cells, not LUTs."""
        return self.family.lut_name if resource is Resource.LUT else resource.value


RAMS_OF_18_KBIT = ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384))
"""Width and depth of most families' block RAMs."""


def resources(**values: Any) -> Mapping[Resource, Any]:
    """Map each resource, given by its lower-case name, to a value."""
    return MappingProxyType({Resource[name.upper()]: value for name, value in values.items()})


def part_pins(line: str, sites: Sequence[str]) -> str:
    """Pin constraints of the wrapper around a part of a design, one line per port."""
    return "".join(f"{line.format(port, site)}\n" for port, site in zip(
        ("clk", "rst", "wrapper_in", "wrapper_out"), sites, strict=True))
