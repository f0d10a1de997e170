"""Sending results where they belong, and gathering those that belong together."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.params import CoreParams
from sterna.hw.core.program import StageKind
from sterna.hw.glu_unit import GluParams
from sterna.hw.residual_add import ResidualParams

__all__ = ["ResultRouter"]


class ResultRouter(wiring.Component):
    """Takes words of results, ``rows`` channels each, and feeds the unit of their stage.

    f and c wait for g, gate waits for up: the unit gets a beat in the cycle in which the
    last of them arrives.

    Parameters
    ----------
    params
        Geometry of the core.
    result_layout
        Payload of ``results``.
    glu, residual
        Geometry of the units.

    Members
    -------
    results : ``In(stream.Signature(result_layout))``
    preacts : ``Out(stream.Signature(params.mlgru.preact_layout))``
        To the MLGRU unit.
    gates : ``Out(stream.Signature(glu.preact_layout))``
        To the GLU unit.
    updates : ``Out(stream.Signature(residual.update_layout))``, for each sequence
        To the residual stream.
    logits : ``Out(stream.Signature(...))``, for each sequence
        ``logits`` of ``rows`` tokens, and ``last``.
    """

    def __init__(
        self, params: CoreParams, result_layout: StructLayout, glu: GluParams,
        residual: ResidualParams,
    ) -> None:
        self.params = params
        logit = signed(params.profile.logit.bits)
        self.logit_layout = StructLayout({"logits": ArrayLayout(logit, params.rows), "last": 1})
        super().__init__({
            "results": In(stream.Signature(result_layout)),
            "preacts": Out(stream.Signature(params.mlgru.preact_layout)),
            "gates": Out(stream.Signature(glu.preact_layout)),
            "updates": Out(stream.Signature(residual.update_layout)).array(params.streams),
            "logits": Out(stream.Signature(self.logit_layout)).array(params.streams),
        })

    def elaborate(self, platform):
        m = Module()
        params, profile = self.params, self.params.profile
        value, tag = self.results.payload.value, self.results.payload.tag
        z = ArrayLayout(signed(profile.z.bits), params.rows)
        first, second = Signal(z), Signal(z)

        # A result is as wide as the widest format; its own has already been applied.
        preacts, gates = self.preacts.payload, self.gates.payload
        for row in range(params.rows):
            m.d.comb += [
                preacts.f[row].eq(first[row]),
                preacts.c[row].eq(second[row]),
                preacts.g[row].eq(value[row]),
                gates.gate[row].eq(first[row]),
                gates.up[row].eq(value[row]),
            ]
            for sequence in range(params.streams):
                m.d.comb += [
                    self.updates[sequence].payload.y[row].eq(value[row]),
                    self.logits[sequence].payload.logits[row].eq(value[row]),
                ]
        m.d.comb += [preacts.start.eq(tag.start), gates.last.eq(tag.last)]
        if params.sequence_bits:
            m.d.comb += [preacts.sequence.eq(tag.sequence), gates.sequence.eq(tag.sequence)]
        for logits in self.logits:
            m.d.comb += logits.payload.last.eq(tag.last)

        with m.Switch(tag.kind):
            with m.Case(StageKind.MLGRU):
                with m.If(tag.slot == 2):
                    m.d.comb += [
                        self.preacts.valid.eq(self.results.valid),
                        self.results.ready.eq(self.preacts.ready)]
                with m.Else():
                    m.d.comb += self.results.ready.eq(1)
            with m.Case(StageKind.GLU):
                with m.If(tag.slot == 1):
                    m.d.comb += [
                        self.gates.valid.eq(self.results.valid),
                        self.results.ready.eq(self.gates.ready)]
                with m.Else():
                    m.d.comb += self.results.ready.eq(1)
            for kind, streams in (
                (StageKind.RESIDUAL, self.updates), (StageKind.HEAD, self.logits),
            ):
                with m.Case(kind):
                    for sequence, port in enumerate(streams):
                        with m.If(tag.sequence == sequence):
                            m.d.comb += [
                                port.valid.eq(self.results.valid),
                                self.results.ready.eq(port.ready)]

        with m.If(self.results.valid):
            for row in range(params.rows):
                with m.If(~tag.slot.any()):
                    m.d.sync += first[row].eq(value[row])
                with m.If(tag.slot == 1):
                    m.d.sync += second[row].eq(value[row])
        return m
