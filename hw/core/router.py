"""Sending results where they belong, and gathering those that belong together."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.bypass_fifo import BypassFifo
from sterna.hw.core.plan.image import CoreImage
from sterna.hw.core.plan.program import StageKind
from sterna.hw.core.plan.units import CoreUnits
from sterna.hw.core.post_processor import requantize_params, result_layout

__all__ = ["ResultRouter"]


class ResultRouter(wiring.Component):
    """Takes words of results, ``rows`` channels each, and feeds the unit of their stage.

    f and c wait for g, gate waits for up: the unit gets a beat in the cycle in which the
    last of them arrives. All units are always ready. Logits that leave the core wait in a
    queue, and ``room`` tells whether more of them may be made; a sampler alone never waits,
    for it has chosen a token before the next vector begins.

    Parameters
    ----------
    image
        Gives the widths.

    Members
    -------
    results : ``In(stream.Signature(result_layout(image), always_ready=True))``
    preacts : ``Out(stream.Signature(mlgru.preact_layout))``
        To the MLGRU unit.
    gates : ``Out(stream.Signature(glu.preact_layout))``
        To the GLU unit.
    updates : ``Out(stream.Signature(residual.update_layout))``, for each sequence
        To the residual stream.
    logits : ``Out(stream.Signature(...))``, for each sequence
        ``logits`` of ``rows`` tokens, and ``last``.
    room : ``Out(1)``, for each sequence
        There is room for all logits on the way, and for two words more.
    """

    def __init__(self, image: CoreImage) -> None:
        self.params = params = image.params
        self._units = units = CoreUnits(params)
        self._numbers = requantize_params(image)
        logit = signed(params.profile.logit.bits)
        self.logit_layout = StructLayout({"logits": ArrayLayout(logit, params.rows), "last": 1})

        super().__init__({
            "results": In(stream.Signature(result_layout(image), always_ready=True)),
            "preacts": Out(stream.Signature(units.mlgru.preact_layout)),
            "gates": Out(stream.Signature(units.glu.preact_layout)),
            "updates": Out(stream.Signature(units.residual.update_layout)).array(params.sequences),
            "logits": Out(stream.Signature(self.logit_layout)).array(params.sequences),
            "room": Out(1).array(params.sequences),
        })

    def elaborate(self, platform):
        m = Module()
        params, profile, numbers = self.params, self.params.profile, self._numbers
        result, tag = self.results.payload.result, self.results.payload.tag
        queues = [self._queue(m, sequence) for sequence in range(params.sequences)]

        # Pre-activations that wait, and those that have just come.
        first, second, third = (
            Signal(ArrayLayout(signed(profile.z.bits), params.rows), name=name, reset_less=True)
            for name in ("first", "second", "third"))
        preacts, gates = self.preacts.payload, self.gates.payload
        for row in range(params.rows):
            m.d.comb += [
                third[row].eq(numbers.narrowed(result, row, profile.z.bits)),
                preacts.f[row].eq(first[row]),
                preacts.c[row].eq(second[row]),
                preacts.g[row].eq(third[row]),
                gates.gate[row].eq(first[row]),
                gates.up[row].eq(third[row]),
            ]
            for sequence, queue in enumerate(queues):
                m.d.comb += [
                    self.updates[sequence].payload.y[row].eq(
                        numbers.narrowed(result, row, profile.x.bits + 1)),
                    queue.payload.logits[row].eq(
                        numbers.narrowed(result, row, profile.logit.bits)),
                ]
        m.d.comb += [preacts.start.eq(tag.start), gates.last.eq(tag.last)]
        if params.sequence_bits:
            m.d.comb += [preacts.sequence.eq(tag.sequence), gates.sequence.eq(tag.sequence)]
        for queue in queues:
            m.d.comb += queue.payload.last.eq(tag.last)

        def is_for(kind, slot=None):
            here = self.results.valid & (tag.kind == kind if kind else ~tag.kind.any())
            return here if slot is None else here & (tag.slot == slot)

        m.d.comb += [
            self.preacts.valid.eq(is_for(StageKind.MLGRU, 2)),
            self.gates.valid.eq(is_for(StageKind.GLU, 1)),
        ]
        for sequence, queue in enumerate(queues):
            ours = tag.sequence == sequence
            m.d.comb += [
                self.updates[sequence].valid.eq(is_for(StageKind.RESIDUAL) & ours),
                queue.valid.eq(is_for(StageKind.HEAD) & ours),
            ]
        # They wait for results of their own stage only, and what comes in between does not
        # matter.
        with m.If(self.results.valid & ~tag.slot.any()):
            m.d.sync += first.eq(third)
        with m.If(self.results.valid & (tag.slot == 1)):
            m.d.sync += second.eq(third)
        return m

    def _queue(self, m, sequence):
        """Make the queue of the logits of a sequence, if they need one; return its input."""
        logits = self.logits[sequence]
        units = self._units
        if not units.waiting_logits:
            m.d.comb += self.room[sequence].eq(1)
            return logits
        m.submodules[f"logits{sequence}"] = queue = BypassFifo(
            self.logit_layout, depth=units.waiting_logits)
        held = Signal(range(units.waiting_logits + 1))
        came = queue.incoming.valid
        went = queue.outgoing.valid & queue.outgoing.ready
        following = Signal.like(held)
        m.d.comb += following.eq(held + came - went)
        m.d.sync += [
            held.eq(following),
            self.room[sequence].eq(held <= units.waiting_logits - units.logits_on_the_way)]
        wiring.connect(m, queue.outgoing, wiring.flipped(logits))
        return queue.incoming
