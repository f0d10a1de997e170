"""The trace port: every intermediate vector of the core, in the cycle in which it moves.

The port is made of lanes, one for each tap number. A lane is a stream without a ready: its
consumer has to take what ``valid`` shows. Nothing waits for the trace, so a core with it
takes the same cycles as one without. Within a lane and a sequence words come in the order of
the program (:mod:`sterna.hw.core.program`), which tells the tensor a word belongs to.
"""

from __future__ import annotations

import enum

from amaranth.hdl import unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.core.image import CoreImage
from sterna.hw.core.post_processor import result_layout
from sterna.hw.core.units import CoreUnits

__all__ = ["Tap", "trace_layout"]


class Tap(enum.IntEnum):
    """Tap numbers: what the lanes of the trace port show, lowest bits first."""

    X = 0
    """Words of the residual stream, a lane for each sequence."""
    Q = 1
    """Chunks of a quantised vector."""
    NORM = 2
    """Scalars of a norm: m, r, s, n, v."""
    A = 3
    """Scales of a stage, three after each norm; those of unused slots mean nothing."""
    ACC = 4
    """Sums of the array."""
    Z = 5
    """Results: as they go on, and unsaturated."""
    MLGRU = 6
    """Forget gate, output gate, candidate, state and output."""
    GLU = 7
    """silu(gate) and product."""
    BEAT = 8
    """A beat was taken by the array (no data)."""


def trace_layout(image: CoreImage) -> StructLayout:
    """Return the layout of the trace port of a core."""
    params, units = image.params, CoreUnits(image.params)

    def lane(layout, *names):
        fields = {name: layout[name].shape for name in names}
        return StructLayout({"valid": 1, "sequence": params.index_bits, **fields})

    sums = StructLayout({"acc": params.mac.sum_layout})
    scale = StructLayout({"a": unsigned(params.profile.scale_bits)})
    results = result_layout(image)
    return StructLayout({
        "x": ArrayLayout(lane(units.residual.word_layout, "x"), params.streams),
        "q": lane(units.norm.act_layout, "q"),
        "norm": lane(units.norm.scale_layout, "m", "r", "s", "n", "v"),
        "a": lane(scale, "a"),
        "acc": lane(sums, "acc"),
        "z": lane(results, "value", "full"),
        "mlgru": lane(units.mlgru.state_layout, "f", "g", "c", "h", "o"),
        "glu": lane(units.glu.product_layout, "silu", "p"),
        "beat": lane(sums),
    })
