"""From accumulators to fixed-point numbers."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.fixed_point import round_shift, saturate
from sterna.hw.params import RequantiseParams
from sterna.hw.pipeline import Pipeline
from sterna.model.profile import FixedPoint

__all__ = ["Requantise"]


class Requantise(wiring.Component):
    """``rs(acc * scale, shift) + bias``, saturated: ``sterna.model.integer.requantise``.

    One beat per cycle; the pipeline moves as a whole and stops only while results wait.
    They appear ``params.latency`` steps after their beat. No intermediate value can
    overflow: each is as wide as its operands make it.

    Parameters
    ----------
    sum_bits, scale_bits, bias_bits, out_bits
        Widths of the signed accumulator, the unsigned scale, the signed bias and the
        signed result.
    shifts
        Right shifts to choose from, increasing. Constant shifts are wires, so a model's few
        shifts cost a small multiplexer and no barrel shifter.
    lanes
        Accumulators per beat; they share the scale and the shift.

    Members
    -------
    accs : ``In(stream.Signature(params.acc_layout))``
        ``acc`` and ``bias`` of each lane, ``scale`` and, if there are several shifts,
        ``shift``: the index of one of them. An index past the last takes the last.
    results : ``Out(stream.Signature(params.result_layout))``
        A result for each lane.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    def __init__(
        self, sum_bits: int, scale_bits: int, bias_bits: int, out_bits: int, *,
        shifts: tuple[int, ...], lanes: int = 1,
    ) -> None:
        self.params = RequantiseParams(
            sum_bits, scale_bits, bias_bits, out_bits, tuple(shifts), lanes)
        super().__init__({
            "accs": In(stream.Signature(self.params.acc_layout)),
            "results": Out(stream.Signature(self.params.result_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params, accs = self.params, self.accs.payload
        fmt = FixedPoint(params.out_bits, 0)

        advance = Signal()
        steps = Pipeline(m, advance)
        m.d.comb += advance.eq(~self.results.valid | self.results.ready)
        m.d.comb += self.accs.ready.eq(advance)
        m.d.comb += self.results.valid.eq(
            steps.flags(self.accs.valid, params.latency, "filled")[-1])

        select = steps.register(accs.shift, "select") if params.select_bits else None
        for lane in range(params.lanes):
            product = steps.register(accs.acc[lane] * accs.scale, f"product{lane}")
            choices = [round_shift(product, shift) for shift in params.shifts]
            rounded = choices[0] if select is None else Array(choices)[select]
            shifted = steps.register(rounded, f"shifted{lane}")
            bias = steps.delay(accs.bias[lane], 2, f"bias{lane}")
            result = saturate(shifted + bias, fmt)
            m.d.comb += self.results.payload[lane].eq(steps.register(result, f"result{lane}"))
        return m
