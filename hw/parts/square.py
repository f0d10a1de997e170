"""The square of a small number in LUTs."""

from __future__ import annotations

from amaranth.hdl import Cat, Value

from sterna.hw.parts.digits import look_up

__all__ = ["square_of", "square_parts"]


def square_of(parts: tuple[Value, Value]) -> Value:
    """Return ``value * value``, 15 bits, from the :func:`square_parts` of the value."""
    squares, cross = parts
    return (squares + (cross << 5))[:15]


def square_parts(value: Value) -> tuple[Value, Value]:
    """Return two numbers ``(s, c)`` of a signed 8-bit value, whose square is ``s + 32 c``.

    Tables of LUTs make them, without a multiplier block.

    Of an FPGA's multiplier blocks a square of 8 bits would take a whole one. With
    ``value = 16 h + l`` it is ``(h*h << 8 | l*l) + (h*l << 5)``: the first two do not
    overlap, and all are functions of a few bits.
    """
    low, high = value[:4], value[4:8].as_signed()
    squares = Cat(_table(low, 8, lambda bits: bits * bits),
                  _table(high, 7, lambda bits: (bits - (bits >> 3 << 4)) ** 2))
    # h*l in two parts, for the lower and the upper two bits of h.
    lower = _table(Cat(low, high[:2]), 6, lambda bits: (bits & 15) * (bits >> 4))
    upper = _table(
        Cat(low, high[2:]), 7, lambda bits: (bits & 15) * ((bits >> 4) - (bits >> 5 << 2)))
    return squares, (upper.as_signed() << 2) + lower


def _table(index: Value, bits: int, function) -> Value:
    """Return a function of ``index``, which counts as unsigned, in ``bits`` bits."""
    mask = (1 << bits) - 1
    return look_up(
        index.as_unsigned(), [function(i) & mask for i in range(1 << len(index))], bits)
