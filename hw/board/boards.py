"""The boards: their FPGA, which pins Sterna uses, and that in the words of the routers.

The data is that of amaranth-boards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from amaranth.build import Platform
from amaranth_boards.icebreaker import ICEBreakerPlatform
from amaranth_boards.ulx3s import ULX3S_85F_Platform

from sterna.hw.board import BoardName
from sterna.hw.flow.synthesis import Family
from sterna.hw.flow.target import FpgaTarget, target_named
from sterna.hw.units.spec import Sizes

__all__ = ["BOARDS", "Board", "Pin", "constraints_name", "constraints_text"]


_MEMORY_PINS = ("clk", "clk_en", "cs", "ras", "cas", "we", "ba", "a", "dqm", "dq")


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
class Board:
    """A board."""

    name: BoardName
    description: str
    platform: type[Platform]  # its description in amaranth-boards
    target: FpgaTarget
    # where the ports of the top module are: resource of amaranth-boards, its number, and part of it
    places: Mapping[str, tuple[str, int, str | None]]
    # clock of the core and speed of the serial line unless told otherwise
    clock_hz: int
    baud: int
    sizes: Sizes  # of the core, unless told otherwise
    network_sizes: Sizes  # the same of a network
    # resource of amaranth-boards that is an SDRAM of 16 bits, and its number; None for no such
    memory: tuple[str, int] | None = None
    fitting: str = "tiny-c12"  # a bundled model that fits, to be named where another one does not

    @property
    def is_ecp5(self) -> bool:
        """Whether its FPGA is an ECP5; otherwise it is an iCE40."""
        return self.target.family is Family.ECP5

    @property
    def sampled(self) -> bool:
        """Whether its core can draw tokens; otherwise the largest logit is taken."""
        return not self.sizes.get("compact", False)

    @property
    def crystal_hz(self) -> int:
        return int(self.platform().default_clk_frequency)

    @property
    def pins(self) -> dict[str, Pin]:
        """The pin of every port of the top module, as Amaranth gives it."""
        platform = self.platform()
        given = {key: platform.request(*key, dir="-")
                 for key in dict.fromkeys(place[:2] for place in self.places.values())}
        pins: dict[str, Pin] = {}
        for name, (resource, number, part) in self.places.items():
            port = given[resource, number]
            port = port if part is None else getattr(port, part)
            (wire,), (is_inverted,) = port.io.metadata, port.invert
            pins[name] = _pin_of(wire, is_inverted)
        return pins

    @property
    def memory_pins(self) -> dict[str, Pin]:
        """The pins of its SDRAM: ``sdram_a[0]`` and so on."""
        assert self.memory is not None
        port = self.platform().request(*self.memory, dir="-")
        return {
            f"sdram_{name}" + (f"[{index}]" if len(part.io) > 1 else ""): _pin_of(wire, False)
            for name, part in ((name, getattr(port, name)) for name in _MEMORY_PINS)
            for index, wire in enumerate(part.io.metadata)}


def _pin_of(wire: Any, is_inverted: bool) -> Pin:
    return Pin(wire.name, is_inverted, {
        key: str(value) for key, value in sorted(wire.attrs.items())})


_ALL = (
    Board(
        BoardName.ULX3S_85F, "Radiona ULX3S, Lattice ECP5 LFE5U-85F", ULX3S_85F_Platform,
        target_named("ecp5-85k"),
        # GPIO 0 of the radio module held high keeps it from resetting the board.
        {"clk": ("clk25", 0, None), "rx": ("uart", 0, "rx"), "tx": ("uart", 0, "tx"),
         "led": ("led", 0, None), "radio_gpio0": ("esp32", 0, "gpio0")},
        # What place and route reach with some room, the model in ROMs or in the SDRAM.
        clock_hz=75_000_000, baud=1_000_000, memory=("sdram", 0),
        sizes=MappingProxyType({"rows": 8, "cols": 64}),
        network_sizes=MappingProxyType({"rows": 8, "cols": 32})),
    Board(
        BoardName.ICEBREAKER, "1BitSquared iCEBreaker, Lattice iCE40 UP5K", ICEBreakerPlatform,
        target_named("ice40-up5k"),
        {"clk": ("clk12", 0, None), "rx": ("uart", 0, "rx"), "tx": ("uart", 0, "tx"),
         "led": ("led_g", 0, None)},
        clock_hz=12_000_000, baud=115_200,
        sizes=MappingProxyType({"rows": 1, "cols": 8, "quant_lanes": 1, "compact": True}),
        network_sizes=MappingProxyType(
            {"rows": 2, "cols": 8, "quant_lanes": 1, "compact": True}),
        fitting="micro"),
)

BOARDS: Mapping[BoardName, Board] = MappingProxyType({board.name: board for board in _ALL})
"""Every board by name."""


_MHZ = 1e6
_BY_SYNTHESIS = {"GLOBAL", "IO_STANDARD"}
"""Attributes of amaranth-boards that nextpnr for iCE40 has no word for: pads are 3.3 V by the
board's supply, and it finds the global buffer of the clock itself."""


def constraints_name(board: Board) -> str:
    """Name of the file of :func:`constraints_text`, as nextpnr for the board's family wants it."""
    return f"{board.name}.{'lpf' if board.is_ecp5 else 'pcf'}"


def constraints_text(board: Board, *, with_memory: bool = False) -> str:
    """Pins, their electrical settings, and the frequency of the crystal.

    From that the router derives the frequency of the PLL's output, which is the core's clock.
    """
    lines = [f"# {board.description}; pins by amaranth-boards."]
    mhz = board.crystal_hz / _MHZ
    if board.is_ecp5:
        lines += ["BLOCK RESETPATHS;", "BLOCK ASYNCPATHS;"]
        pins = {**board.pins, **(board.memory_pins if with_memory else {})}
        for port, pin in pins.items():
            settings = "".join(f" {name}={value}" for name, value in pin.attributes.items())
            lines += [f'LOCATE COMP "{port}" SITE "{pin.site}";', f'IOBUF PORT "{port}"{settings};']
        lines.append(f'FREQUENCY PORT "clk" {mhz:g} MHZ;')
    else:
        for port, pin in board.pins.items():
            unknown = pin.attributes.keys() - _BY_SYNTHESIS - {"PULLUP"}
            assert not unknown, f"{port} of {board.name} has {sorted(unknown)}"
            pull_up = " -pullup yes" if pin.attributes.get("PULLUP") == "1" else ""
            lines.append(f"set_io{pull_up} {port} {pin.site}")
        lines.append(f"set_frequency clk {mhz:g}")
    return "\n".join(lines) + "\n"
