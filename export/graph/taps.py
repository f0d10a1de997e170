"""Tensor names of the traced graph: those of the integer reference, some of them merged.

Projections that read the same quantised vector are one matrix in the graph. Their tensors
lie side by side on the last axis: ``layer0.mlgru.fcg.acc`` holds ``layer0.mlgru.f.acc``,
``layer0.mlgru.c.acc`` and ``layer0.mlgru.g.acc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

__all__ = ["MERGED", "TapSource", "tap_sources", "with_taps"]

MERGED = {"fcg": ("f", "c", "g"), "gate_up": ("gate", "up")}
"""Name of a merged projection, and its parts in order."""


@dataclass(frozen=True, slots=True)
class TapSource:
    """Where a tensor of the integer reference, a tap, lies in the graph.

    It is one of ``parts`` equal parts of the last axis of ``value``.
    """

    tap: str
    value: str
    part: int = 0
    parts: int = 1

    def take(self, value: np.ndarray) -> np.ndarray:
        """Cut the tensor out of the graph's value; int64, as the reference has it."""
        width = value.shape[-1] // self.parts
        start = self.part * width
        # The graph repeats a projection's one output scale over its rows.
        stop = start + (1 if self.tap.endswith(".a") else width)
        return value[..., start:stop].astype(np.int64)


def tap_sources(proto: onnx.ModelProto) -> dict[str, TapSource]:
    """Find the reference's tensors in an exact graph, in the order of computation."""
    sources = {}
    for value in proto.graph.value_info:
        at, _, tensor = value.name.rpartition(".")
        layer, _, group = at.rpartition(".")
        members = MERGED.get(group, ())
        for part, member in enumerate(members):
            tap = f"{layer}.{member}.{tensor}"
            sources[tap] = TapSource(tap, value.name, part, len(members))
        if not members:
            sources[value.name] = TapSource(value.name, value.name)
    return sources


def with_taps(
    proto: onnx.ModelProto, names: Sequence[str] | None = None,
) -> tuple[onnx.ModelProto, list[TapSource]]:
    """Make inner tensors of an exact graph outputs of a copy of it: ``names``, or with None all.

    Returns the copy, and where each tensor lies, in the order of computation. The added outputs
    are float64 ``[batch, width]`` or ``[length, batch, width]``. Raises ValueError if the graph has
    no tensor of one of the names.
    """
    known = tap_sources(proto)
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(
            f"the graph has no tensor called {unknown[0]!r}; its tensors have names "
            f"like {next(iter(known))!r} and {list(known)[-1]!r}")
    sources = [source for tap, source in known.items() if names is None or tap in names]
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    values = {value.name: value for value in proto.graph.value_info}
    added = dict.fromkeys(source.value for source in sources)
    copy.graph.output.extend(values[name] for name in added)
    del copy.graph.value_info[:]
    copy.graph.value_info.extend(
        value for name, value in values.items() if name not in added)
    return copy, sources
