"""Multiplier-free quotients of a constant, a bit per cycle, and integer roots, several."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import look_up

__all__ = [
    "ConstantDivider", "ConstantDividerParams", "ConstantQuotient", "IntegerRoot",
    "IntegerRootParams"]


class ConstantQuotient(wiring.Component):
    """Ports of a divider of a constant by a number: digit by digit, or from tables."""

    def __init__(self, params: Any) -> None:
        self.params = params
        super().__init__({
            "start": In(1),
            "divisor": In(unsigned(params.divisor_bits)),       # read with start
            "quotient": Out(unsigned(params.quotient_bits)),
            # High in the first cycle of a result, params.latency cycles after start.
            "done": Out(1),
        })


def count_digits(m: Module, start: Value, done: Value, latency: int) -> Signal:
    """Return how many digits are left; set ``done`` ``latency`` cycles after the last ``start``.

    The first of these cycles loads, and may give the first digits; each of the others gives one.
    """
    left = Signal(range(max(latency, 2)))
    m.d.sync += done.eq(start if latency == 1 else (left == 1) & ~start)
    with m.If(start):
        m.d.sync += left.eq(latency - 1)
    with m.Elif(left.any()):
        m.d.sync += left.eq(left - 1)
    return left


@dataclass(frozen=True, slots=True)
class ConstantDividerParams:
    """Widths and cycle counts of a divider.

    >>> params = ConstantDividerParams(frac_bits=24, divisor_bits=16)
    >>> params.latency, params.quotient_bits
    (25, 31)
    """

    frac_bits: int  # bits by which `head` is shifted left before it is divided
    divisor_bits: int  # unsigned bits of the divisor
    head: int = 127  # the constant
    # Smallest divisor allowed. With 1, a divisor of 0 is allowed and counts as 1.
    min_divisor: int = 1

    @property
    def has_table(self) -> bool:
        """Whether ``head // divisor`` can exceed 1, and so needs a table."""
        return self.head >= 2 * self.min_divisor

    @property
    def latency(self) -> int:
        """Cycles from ``start`` to ``done``: loading the divisor, then one per bit."""
        return self.frac_bits + 1

    @property
    def quotient_bits(self) -> int:
        """Unsigned bits of the largest quotient, that of ``min_divisor``."""
        return max(((self.head << self.frac_bits) // self.min_divisor).bit_length(), 1)


class ConstantDivider(ConstantQuotient):
    """``floor((head << frac_bits) / max(divisor, 1))``, exact for every divisor.

    The quotient holds until the next ``start``; one before ``done`` restarts the division.

    Restoring division: the divisor is subtracted from the remainder, shifted by a bit, unless it is
    larger. A divisor below ``params.min_divisor`` gives an undefined quotient, except that 0 counts
    as 1.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        left = count_digits(m, self.start, self.done, params.latency)
        divisor = Signal(params.divisor_bits, reset_less=True)
        remainder = Signal(params.divisor_bits, reset_less=True)
        quotient = Signal(params.quotient_bits, reset_less=True)

        shifted = Cat(Const(0, 1), remainder)
        rest = shifted - divisor
        fits = ~rest[-1]
        bit = fits
        if params.min_divisor == 1:
            # A 0 always fits, even into a remainder of 0; it counts as 1, which does not.
            nonzero = Signal(reset_less=True)
            with m.If(self.start):
                m.d.sync += nonzero.eq(self.divisor.any())
            bit = fits & nonzero

        head_quotient, head_remainder = self._divide_head()
        with m.If(self.start):
            m.d.sync += [divisor.eq(self.divisor), quotient.eq(head_quotient),
                         remainder.eq(head_remainder)]
        with m.Elif(left.any()):
            # Only zeros are shifted out: quotient_bits hold the largest quotient.
            m.d.sync += [quotient.eq(Cat(bit, quotient)[:len(quotient)]),
                         remainder.eq(Mux(fits, rest, shifted)[:params.divisor_bits])]
        m.d.comb += self.quotient.eq(quotient)
        return m

    def _divide_head(self) -> tuple[Value, Value]:
        """Return ``head // divisor`` and ``head % divisor``, combinational."""
        params, divisor = self.params, self.divisor
        head = Const(params.head)
        if not params.has_table:
            # At most 1. The constant has no more bits than a larger divisor.
            fits = divisor <= head
            return fits, Mux(fits, (head - divisor)[:params.divisor_bits], head)

        index_bits = min(params.head.bit_length(), params.divisor_bits)
        entry = look_up(
            divisor[:index_bits],
            lambda index: (params.head // max(index, 1)
                           | params.head % max(index, 1) << len(head)), len(head) + index_bits)
        above = divisor[index_bits:].any()
        return Mux(above, 0, entry[:len(head)]), Mux(above, head, entry[len(head):])


@dataclass(frozen=True, slots=True)
class IntegerRootParams:
    """Widths and cycle counts of a root.

    >>> params = IntegerRootParams(value_bits=21, frac_bits=4)
    >>> params.root_bits, params.latency
    (15, 7)
    """

    value_bits: int  # unsigned bits of the number under the root
    frac_bits: int = 0  # fraction bits of the root
    digit_bits: int = 2  # root bits per cycle

    @property
    def root_bits(self) -> int:
        """Unsigned bits of the largest root."""
        return isqrt(((1 << self.value_bits) - 1) << 2 * self.frac_bits).bit_length()

    @property
    def digits(self) -> int:
        """Digits of the root."""
        return -(-self.root_bits // self.digit_bits)

    @property
    def first_digits(self) -> int:
        """Digits looked up as the value is loaded: from at most 8 bits of it, if these give more
        than one."""
        return min(max(8 // (2 * self.digit_bits), 1), self.digits)

    @property
    def latency(self) -> int:
        """Cycles from ``start`` to ``done``: the first digits, then a cycle for each."""
        return 1 + self.digits - self.first_digits

    @property
    def padded_bits(self) -> int:
        """Bits of the number under the root, fraction included, in whole pairs of digits."""
        return 2 * self.digit_bits * self.digits


class IntegerRoot(wiring.Component):
    """``floor(sqrt(value << 2 * frac_bits))``, exact for every value.

    The root holds until the next ``start``; one before ``done`` restarts it.

    Digits of radix ``B = 2^digit_bits``, the highest first. With Q the root so far, the value's
    digits so far minus Q^2 are a remainder of at most 2Q. With the next two digits of the value
    appended to it, the next digit is the largest j such that ``(2BQ + j) * j`` does not exceed it.
    All of these products exist as registers or wires: ``j * Q`` of the next Q differs from ``B * j
    * Q`` by one of a few constants, and the sums with each of them are ready when the digit is
    known.
    """

    def __init__(self, params: IntegerRootParams) -> None:
        self.params = params
        super().__init__({
            "start": In(1),
            "value": In(unsigned(params.value_bits)),       # read with start
            "root": Out(unsigned(params.root_bits)),
            "done": Out(1),     # high in the first cycle of a result
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        digit_bits, root_bits = params.digit_bits, params.root_bits
        left = count_digits(m, self.start, self.done, params.latency)
        due = Signal(params.padded_bits, reset_less=True)
        root = Signal(root_bits, reset_less=True)
        # A remainder is at most twice the root.
        remainder = Signal(root_bits + 1, reset_less=True)

        # One digit: subtract the largest product that fits from the remainder.
        # fits[j]: whether that of digit j fits; true up to the right digit.
        fits = [Const(1, 1),
                *(Signal(name=f"fits{digit}") for digit in range(1, 1 << digit_bits))]
        value = Cat(Const(0, 2 * params.frac_bits), self.value)
        value = Cat(value, Const(0, params.padded_bits - len(value)))
        first_bits = 2 * digit_bits * params.first_digits
        first = value[-first_bits:]
        first_root = Signal(first_bits // 2)
        m.d.comb += first_root.eq(look_up(first, isqrt))
        products = self._products(m, root, fits, first_root, ~self.start & left.any())
        extended = Cat(due[-2 * digit_bits:], remainder)
        rests = [extended]
        for digit in range(1, 1 << digit_bits):
            difference = extended - products[digit]
            m.d.comb += fits[digit].eq(~difference[-1])
            rests.append(difference)
        rest = _last_that_fits(fits, [rest[:len(remainder)] for rest in rests])
        digit = _last_that_fits(fits, [Const(digit, digit_bits) for digit in range(len(fits))])

        with m.If(self.start):
            m.d.sync += [
                due.eq(value << first_bits),
                root.eq(first_root),
                remainder.eq(look_up(first, lambda head: head - isqrt(head) ** 2)),
            ]
        with m.Elif(left.any()):
            # Only zeros are shifted out of the root: root_bits hold the largest one.
            m.d.sync += [
                due.eq(due << 2 * digit_bits),
                root.eq(Cat(digit, root)[:root_bits]),
                remainder.eq(rest),
            ]
        m.d.comb += self.root.eq(root)
        return m

    def _products(
        self, m, root: Value, fits: list[Value], first_root: Value, step: Value,
    ) -> list[Value]:
        """Return ``(2BQ + j) * j`` for every digit j, from registers and wires only.

        For a power of two it is Q and j^2 concatenated. For another digit, a register holds
        ``J = jQ + c`` with ``c = j^2 // 2B``, concatenated with the rest of j^2. For the next Q,
        ``BQ + k`` with digit k, J becomes ``B*J + jk - (B - 1)*c``.
        """
        params = self.params
        digit_bits = params.digit_bits
        base = 1 << digit_bits
        products: list[Value] = [Const(0, 1)]
        for digit in range(1, base):
            square = digit * digit
            if digit & (digit - 1) == 0:
                low_bits = digit.bit_length() - 1 + digit_bits + 1
                products.append(Cat(Const(square, low_bits), root))
                continue
            carry, low = divmod(square, 2 * base)
            multiple = Signal(
                params.root_bits + digit.bit_length(), name=f"times{digit}", reset_less=True)
            sums: dict[int, Value] = {}
            nexts = []
            for following in range(base):
                whole, below = divmod(digit * following - (base - 1) * carry, base)
                total = sums.setdefault(whole, (multiple + whole)[:len(multiple)])
                nexts.append(Cat(Const(below, digit_bits), total)[:len(multiple)])

            def first_multiple(first: int, digit: int = digit, carry: int = carry) -> int:
                return digit * first + carry

            with m.If(self.start):
                m.d.sync += multiple.eq(look_up(first_root, first_multiple))
            with m.Elif(step):
                m.d.sync += multiple.eq(_last_that_fits(fits, nexts))
            products.append(Cat(Const(low, digit_bits + 1), multiple))
        return products


def _last_that_fits(fits: list[Value], choices: list[Value]) -> Value:
    """Return the last choice with a high flag; all flags before a high one are high."""
    if len(choices) == 1:
        return choices[0]
    half = len(choices) // 2
    return Mux(fits[half], _last_that_fits(fits[half:], choices[half:]),
               _last_that_fits(fits[:half], choices[:half]))
