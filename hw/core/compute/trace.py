"""The trace port: every intermediate vector of a core or network, in the cycle in which it moves.

The port consists of lanes, streams without a ready: valid words must be taken. Nothing waits for
the trace, so it does not change the cycles of a unit. Within a lane, the words of a sequence follow
the order of the stages (:func:`sterna.model.quantized.plan.plan`), which identifies the tensor of
each word. Idle sequences show nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Value
from amaranth.lib.data import ArrayLayout, StructLayout, View

from sterna.hw.core.compute.cells import cell_taps
from sterna.hw.core.compute.norm import act_layout, norm_taps, scale_layout
from sterna.hw.core.compute.post import result_layout, sum_tap
from sterna.hw.core.compute.vectors import element_layout
from sterna.hw.core.params.geometry import Geometry
from sterna.hw.emit.documents import field_bits
from sterna.hw.emit.payloads import Fields
from sterna.model.quantized.plan import StageKind

__all__ = ["Lane", "lanes_of", "show_taps", "trace_extra", "trace_layout", "trace_section"]


def trace_layout(params: Geometry) -> StructLayout:
    """The lanes.

    ``x``: words of the residual stream, a lane for each phase. ``q``: chunks of a quantised
    vector. ``maximum``, ``root``, ``scale``: scalars of a norm; ``r`` is invalid for an all-zero
    vector. ``a``: the scales of a stage, three after each norm, invalid for unused slots. ``acc``:
    dot products. ``z``: results, in each of their formats and unsaturated. ``mlgru`` and ``glu``:
    gates, candidate, state, output; ``silu(gate)``, product.
    """
    def lane(layout: StructLayout, *names: str) -> StructLayout:
        return params.tap_layout(**{name: layout[name].shape for name in names})

    result = result_layout(params)
    return StructLayout({
        "x": ArrayLayout(lane(element_layout(params), "y"), params.phases),
        "q": lane(act_layout(params), "q"),
        **{name: field.shape for name, field in norm_taps(params)},
        "a": lane(scale_layout(params), "scale"),
        "acc": sum_tap(params),
        "z": lane(result, *(name for name, _ in result if name != "tag")),
        **{name: field.shape for name, field in cell_taps(params)},
    })


@dataclass(frozen=True, slots=True)
class Lane:
    """Position of a lane in the trace port; the residual stream has ``x0`` and ``x1``."""

    name: str
    low: int
    width: int
    fields: Fields


def lanes_of(params: Geometry) -> list[Lane]:
    """The lanes in the order of their bits."""
    found: list[Lane] = []
    for name, part in trace_layout(params):
        is_array = isinstance(part.shape, ArrayLayout)
        shape = part.shape.elem_shape if is_array else part.shape
        fields = {each.name: each for each in field_bits(shape)}
        found += [Lane(f"{name}{index if is_array else ''}", part.offset + index * shape.size,
                       shape.size, fields)
                  for index in range(part.shape.length if is_array else 1)]
    return found


def trace_extra(params: Geometry) -> dict[str, Any]:
    """Manifest entry of the trace port, if there is one."""
    if not params.trace:
        return {}
    return {"trace": {
        lane.name: {"low": lane.low, "width": lane.width, "fields": [
            asdict(bits) for bits in lane.fields.values()]} for lane in lanes_of(params)}}


def trace_section(params: Geometry) -> str:
    """README section on the trace port, if there is one."""
    return _TRACE.format(width=trace_layout(params).size) if params.trace else ""


_TRACE = """\
## Trace

`taps` ({width} bits) shows every intermediate vector in the cycle in which it moves; it has no
`ready`. `params.json` gives, under `trace`, place and fields of every lane.
"""


def show_taps(m, path, taps, active, predicts):
    """Connect the trace port of a unit with a datapath. ``active``: sequences that run a token;
    ``predicts``: those that output their results."""
    params, norm, cells, post = path.params, path.norm, path.cells, path.post
    batch = params.batch
    # In a head stage, sequences that request no logits show nothing.
    runs = Cat(
        active[phase * batch:(phase + 1) * batch]
        & (predicts[phase * batch:(phase + 1) * batch]
           | (norm.stages[phase].kind != StageKind.HEAD).replicate(batch))
        for phase in range(params.phases))

    def show(shown: View, valid: Value, sequence: Value, among: Value, **values: Value):
        m.d.comb += [
            shown.sequence.eq(sequence),
            shown.valid.eq(valid & among.bit_select(shown.sequence, 1)),
            *(Value.cast(shown[name]).eq(Value.cast(value)) for name, value in values.items())]

    for phase, (elements, valid) in enumerate(path.vectors):
        # The stage is still the last one when a token begins.
        show(taps.x[phase], valid,
             params.sequence_of(Const(phase, 1), elements.sequence), active, y=elements.y)
    acts, scales = norm.acts, norm.scales
    show(taps.q, norm.acts_valid, params.sequence_of(acts.phase, acts.sequence), runs, q=acts.q)
    show(taps.a, norm.scales_valid, params.sequence_of(scales.phase, scales.sequence), runs,
         scale=scales.scale)
    results = post.results
    show(taps.z, post.results_valid, params.sequence_of(
        results.tag.phase, results.tag.sequence), runs,
        **{field: results[field] for field, _ in results.shape() if field != "tag"})
    for lanes in (norm.taps, *([cells.taps] if cells else [])):
        for name, _ in lanes.shape():
            lane = lanes[name]
            show(taps[name], lane.valid, lane.sequence, runs,
                 **{field: lane[field] for field, _ in lane.shape()
                    if field not in ("valid", "sequence")})
    tap = post.tap
    show(taps.acc, tap.valid, tap.sequence, runs, acc=tap.acc)
