"""Rounding and saturation of Amaranth values, without an intermediate that could overflow.

They build what ``rs`` and ``saturate`` of :mod:`sterna.model.quantized.integer` define; the tests
of every unit hold them to it.
"""

from __future__ import annotations

from amaranth.hdl import Const, Mux, Value, signed

from sterna.model.profile import FixedPoint

__all__ = ["round_shift", "saturate"]


def round_shift(value: Value, shift: int) -> Value:
    """Shift right by a constant, rounding half up. The result is ``shift - 1`` bits narrower.

    The sum with one half has a bit more than ``value``, so nothing is lost before the shift.
    """
    if shift == 0:
        return value
    return (value + Const(1 << (shift - 1))).shift_right(shift)


def saturate(value: Value, fmt: FixedPoint) -> Value:
    """Clamp a signed value to a format; the result is at most ``fmt.bits`` wide.

    A value fits if all bits from the sign bit of the format up are equal.
    """
    if len(value) <= fmt.bits:
        return value
    top = value[fmt.bits - 1:]
    fits = top.all() | ~top.any()
    bound = Mux(value[-1], Const(fmt.min, signed(fmt.bits)), Const(fmt.max, signed(fmt.bits)))
    return Mux(fits, value[:fmt.bits].as_signed(), bound)
