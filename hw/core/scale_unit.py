"""Scales of the projections of a stage: the norm's scale times each matrix's mantissa."""

from __future__ import annotations

from amaranth.hdl import Array, Const, Module, Mux, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.plan.params import CoreParams
from sterna.hw.core.plan.program import MAX_SLOTS
from sterna.hw.core.plan.units import SCALE_HOLD, CoreUnits, scale_latency
from sterna.hw.parts.fixed_point import round_shift
from sterna.hw.parts.pipeline import Pipeline

__all__ = ["ScaleUnit"]


class ScaleUnit(wiring.Component):
    """``A = rs(V * K, combine_shift)``: ``sterna.model.quantized.integer.combine_scale``.

    One multiplier makes the scales of a stage one after the other. The first is known
    :attr:`latency` cycles after V was offered, the others in the cycles after it, which is
    soon enough: the sums of slot i are not used before those of slot i - 1. V is taken
    :attr:`hold` cycles after it was offered, when the last scale is made.

    A fits its width: ``combined_scale_max`` of :class:`~sterna.model.profile.NumericProfile`.

    Members
    -------
    norms : ``In(stream.Signature(norm.scale_layout))``
    mantissas : ``In(ArrayLayout(unsigned(mantissa_bits), 3))``, for each sequence
    clear, clear_sequence : ``In``
        Forget the scales of a sequence; the next V is for new ones. Its mantissas must be
        there two cycles before that V.
    scales : ``Out(ArrayLayout(unsigned(scale_bits), 3))``, for each sequence
    known : ``Out(1)``, for each sequence
    written, written_sequence, written_scale : ``Out``
        A scale, in the cycle in which it is stored.
    """

    hold = SCALE_HOLD

    def __init__(self, params: CoreParams) -> None:
        self.params = params
        self.latency = scale_latency(params)
        profile, norm = params.profile, CoreUnits(params).norm
        super().__init__({
            "norms": In(stream.Signature(norm.scale_layout)),
            "mantissas": In(ArrayLayout(unsigned(profile.mantissa_bits), MAX_SLOTS)).array(
                params.sequences),
            "clear": In(1),
            "clear_sequence": In(params.index_bits),
            "scales": Out(ArrayLayout(unsigned(profile.scale_bits), MAX_SLOTS)).array(
                params.sequences),
            "known": Out(1).array(params.sequences),
            "written": Out(1),
            "written_sequence": Out(params.index_bits),
            "written_scale": Out(unsigned(profile.scale_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        params, profile, norm = self.params, self.params.profile, self.norms.payload
        steps = Pipeline(m, Const(1))
        sequence = Signal(params.index_bits)
        if params.sequence_bits:
            with m.If(self.clear):
                m.d.sync += sequence.eq(self.clear_sequence)

        # V stands still until the last slot, so that it is an operand as it is. The other
        # operand is ready before V comes.
        slot = Signal(2)
        following = Signal(2)
        m.d.comb += [
            following.eq(slot),
            self.norms.ready.eq(slot == MAX_SLOTS - 1),
        ]
        with m.If(self.norms.valid):
            m.d.comb += following.eq(Mux(self.norms.ready, 0, slot + 1))
        m.d.sync += slot.eq(following)
        slots = range(MAX_SLOTS)
        mantissas = Array(Array(each[i] for i in slots) for each in self.mantissas)
        way = self.latency - 2
        mantissa = steps.register(mantissas[sequence][following], "mantissa")
        product = steps.register(
            steps.delay(norm.v, way, "v") * steps.delay(mantissa, way, "mantissa"), "product")
        slot_of_product = steps.delay(slot, 1 + way, "slot_of_product")
        multiplied = steps.flags(self.norms.valid, 1 + way, "multiplied")[-1]
        # The next sequence may be cleared while the last scales of this one are on their way.
        multiplied_sequence = steps.delay(
            sequence, way if params.sequence_bits else 0, "multiplied_sequence")

        scale = round_shift(product, profile.combine_shift)[:profile.scale_bits]
        m.d.comb += [
            self.written.eq(multiplied),
            self.written_sequence.eq(multiplied_sequence),
            self.written_scale.eq(scale),
        ]
        scales = Array(Array(each[i] for i in slots) for each in self.scales)
        with m.If(multiplied):
            m.d.sync += [
                scales[multiplied_sequence][slot_of_product].eq(scale),
                Array(self.known)[multiplied_sequence].eq(1),
            ]
        with m.If(self.clear):
            m.d.sync += Array(self.known)[self.clear_sequence].eq(0)
        return m
