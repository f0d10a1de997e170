"""Rounding shifts with a sum or a saturation behind them, in one adder."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Value, signed

from sterna.model.profile import FixedPoint

__all__ = ["rounded_sum", "saturated_shift", "with_rounding_bit"]


def with_rounding_bit(value: Value, shift: int) -> Value:
    """Return ``value`` shifted right by ``shift - 1``: the result of a shift, and below it
    the bit that rounds it up. Of a shift by nothing that bit is 0."""
    return value.shift_left(1) if shift == 0 else value.shift_right(shift - 1)


def rounded_sum(rounded: Value, addend: Value) -> Value:
    """Return ``rs(value, shift) + addend`` for ``rounded = with_rounding_bit(value, shift)``.

    Both are signed. ``rs`` adds the highest bit that is shifted out to the floor. With a one
    beside the addend, at the place of that bit, it becomes the carry of the sum: one adder in
    place of two in a row. The sum is wide enough for any operands.
    """
    return (rounded + Cat(Const(1), addend).as_signed()).shift_right(1)


def saturated_shift(value: Value, shift: int, fmt: FixedPoint) -> Value:
    """Return ``saturate(rs(value, shift), fmt)`` of a signed value.

    Whether the floor of the shift leaves the format shows before the sum that rounds it. That
    sum leaves it only if the floor is the largest number of the format: then it is negative,
    and the value is not. So a single LUT follows the adder, which is no wider than the format.
    """
    rounded = with_rounding_bit(value, shift)
    floor, up = rounded.shift_right(1), rounded[0]
    if len(floor) < fmt.bits:
        return floor.as_signed() + up
    total = (floor[:fmt.bits] + up)[:fmt.bits]
    negative, top = value[-1], floor[fmt.bits - 1:]
    leaves = ~(top.all() | ~top.any()) | (total[-1] & ~negative)
    bound = Mux(negative, Const(fmt.min, signed(fmt.bits)), Const(fmt.max, signed(fmt.bits)))
    return Mux(leaves, bound, total.as_signed())
