"""Description of a board: its FPGA, pins and constraints.

The boards are in :mod:`sterna.hw.board.boards`; pins are those of amaranth-boards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amaranth.build import Platform

from sterna.hw.fpga.family import BoardSupport, FpgaTarget, Pin
from sterna.hw.units.spec import Sizes

__all__ = ["Board", "constraints_name", "constraints_text"]


_MEMORY_PINS = ("clk", "clk_en", "cs", "ras", "cas", "we", "ba", "a", "dqm", "dq")


@dataclass(frozen=True, slots=True)
class Board:
    """A board."""

    name: str  # on the command line, and of its file
    description: str
    platform: type[Platform]  # its description in amaranth-boards
    target: FpgaTarget
    # amaranth-boards resource, number and subsignal of every port of the top module
    places: Mapping[str, tuple[str, int, str | None]]
    # default clock of the core and speed of the serial line
    clock_hz: int
    baud: int
    sizes: Sizes  # default sizes of the core
    network_sizes: Sizes  # the same for a network
    # amaranth-boards resource and number of a 16-bit SDRAM; None if there is none
    memory: tuple[str, int] | None = None
    fitting: str = "tiny-c12"  # a bundled model that fits, suggested if another does not

    @property
    def support(self) -> BoardSupport:
        """The board support of its FPGA family."""
        support = self.target.family.board
        assert support is not None
        return support

    @property
    def sampled(self) -> bool:
        """Whether its core can sample tokens; otherwise it takes the largest logit."""
        return not self.sizes.get("compact", False)

    @property
    def crystal_hz(self) -> int:
        return int(self.platform().default_clk_frequency)

    @property
    def pins(self) -> dict[str, Pin]:
        """The pin of every port of the top module, from Amaranth."""
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
        """The pins of its SDRAM, such as ``sdram_a[0]``."""
        assert self.memory is not None
        port = self.platform().request(*self.memory, dir="-")
        return {
            f"sdram_{name}" + (f"[{index}]" if len(part.io) > 1 else ""): _pin_of(wire, False)
            for name, part in ((name, getattr(port, name)) for name in _MEMORY_PINS)
            for index, wire in enumerate(part.io.metadata)}


def _pin_of(wire: Any, is_inverted: bool) -> Pin:
    return Pin(wire.name, is_inverted, {
        key: str(value) for key, value in sorted(wire.attrs.items())})


def constraints_name(board: Board) -> str:
    """File name of :func:`constraints_text`, as required by nextpnr for the board's family."""
    return f"{board.name}.{board.support.constraints_suffix}"


def constraints_text(board: Board, *, with_memory: bool = False) -> str:
    """Pins, their electrical settings, and the frequency of the crystal.

    From the crystal, nextpnr derives the frequency of the PLL output, which is the core's clock.
    """
    pins = {**board.pins, **(board.memory_pins if with_memory else {})}
    return "\n".join([
        f"# {board.description}; pins by amaranth-boards.",
        *board.support.constraints(pins, board.crystal_hz / 1e6), ""])
