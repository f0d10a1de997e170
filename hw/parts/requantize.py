"""Requantisation of accumulators to fixed-point numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from amaranth.hdl import Array, Cat, Const, Module, Mux, Shape, Value, signed, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout, View
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import rounded_sum, with_rounding_bit
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["Requantize", "RequantizeParams"]


@dataclass(frozen=True, slots=True)
class RequantizeParams:
    """Widths of a requantiser.

    >>> RequantizeParams(17, 16, 16, 16, shifts=(9, 12)).select_bits
    1
    """

    sum_bits: int  # signed bits of an accumulator
    scale_bits: int  # unsigned bits of the scale
    bias_bits: int  # signed bits of a bias
    out_bits: int  # signed bits of a result
    # Right shifts to choose from, each 0 to 40; increasing. Constant shifts are wires, so a
    # model's few shifts cost a small multiplexer and no barrel shifter.
    shifts: tuple[int, ...]
    lanes: int = 1  # accumulators per beat; they share everything but accumulator and bias
    # signed bits of further formats; each result has a flag for fitting each of them
    narrower: tuple[int, ...] = ()
    tag_bits: int = 0  # bits of a tag that accompanies a beat
    trace: bool = False  # whether results are also output unsaturated

    latency: ClassVar[int] = 4
    """Cycles from ``accs`` to ``results``: operands, product, shift, bias and saturation."""

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
        """Bits of the index of a shift; 0 if there is only one."""
        return (len(self.shifts) - 1).bit_length()

    @property
    def full_bits(self) -> int:
        """Signed bits that hold every result unsaturated."""
        shifted = self.sum_bits + self.scale_bits + 1 - self.shifts[0]
        return max(shifted, self.bias_bits) + 1

    @property
    def kept_bits(self) -> int:
        """Signed bits kept of a shifted product: any product with more bits saturates.

        Biases and results have at most m bits, so a bias is at least ``-2^(m-1)``. A floor of
        ``2^m`` or more then gives a result of at least ``2^(m-1)``. One below ``-2^m``, rounded
        and added to a bias below ``2^(m-1)``, gives a result below ``-2^(m-1)``.
        """
        return max(self.bias_bits, self.out_bits) + 1

    @property
    def acc_layout(self) -> StructLayout:
        fields: dict[str, Shape | ArrayLayout | int] = {
            "acc": ArrayLayout(signed(self.sum_bits), self.lanes),
            "bias": ArrayLayout(signed(self.bias_bits), self.lanes),
            "scale": unsigned(self.scale_bits),
        }
        if self.select_bits:
            fields["shift"] = unsigned(self.select_bits)
        if self.tag_bits:
            fields["tag"] = unsigned(self.tag_bits)
        return StructLayout(fields)

    @property
    def result_layout(self) -> StructLayout:
        fields: dict[str, Shape | ArrayLayout | int] = {
            "value": ArrayLayout(signed(self.out_bits), self.lanes)}
        if self.narrower:
            fields["fits"] = ArrayLayout(unsigned(len(self.narrower)), self.lanes)
        if self.tag_bits:
            fields["tag"] = unsigned(self.tag_bits)
        if self.trace:
            fields["full"] = ArrayLayout(signed(self.full_bits), self.lanes)
        return StructLayout(fields)

    def narrowed(self, results: View, lane: int, bits: int) -> Value:
        """Return a result, out of a payload of ``results``, saturated to fewer bits.

        Saturating twice equals saturating to the narrower format. It takes one LUT per bit.
        """
        value = results.value[lane]
        if bits == self.out_bits:
            return value
        if bits not in self.narrower:
            raise ValueError(
                f"bits must be {self.out_bits} or one of narrower {self.narrower}, got {bits}")
        fits = results.fits[lane][self.narrower.index(bits)]
        bound = Cat((~value[-1]).replicate(bits - 1), value[-1])
        return Mux(fits, value[:bits], bound).as_signed()


class Requantize(wiring.Component):
    """``rs(acc * scale, shift) + bias``, saturated:
    ``sterna.model.quantized.integer.requantize``.

    One beat per cycle; results follow ``params.latency`` cycles after their beat, and never wait.
    Nothing can overflow: each value is as wide as its operands require, and a shifted product too
    large for ``params.kept_bits`` is marked as such.
    """

    def __init__(self, params: RequantizeParams) -> None:
        self.params = params
        super().__init__({
            # ``shift`` is an index into ``params.shifts``; beyond the last one it is the last.
            "accs": In(stream.Signature(params.acc_layout, always_ready=True)),
            "results": Out(stream.Signature(params.result_layout, always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        params, accs, results = self.params, self.accs.payload, self.results.payload
        steps = Pipeline(m, Const(1))
        m.d.comb += self.results.valid.eq(
            steps.flags(self.accs.valid, params.latency, "filled")[-1])
        if params.tag_bits:
            m.d.comb += results.tag.eq(steps.delay(accs.tag, params.latency, "tag"))

        scale = steps.register(accs.scale, "scale")
        select = steps.delay(accs.shift, 2, "select") if params.select_bits else 0
        for lane in range(params.lanes):
            acc = steps.register(accs.acc[lane], f"acc{lane}")
            product = steps.register(acc * scale, f"product{lane}")
            shifted = [with_rounding_bit(product, shift) for shift in params.shifts]
            kept = [_keep(value, params.kept_bits) for value in shifted]
            value = steps.register(Array(value for value, _ in kept)[select], f"kept{lane}")
            leaves = steps.register(Array(large for _, large in kept)[select], f"leaves{lane}")
            bias = steps.delay(accs.bias[lane], 3, f"bias{lane}")
            result, fits = self._saturate(rounded_sum(value, bias), leaves, value[-1])
            m.d.comb += results.value[lane].eq(steps.register(result, f"result{lane}"))
            if params.narrower:
                m.d.comb += results.fits[lane].eq(steps.register(fits, f"fits{lane}"))
            if params.trace:
                whole = steps.register(Array(shifted)[select], f"whole{lane}")
                m.d.comb += results.full[lane].eq(
                    steps.register(rounded_sum(whole, bias), f"full{lane}"))
        return m

    def _saturate(self, total, leaves, is_negative):
        """Return (a sum clamped to the widest format, whether it fits each narrower one).

        If it ``leaves`` every format, ``is_negative`` selects the bound.
        """
        bits = self.params.out_bits
        total = Cat(total, total[-1].replicate(max(bits - len(total), 0)))
        # It fits a width if all bits from its sign bit up are equal.
        unequal = total[:-1] ^ total[-1].replicate(len(total) - 1)
        fits, *fits_narrower = (
            ~(unequal[width - 1:].any() | leaves) for width in (bits, *self.params.narrower))
        low = Mux(leaves, is_negative, total[-1])
        # The smallest number is the largest with all bits inverted.
        bound = Cat((~low).replicate(bits - 1), low)
        return Mux(fits, total[:bits], bound).as_signed(), Cat(fits_narrower)


def _keep(rounded, bits):
    """Return (a shifted product in ``bits`` and its rounding bit, whether it needs more)."""
    if len(rounded) <= bits + 1:
        return rounded, Const(0)
    top = rounded[bits:]
    # The sign is always kept.
    return Cat(rounded[:bits], rounded[-1]).as_signed(), ~(top.all() | ~top.any())
