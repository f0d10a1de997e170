"""The memories of an elaborated core, by contents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from amaranth.hdl import Fragment, MemoryInstance, Shape

from sterna.hw.core.compute.core import Core
from sterna.hw.core.image.core_image import CoreImage
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.emit.verilog import contents_at_once
from sterna.hw.parts.memory_attributes import BLOCK_RAM
from sterna.hw.units.mac.array_style import ArrayStyle

__all__ = ["CoreMemory", "core_memories", "memory_bits"]

_HELD = {
    "weights": "products cluster weights", "headers": "post headers", "stages": "^stages|plan",
    "embedding": "embedder", "states": "cells states", "residual vectors": "^residual",
    "vectors to be normalised": "^vectors store", "activations": "products cluster acts",
    "logits": "sampler logits", "tables": "norm|rom$", "queues": "queue|tags|products kept",
    "others": ""}
"""Patterns for the names of the memories, without digits; the first match counts."""


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """A memory: contents, words, bits per word, and whether it requests block RAM."""

    held: str
    depth: int
    width: int
    is_block: bool


@lru_cache(maxsize=8)
def core_memories(params: CoreParams) -> tuple[CoreMemory, ...]:
    """Every memory of a core; those that a model fills depend on the limits alone. With a port,
    weights and headers are only those prefetched."""
    # The style of the array changes no memory, and plain rows elaborate in half the time.
    params = replace(params, style=ArrayStyle.GENERIC)
    core = Core(CoreImage(params, [0], [0], [0], (), [[0]], 0))
    with contents_at_once():
        return tuple(_memories(Fragment.get(core, None), ""))


def memory_bits(params: CoreParams) -> dict[str, int]:
    """Bits of the memories of a core by contents."""
    bits = dict.fromkeys(_HELD, 0)
    for each in core_memories(params):
        bits[each.held] += each.depth * each.width
    return bits


def _memories(fragment: Fragment, name: str) -> Iterator[CoreMemory]:
    if isinstance(fragment, MemoryInstance):
        data = fragment._data
        held = next(held for held, pattern in _HELD.items()
                    if re.search(pattern, re.sub(r"\d", "", name).strip()))
        yield CoreMemory(held, data.depth, Shape.cast(data.shape).width,
                         fragment._attrs.get("ram_style") == BLOCK_RAM["ram_style"])
    for part, part_name, _ in fragment.subfragments:
        yield from _memories(part, f"{name} {part_name}")
