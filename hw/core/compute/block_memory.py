"""Block memories with output registers: ROMs of any depth, and rings."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Value, ValueLike, unsigned
from amaranth.lib import memory
from amaranth.lib.data import View

from sterna.hw.parts.memory_attributes import BLOCK_RAM, BLOCK_ROM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline

__all__ = ["read_block_rom", "read_ring"]

_BLOCK_BITS, _SMALL_BLOCK_BITS = 1 << 14, 1 << 12
"""Bits of a block, with words of a power of two of bits."""
_LUT_WORDS = 16
"""Most words of a ROM that takes one LUT per bit; it is left to the tool."""


def read_block_rom(
    m: Module, steps: Pipeline, name: str, words: Sequence[int], width: int, depth: int,
    address: Value, *, small: bool = False,
) -> Value:
    """Return the word at an address, two steps later: the memory and its output register.

    The memory is split into parts of the word width that a block has at this depth; otherwise the
    tool would stack blocks, with a multiplexer in front of the register. A ``small`` block has
    words of at least two bits and no parity bits.
    """
    if small:
        part_bits = max(_SMALL_BLOCK_BITS >> (depth - 1).bit_length(), 2)
    else:
        part_bits = max(_BLOCK_BITS >> (depth - 1).bit_length(), 1)
        if part_bits >= 8:      # a block then also has a parity bit per byte
            part_bits = part_bits // 8 * 9
    attributes = BLOCK_ROM if depth > _LUT_WORDS else {}
    parts = []
    for low in range(0, width, part_bits):
        bits = min(part_bits, width - low)
        m.submodules[f"{name}{low}"] = rom = memory.Memory(
            shape=unsigned(bits), depth=max(depth, 2),
            init=[word >> low & (1 << bits) - 1 for word in words], attrs=attributes)
        read = rom.read_port()
        m.d.comb += [read.addr.eq(address), read.en.eq(1)]
        parts.append(steps.register(read.data, f"{name}{low}_word"))
    return Cat(parts)


def read_ring(
    m: Module, steps: Pipeline, name: str, word: ValueLike, depth: int, fill: View, address: Value,
) -> Value:
    """Return the word at an address of a ring, two steps later.

    The caller gathers ``word`` from the parts of a ``fill``; it is written to the
    ``fill.address`` of its last part, one step after that part.
    """
    m.submodules[name] = ring = memory.Memory(
        shape=unsigned(len(Value.cast(word))), depth=depth, init=[],
        attrs=BLOCK_RAM | NEVER_COLLIDES)
    write, read = ring.write_port(), ring.read_port()
    m.d.comb += [
        write.addr.eq(steps.delay(fill.address, 1, f"{name}_address")),
        write.en.eq(steps.flags(fill.valid & fill.last, 1, f"{name}_filled")[-1]),
        write.data.eq(word), read.addr.eq(address), read.en.eq(1),
    ]
    return steps.register(read.data, f"{name}_word")
