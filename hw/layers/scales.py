"""The scales of a layer's matrices: the norm's scale times each mantissa."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.layers.post_params import PostParams
from sterna.hw.parts.arithmetic import round_shift
from sterna.hw.units.norm_params import NormParams

__all__ = ["LayerScales"]


class LayerScales(wiring.Component):
    """``A = rs(V * K, combine_shift)``: ``sterna.model.quantized.integer.combine_scale``.

    One multiplier makes the scales of a matrix's slots one after the other: they are known
    two cycles and one for each slot after V was offered. They are kept until ``done``; V of the
    next matrix waits until then.

    Members
    -------
    norms : ``In(stream.Signature(norm.scale_layout))``
    done : ``In(1)``
        The scales are not needed any more.
    scales : ``Out(ArrayLayout(unsigned(scale_bits), most_slots))``
    known : ``Out(1)``
    """

    def __init__(self, params: PostParams, norm: NormParams) -> None:
        self.params, self._norm = params, norm
        super().__init__({
            "norms": In(stream.Signature(norm.scale_layout)),
            "done": In(1),
            "scales": Out(ArrayLayout(unsigned(params.scale_bits), params.most_slots)),
            "known": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        params, profile = self.params, self._norm.profile
        matrices = len(params.slots)
        matrix = Signal(range(max(matrices, 2)))
        step = Signal(range(params.most_slots + 1))
        last_step = Array(len(slots) for slots in params.slots)[matrix]
        mantissa = Array(
            Array(slots[min(i, len(slots) - 1)].k for i in range(params.most_slots + 1))
            for slots in params.slots)[matrix][step]
        product = Signal(unsigned(self._norm.scale_bits + profile.mantissa_bits), reset_less=True)
        m.d.sync += product.eq(self.norms.payload.v * mantissa)
        m.d.comb += self.norms.ready.eq(~self.known & (step == last_step))
        with m.If(self.norms.valid & ~self.known):
            m.d.sync += step.eq(step + 1)
            for slot in range(params.most_slots):
                with m.If(step == slot + 1):
                    m.d.sync += self.scales[slot].eq(
                        round_shift(product, profile.combine_shift)[:params.scale_bits])
            with m.If(self.norms.ready):
                m.d.sync += [step.eq(0), self.known.eq(1)]
        with m.If(self.done):
            m.d.sync += [
                self.known.eq(0), matrix.eq(Mux(matrix == matrices - 1, 0, matrix + 1))]
        return m
