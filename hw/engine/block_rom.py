"""Block memories as deep as they come, with nothing between the blocks and a register."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Value, unsigned
from amaranth.lib import memory

from sterna.hw.parts.memory_attributes import BLOCK_ROM
from sterna.hw.parts.pipeline import Pipeline

__all__ = ["read_block_rom"]

_BLOCK_BITS = 1 << 14
"""Of a block, in words of a power of two of bits."""


def read_block_rom(
    m: Module, steps: Pipeline, name: str, words: Sequence[int], width: int, depth: int,
    address: Value,
) -> Value:
    """Return the word at an address, two steps later: the memory, and its output register.

    The memory is cut into parts of as many bits as a block has at this depth: a deeper one would be
    put together of several blocks, with a multiplexer in front of the register.
    """
    part_bits = max(_BLOCK_BITS >> (depth - 1).bit_length(), 1)
    if part_bits >= 8:      # then a block has a ninth of parity besides
        part_bits = part_bits // 8 * 9
    parts = []
    for low in range(0, width, part_bits):
        bits = min(part_bits, width - low)
        m.submodules[f"{name}{low}"] = rom = memory.Memory(
            shape=unsigned(bits), depth=max(depth, 2),
            init=[word >> low & (1 << bits) - 1 for word in words], attrs=BLOCK_ROM)
        read = rom.read_port()
        m.d.comb += [read.addr.eq(address), read.en.eq(1)]
        parts.append(steps.register(read.data, f"{name}{low}_word"))
    return Cat(parts)
