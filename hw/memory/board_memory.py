"""Linear read bandwidths of the memories of some boards, from public figures."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["BOARD_BANDWIDTHS", "narrowest_port"]

BOARD_BANDWIDTHS: Mapping[str, float] = MappingProxyType({
    # 16 bits of SDR at 80 MHz: simulated, benchmarks/memory.py.
    "ulx3s-85f": 0.16 * 0.976,
    # 16 bits of DDR3-800: measured by Neumann-Labs/ternfpga.
    "arty-a7": 1.42,
    # Four ports of 128 bits at 250 MHz: measured by MerlijnW70/bitnet-kv260.
    "kv260": 12.73,
    # Four channels of DDR4-2400, 64 bits: the efficiency is that of 16 bits, litedram#406.
    "u250": 76.8 * 0.886,
    # HBM2: the efficiency is fitted to TerEffic, arXiv 2502.16473.
    "u280": 460 * 0.83,
})
"""10^9 bytes per second by board name."""


def narrowest_port(bandwidth: float, clock_mhz: float) -> int:
    """Bits of the narrowest port, at least 16, that takes a bandwidth in 10^9 bytes per second at
    a clock."""
    bits = 16
    while bits * clock_mhz < 8000 * bandwidth:
        bits *= 2
    return bits
