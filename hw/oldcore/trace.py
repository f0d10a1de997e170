"""The trace port: every intermediate vector of the core, in the cycle in which it moves.

The port is made of lanes, one for each tap number. A lane is a stream without a ready: its
consumer has to take what ``valid`` shows. Nothing waits for the trace, so a core with it
takes the same cycles as one without. Within a lane and a sequence words come in the order of
the program (:mod:`sterna.hw.oldcore.plan.core_params`), which tells the tensor a word belongs to.
"""

from __future__ import annotations

import enum

from amaranth.hdl import Const, Value, unsigned
from amaranth.lib.data import ArrayLayout, StructLayout

from sterna.hw.oldcore.plan.core_units import CoreUnits
from sterna.hw.oldcore.plan.image import CoreImage
from sterna.hw.oldcore.post_processor import result_layout

__all__ = ["Tap", "show_taps", "trace_layout"]


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
    params, units = image.params, CoreUnits(image.params)

    def lane(layout, *names):
        fields = {name: layout[name].shape for name in names}
        return StructLayout({"valid": 1, "sequence": params.index_bits, **fields})

    sums = StructLayout({"acc": params.mac.sum_layout})
    scale = StructLayout({"a": unsigned(params.profile.scale_bits)})
    results = result_layout(image)
    return StructLayout({
        "x": ArrayLayout(lane(units.residual.word_layout, "x"), params.sequences),
        "q": lane(units.norm.act_layout, "q"),
        "norm": lane(units.norm.scale_layout, "m", "r", "s", "n", "v"),
        "a": lane(scale, "a"),
        "acc": lane(sums, "acc"),
        "z": lane(results, "value", "full"),
        "mlgru": lane(units.mlgru.state_layout, "f", "g", "c", "h", "o"),
        "glu": lane(units.glu.product_layout, "silu", "p"),
        "beat": lane(sums),
    })


def show_taps(m, core, array, issuer, scales):
    """Connect the trace port of a core: show every vector in the cycle in which it moves."""
    taps, norm = core.taps, core.norm
    post, mlgru, glu = core.post, core.mlgru, core.glu

    def show(shown, moved, sequence, values):
        m.d.comb += [shown.valid.eq(moved), shown.sequence.eq(sequence)]
        for field, value in values.items():
            m.d.comb += Value.cast(shown[field]).eq(Value.cast(value))

    def moved(port):
        return port.valid & port.ready

    def sequence(payload):
        return payload.sequence if core.params.sequence_bits else Const(0)

    for index, residual in enumerate(core.residuals):
        show(taps.x[index], moved(residual.words), index,
             {"x": residual.words.payload.x})
    acts, norms = norm.acts.payload, norm.scales.payload
    show(taps.q, moved(norm.acts), sequence(acts), {"q": acts.q})
    show(taps.norm, moved(norm.scales), sequence(norms),
         {part: norms[part] for part in ("m", "r", "s", "n", "v")})
    show(taps.a, scales.written, scales.written_sequence,
         {"a": scales.written_scale})
    show(taps.acc, post.scaled, post.scaled_sequence, {"acc": post.sums.payload})
    results = post.results.payload
    show(taps.z, moved(post.results), results.tag.sequence,
         {"value": results.value, "full": results.full})
    states, products = mlgru.states.payload, glu.products.payload
    show(taps.mlgru, moved(mlgru.states), sequence(states),
         {part: states[part] for part in ("f", "g", "c", "h", "o")})
    show(taps.glu, moved(glu.products), sequence(products),
         {"silu": products.silu, "p": products.p})
    show(taps.beat, moved(array.beats), issuer.beat_sequence, {})
