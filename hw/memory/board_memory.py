"""Memories of boards behind the port of a core, by public figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["BOARD_MEMORIES", "BoardMemory"]


@dataclass(frozen=True, slots=True)
class BoardMemory:
    """The memory of a board: ``peak`` 10^9 bytes per second, of which linear reads get a part.

    ``source`` says who measured the ``efficiency``.
    """

    description: str
    peak: float
    efficiency: float
    source: str

    @property
    def usable(self) -> float:
        """10^9 bytes per second of linear reads."""
        return self.peak * self.efficiency

    def port_bits(self, clock_mhz: float) -> int:
        """The narrowest port, from 16 bits on, that takes all of it at a clock."""
        bits = 16
        while bits * clock_mhz < 8000 * self.usable:
            bits *= 2
        return bits


BOARD_MEMORIES: Mapping[str, BoardMemory] = MappingProxyType({
    "ulx3s": BoardMemory(
        "ULX3S, SDR SDRAM, 16 bits at 80 MHz", 0.16, 0.976, "benchmarks/memory.py, simulated"),
    "arty-a7": BoardMemory(
        "Arty A7, DDR3-800, 16 bits", 1.6, 0.888, "Neumann-Labs/ternfpga: 1.42 GB/s"),
    "kv260": BoardMemory(
        "KV260, DDR4 through four ports of 128 bits at 250 MHz", 16.0, 0.796,
        "MerlijnW70/bitnet-kv260: 12.73 GB/s"),
    "u250": BoardMemory(
        "U250, four channels of DDR4-2400, 64 bits", 76.8, 0.886,
        "enjoy-digital/litedram#406: 16-bit DDR4"),
    "u280": BoardMemory(
        "U280, HBM2", 460.0, 0.83, "fitted to TerEffic, arXiv 2502.16473"),
})
"""By the name that ``sterna report --board`` takes."""
