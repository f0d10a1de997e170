"""What an FPGA family is to Sterna, and a device of it.

The families themselves are in :mod:`sterna.hw.fpga.families`, each in a file.
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
    """What a design needs of a device."""

    # those of carries and LUT RAM included; in iCE40 logic cells, of a LUT, a carry and a flip-flop
    LUT = "LUT"
    FF = "FF"  # flip-flops
    BLOCK_RAM = "block RAM"  # of 18 kbit, in iCE40 of 4 kbit
    DSP = "DSP"  # multiplier blocks


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

    @property
    def tool(self) -> str:
        """Its name and version, for reports."""
        return f"{self.package.removeprefix('yowasp-')} {version(self.package)}"


@dataclass(frozen=True, slots=True)
class Pin:
    """A pin of a board, by its name on the package.

    ``is_inverted`` says whether the board takes 0 for on; ``attributes`` are electrical
    settings, as amaranth-boards has them: ``IO_TYPE`` and so on.
    """

    site: str
    is_inverted: bool
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BoardSupport:
    """What takes a design of a family onto a board."""

    # settings of the PLL for a crystal and an output in Hz; ValueError if there are none
    pll: Callable[[int, int], Pll]
    # The instance of the PLL in Amaranth: from its settings, the crystal in Hz, the input, the
    # output and whether it has locked.
    pll_cell: Callable[[Pll, int, Any, Any, Any], Any]
    # lines of constraints: where each port is, and the frequency of the crystal in MHz
    constraints: Callable[[Mapping[str, Pin], float], list[str]]
    constraints_suffix: str
    bitstream_suffix: str
    routed_option: str  # names the file of the router's result
    packer: tuple[str, ...]  # makes ``bits`` of ``routed``, a function of the router's module
    sdram_pads: str = ""  # Verilog between our controller and the pins of an SDRAM of 16 bits


@dataclass(frozen=True, eq=False)
class FpgaFamily:
    """FPGAs that are made of the same primitives."""

    name: str
    description: str
    # Commands of Yosys with places for ``top`` and ``switches``, and the switches that use, or
    # leave unused, the multiplier blocks.
    script: str
    # primitives that Yosys maps to, by a pattern of their names; pads, clock buffers and constants
    # are none
    primitives: Sequence[tuple[str, Primitive, Area]]
    ram_shapes: Sequence[tuple[int, int]]  # width and depth of a block RAM, each that it can have
    multiplier_switches: tuple[str, str] = ("", "-nodsp")
    # changes of the netlist before it is placed; each returns what it changed, as a dataclass
    passes: Sequence[Callable[[dict[str, Any], str], Any]] = ()
    router: Router | None = None  # what places and routes it; None if pip has no such tool
    style: ArrayStyle = ArrayStyle.GENERIC  # of the array, with the fewest cells
    lut_name: str = "LUT"  # what :attr:`Resource.LUT` is called
    # Of the flip-flops of a core, the part in a logic cell whose LUT is not used, where the two
    # are counted together.
    ff_alone: float = 0.0
    small: Mapping[str, Any] = field(default_factory=dict)  # sizes of a network for small devices
    board: BoardSupport | None = None  # None as long as no board has it

    def synthesis_script(self, top: str, *, multipliers: bool = True) -> str:
        """What Yosys is told to do with a design, a command a line."""
        return self.script.format(top=top, switches=self.multiplier_switches[not multipliers])

    def primitive(self, kind: str) -> Primitive | None:
        """What a type of cell is; None for pads, clock buffers and constants."""
        found = _found(self, kind)
        return found[0] if found else None

    def area(self, cells: Mapping[str, int]) -> Area:
        """The area of so many primitives of each type; what is none has no area."""
        total = Area()
        for kind, number in cells.items():
            if found := _found(self, kind):
                total += Area(*(number * each for each in astuple(found[1])))
        return total

    def block_rams(self, depth: int, width: int) -> int:
        """Block RAMs of a memory, in the shape that takes the fewest."""
        return min(-(-width // wide) * -(-depth // deep) for wide, deep in self.ram_shapes)


@functools.cache
def _found(family: FpgaFamily, kind: str) -> tuple[Primitive, Area] | None:
    return next(((what, area) for pattern, what, area in family.primitives
                 if re.fullmatch(pattern, kind)), None)


@dataclass(frozen=True, slots=True)
class FpgaTarget:
    """A device, or a family that is synthesised for without choosing one."""

    name: str  # what the command line calls it
    description: str
    family: FpgaFamily
    # What the device has of each resource, as the router counts. Empty for a family, whose devices
    # differ.
    available: Mapping[Resource, int] = field(default_factory=dict, hash=False)
    router_options: tuple[str, ...] = ()  # device, package and speed grade
    clock_mhz: float = 100.0  # clock that place and route aims at unless told otherwise
    # columns and rows of tiles, those of the pads included; None for a family, or where not known
    grid: tuple[int, int] | None = None
    # Constraints of the pins around a part of a design, for a router that chooses none itself. It
    # cannot count a part without pins either: Yosys does.
    part_pins: str | None = None
    fitting: str | None = None  # a bundled model that fits, with the sizes chosen for it

    @property
    def router(self) -> Router | None:
        """What places and routes it; None if pip has no such tool."""
        return self.family.router

    def name_of(self, resource: Resource) -> str:
        """What a resource is called here: iCE40 counts logic cells, not LUTs."""
        return self.family.lut_name if resource is Resource.LUT else resource.value


RAMS_OF_18_KBIT = ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384))
"""Width and depth of most families' block RAMs."""


def resources(**values: Any) -> Mapping[Resource, Any]:
    """Something of each resource, by its name in lower case."""
    return MappingProxyType({Resource[name.upper()]: value for name, value in values.items()})


def part_pins(line: str, sites: Sequence[str]) -> str:
    """Constraints of the module around a part of a design: a line for a port and its site."""
    return "".join(f"{line.format(port, site)}\n" for port, site in zip(
        ("clk", "rst", "wrapper_in", "wrapper_out"), sites, strict=True))
