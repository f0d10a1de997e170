"""From accumulators to fixed-point numbers."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Array, Module, Shape, Signal, signed, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.fixed_point import round_shift, saturate
from sterna.hw.pipeline import Pipeline
from sterna.model.checks import check_whole
from sterna.model.profile import FixedPoint, NumericProfile

__all__ = ["Requantise", "RequantiseParams"]


@dataclass(frozen=True, slots=True)
class RequantiseParams:
    """Widths of a requantiser.

    Parameters
    ----------
    sum_bits
        Signed bits of an accumulator.
    scale_bits
        Unsigned bits of the scale.
    bias_bits
        Signed bits of a bias.
    out_bits
        Signed bits of a result.
    shifts
        Right shifts to choose from, each 0 to 40; increasing.
    lanes
        Accumulators per beat.
    narrower
        Signed bits of further formats to which a result can be saturated instead.
    tag_bits
        Bits that travel with a beat.
    trace
        Whether results also come out unsaturated.

    Raises
    ------
    ValueError
        If a number is out of its range.

    >>> RequantiseParams(17, 16, 16, 16, shifts=(9, 12)).select_bits
    1
    """

    sum_bits: int
    scale_bits: int
    bias_bits: int
    out_bits: int
    shifts: tuple[int, ...]
    lanes: int = 1
    narrower: tuple[int, ...] = ()
    tag_bits: int = 0
    trace: bool = False

    def __post_init__(self) -> None:
        for bits in self.narrower:
            check_whole("narrower bits", bits, 2, self.out_bits)
        check_whole("tag_bits", self.tag_bits, 0, 64)
        for name in ("sum_bits", "scale_bits", "bias_bits", "out_bits"):
            check_whole(name, getattr(self, name), 2, 24)
        check_whole("lanes", self.lanes, 1, 65536)
        if not self.shifts:
            raise ValueError("shifts must name at least one shift")
        for shift in self.shifts:
            check_whole("every shift", shift, 0, NumericProfile.max_shift)
        if list(self.shifts) != sorted(set(self.shifts)):
            raise ValueError(f"shifts must increase, got {self.shifts}")

    @property
    def select_bits(self) -> int:
        """Bits of the index of a shift; none if there is one shift only."""
        return (len(self.shifts) - 1).bit_length()

    @property
    def latency(self) -> int:
        """Steps from ``accs`` to ``results``: product, shift, bias and saturation."""
        return 3

    @property
    def format_bits(self) -> int:
        """Bits of the index of a result's format; none if there is one only."""
        return len(self.narrower).bit_length()

    @property
    def full_bits(self) -> int:
        """Signed bits that hold every result unsaturated."""
        shifted = self.sum_bits + self.scale_bits + 1 - self.shifts[0]
        return max(shifted, self.bias_bits) + 1

    @property
    def acc_layout(self) -> StructLayout:
        """Payload of ``accs``."""
        fields: dict[str, Shape | ArrayLayout | int] = {
            "acc": ArrayLayout(signed(self.sum_bits), self.lanes),
            "bias": ArrayLayout(signed(self.bias_bits), self.lanes),
            "scale": unsigned(self.scale_bits),
        }
        if self.select_bits:
            fields["shift"] = unsigned(self.select_bits)
        if self.format_bits:
            fields["format"] = unsigned(self.format_bits)
        if self.tag_bits:
            fields["tag"] = unsigned(self.tag_bits)
        return StructLayout(fields)

    @property
    def result_layout(self) -> StructLayout:
        """Payload of ``results``."""
        fields: dict[str, Shape | ArrayLayout | int] = {
            "value": ArrayLayout(signed(self.out_bits), self.lanes)}
        if self.tag_bits:
            fields["tag"] = unsigned(self.tag_bits)
        if self.trace:
            fields["full"] = ArrayLayout(signed(self.full_bits), self.lanes)
        return StructLayout(fields)


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
        Accumulators per beat; they share everything but accumulator and bias.
    narrower
        Signed bits of further formats to which results can be saturated.
    tag_bits
        Bits that travel with a beat.
    trace
        Whether results also come out unsaturated.

    Members
    -------
    accs : ``In(stream.Signature(params.acc_layout))``
        ``acc`` and ``bias`` of each lane, ``scale`` and, where there is a choice, ``shift``:
        the index of a shift (past the last takes the last), and ``format``: 0 for
        ``out_bits``, i for ``narrower[i - 1]``. ``tag`` if there are any.
    results : ``Out(stream.Signature(params.result_layout))``
        ``value`` of each lane, ``tag``, and with ``trace`` ``full`` of each lane.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    def __init__(
        self, sum_bits: int, scale_bits: int, bias_bits: int, out_bits: int, *,
        shifts: tuple[int, ...], lanes: int = 1, narrower: tuple[int, ...] = (),
        tag_bits: int = 0, trace: bool = False,
    ) -> None:
        self.params = RequantiseParams(
            sum_bits, scale_bits, bias_bits, out_bits, tuple(shifts), lanes, tuple(narrower),
            tag_bits, trace)
        super().__init__({
            "accs": In(stream.Signature(self.params.acc_layout)),
            "results": Out(stream.Signature(self.params.result_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params, accs, results = self.params, self.accs.payload, self.results.payload
        formats = [FixedPoint(bits, 0) for bits in (params.out_bits, *params.narrower)]

        advance = Signal()
        steps = Pipeline(m, advance)
        m.d.comb += advance.eq(~self.results.valid | self.results.ready)
        m.d.comb += self.accs.ready.eq(advance)
        m.d.comb += self.results.valid.eq(
            steps.flags(self.accs.valid, params.latency, "filled")[-1])

        select = steps.register(accs.shift, "select") if params.select_bits else None
        which = steps.delay(accs.format, 2, "format") if params.format_bits else 0
        if params.tag_bits:
            m.d.comb += results.tag.eq(steps.delay(accs.tag, params.latency, "tag"))
        for lane in range(params.lanes):
            product = steps.register(accs.acc[lane] * accs.scale, f"product{lane}")
            choices = [round_shift(product, shift) for shift in params.shifts]
            rounded = choices[0] if select is None else Array(choices)[select]
            shifted = steps.register(rounded, f"shifted{lane}")
            bias = steps.delay(accs.bias[lane], 2, f"bias{lane}")
            full = shifted + bias
            saturated = Array([saturate(full, fmt) for fmt in formats])[which]
            result = steps.register(saturated, f"result{lane}")
            m.d.comb += results.value[lane].eq(result)
            if params.trace:
                m.d.comb += results.full[lane].eq(steps.register(full, f"full{lane}"))
        return m
