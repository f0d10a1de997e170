"""Products with a constant, made of shifts and sums instead of a multiplier."""

from __future__ import annotations

from amaranth.hdl import Value

__all__ = ["constant_product", "signed_digits"]


def signed_digits(factor: int) -> list[tuple[int, int]]:
    """Return the fewest ``(sign, shift)`` with ``factor = sum(sign << shift)``.

    This is the non-adjacent form, lowest shift first; 0 has no digits.

    >>> signed_digits(15)
    [(-1, 0), (1, 4)]
    """
    digits, shift = [], 0
    while factor:
        if factor & 1:
            sign = 2 - (factor & 3)      # 1 or -1: so that the next bit becomes 0
            digits.append((sign, shift))
            factor -= sign
        factor >>= 1
        shift += 1
    return digits


def constant_product(value: Value, factor: int) -> Value:
    """Return an unsigned value of at least a bit times a constant of at least 1.

    A power of two is wires; other factors take a sum or difference per further digit, one
    after the other, without a register.

    Raises
    ------
    ValueError
        If the factor is below 1.
    """
    if factor < 1:
        raise ValueError(f"factor must be at least 1, got {factor}")
    # The highest digit of a positive number is positive, and so is the number that every
    # run of digits from there on makes: no partial sum is negative, and each may be cut to
    # the bits of its largest value.
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
