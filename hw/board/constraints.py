"""Where the ports of the top module are, in the words of the two routers."""

from __future__ import annotations

from sterna.hw.board.boards import Board

__all__ = ["constraints_name", "constraints_text"]

_MHZ = 1e6
_BY_SYNTHESIS = {"GLOBAL", "IO_STANDARD"}
"""Attributes of amaranth-boards that nextpnr for iCE40 has no word for: pads are 3.3 V by the
board's supply, and it finds the global buffer of the clock itself."""


def constraints_name(board: Board) -> str:
    """Name of the file of constraints."""
    return f"{board.name}.{'lpf' if board.is_ecp5 else 'pcf'}"


def constraints_text(board: Board) -> str:
    """Pins, their electrical settings, and the frequency of the crystal.

    From that the router derives the frequency of the PLL's output, which is the core's clock.
    """
    lines = [f"# {board.description}; pins by amaranth-boards."]
    mhz = board.crystal_hz / _MHZ
    if board.is_ecp5:
        lines += ["BLOCK RESETPATHS;", "BLOCK ASYNCPATHS;"]
        for port, pin in board.pins.items():
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
