"""Bits of memory of a core by what they hold."""

from __future__ import annotations

import re
from collections.abc import Iterator

from amaranth.hdl import Fragment, MemoryInstance, Shape

from sterna.hw.core.core import Core
from sterna.hw.core.core_image import CoreImage
from sterna.hw.core.core_params import CoreParams
from sterna.model.config import ModelConfig

__all__ = ["memory_bits"]

_HELD = {
    "weights": "products cluster weights", "headers": "post headers", "stages": "^stages|plan",
    "embedding": "embedder", "states": "cells states", "residual vectors": "^residual",
    "vectors to be normalised": "^vectors store", "activations": "products cluster acts",
    "logits": "sampler logits", "tables": "norm|rom$", "queues": "queue|tags|products kept",
    "others": ""}
"""A pattern for the names of the memories, without digits; the first that fits counts."""


def memory_bits(params: CoreParams, config: ModelConfig) -> dict[str, int]:
    """Bits of the memories of a core as it is elaborated: what a model fills depends on the limits
    alone. Of weights and headers that come through a port, those that are read ahead."""
    core = Core(CoreImage(params, [0], [0], [0], config, [0]))
    bits = dict.fromkeys(_HELD, 0)
    for name, size in _memories(Fragment.get(core, None), ""):
        held = next(held for held, pattern in _HELD.items()
                    if re.search(pattern, re.sub(r"\d", "", name).strip()))
        bits[held] += size
    return bits


def _memories(fragment: Fragment, name: str) -> Iterator[tuple[str, int]]:
    if isinstance(fragment, MemoryInstance):
        data = fragment._data
        yield name, data.depth * Shape.cast(data.shape).width
    for part, part_name, _ in fragment.subfragments:
        yield from _memories(part, f"{name} {part_name}")
