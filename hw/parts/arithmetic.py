"""Sums, products and shifts of Amaranth values; no intermediate value can overflow.

They implement ``rs`` and ``saturate`` of :mod:`sterna.model.quantized.integer`, as the tests of
every unit verify.
"""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Cat, Const, Mux, Value, signed

from sterna.model.profile import FixedPoint
from sterna.model.quantized.integer import rs

__all__ = [
    "constant_product", "look_up", "round_shift", "rounded_sum", "saturate", "saturated_shift",
    "signed_digits", "square_of", "square_parts", "with_rounding_bit"]


def round_shift(value: Value, shift: int) -> Value:
    """Shift right by a constant, rounding half up. The result is ``shift - 1`` bits narrower.

    The sum with one half has one bit more than ``value``, so nothing is lost before the shift.
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


def with_rounding_bit(value: Value, shift: int) -> Value:
    """Return ``value`` shifted right by ``shift - 1``: the result of a shift, and below it the
    bit that rounds it up, which is 0 for a shift of 0."""
    return value.shift_left(1) if shift == 0 else value.shift_right(shift - 1)


def rounded_sum(rounded: Value, addend: Value) -> Value:
    """Return ``rs(value, shift) + addend`` for ``rounded = with_rounding_bit(value, shift)``.

    Both are signed. ``rs`` adds the highest bit shifted out to the floor. A one appended to the
    addend, at the position of that bit, makes it the carry of the sum: one adder instead of two in
    series. The sum is wide enough for any operands.
    """
    return (rounded + Cat(Const(1), addend).as_signed()).shift_right(1)


def saturated_shift(
    value: Value, shift: int, fmt: FixedPoint, largest: int | None = None,
) -> Value:
    """Return ``saturate(rs(value, shift), fmt)`` of a signed value with a magnitude of at most
    ``largest``, if given.

    Whether the floor of the shift exceeds the format is known before the sum that rounds it. That
    sum exceeds it only if the floor is the largest number of the format: then it is negative, and
    the value is not. So a single LUT follows the adder, which is no wider than the format.
    """
    rounded = with_rounding_bit(value, shift)
    floor, up = rounded.shift_right(1), rounded[0]
    if len(floor) < fmt.bits:
        return floor.as_signed() + up
    total = (floor[:fmt.bits] + up)[:fmt.bits]
    if largest is not None and rs(largest, shift) <= fmt.max:
        return total.as_signed()
    negative, top = value[-1], floor[fmt.bits - 1:]
    leaves = ~(top.all() | ~top.any()) | (total[-1] & ~negative)
    bound = Mux(negative, Const(fmt.min, signed(fmt.bits)), Const(fmt.max, signed(fmt.bits)))
    return Mux(leaves, bound, total.as_signed())


def signed_digits(factor: int) -> list[tuple[int, int]]:
    """Return the fewest ``(sign, shift)`` with ``factor = sum(sign << shift)``.

    This is the non-adjacent form, lowest shift first; 0 has no digits.

    >>> signed_digits(15)
    [(-1, 0), (1, 4)]
    """
    digits, shift = [], 0
    while factor:
        if factor & 1:
            sign = 2 - (factor & 3)      # 1 or -1, to make the next bit 0
            digits.append((sign, shift))
            factor -= sign
        factor >>= 1
        shift += 1
    return digits


def constant_product(value: Value, factor: int) -> Value:
    """Return an unsigned value of at least one bit times a constant of at least 1.

    A power of two takes only wires; other factors take a sum or difference per further digit, in
    series, without a register.
    """
    if factor < 1:
        raise ValueError(f"factor must be at least 1, got {factor}")
    # The highest digit of a positive number is positive, and so is every leading run of digits:
    # no partial sum is negative, and each may be truncated to the bits of its largest value.
    largest = (1 << len(value)) - 1
    digits = signed_digits(factor)[::-1]
    total, part, place = value, 1, digits[0][1]
    for sign, shift in digits[1:]:
        moved = total.shift_left(place - shift)
        part = (part << (place - shift)) + sign
        total = moved + value if sign > 0 else moved - value
        total = total[:(largest * part).bit_length()]
        place = shift
    return total.shift_left(place)


def look_up(index: Value, function: Callable[[int], int], bits: int | None = None) -> Value:
    """Return a function of an unsigned index, in its low ``bits`` bits or as many as it needs.

    It is a tree of multiplexers over constants, which no tool infers as a memory.
    """
    entries = [function(value) for value in range(1 << len(index))]
    bits = bits or max(max(entries).bit_length(), 1)
    table: list[Value] = [Const(entry & (1 << bits) - 1, bits) for entry in entries]
    for bit in index:
        table = [Mux(bit, odd, even) for even, odd in zip(table[::2], table[1::2], strict=True)]
    return table[0]


def square_of(parts: tuple[Value, Value]) -> Value:
    """Return ``value * value``, 15 bits, from the :func:`square_parts` of the value."""
    squares, cross = parts
    return (squares + (cross << 5))[:15]


def square_parts(value: Value) -> tuple[Value, Value]:
    """Return two numbers ``(s, c)`` of a signed 8-bit value such that its square is ``s + 32 c``.

    LUTs compute them; a multiplier block would be wasted on an 8-bit square. With
    ``value = 16 h + l`` it is ``(h*h << 8 | l*l) + (h*l << 5)``: the first two do not overlap, and
    all are functions of a few bits.
    """
    low, high = value[:4], value[4:8].as_signed()
    squares = Cat(look_up(low, lambda bits: bits * bits, 8),
                  look_up(high, lambda bits: (bits - (bits >> 3 << 4)) ** 2, 7))
    # h*l in two parts, for the lower and the upper two bits of h.
    lower = look_up(Cat(low, high[:2]), lambda bits: (bits & 15) * (bits >> 4), 6)
    upper = look_up(
        Cat(low, high[2:]), lambda bits: (bits & 15) * ((bits >> 4) - (bits >> 5 << 2)), 7)
    return squares, (upper.as_signed() << 2) + lower
