"""The integer square root, several bits a cycle and without a multiplier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isqrt

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.digits import count_digits, look_up
from sterna.model.checks import check_whole

__all__ = ["IntegerRoot", "IntegerRootParams"]


@dataclass(frozen=True, slots=True)
class IntegerRootParams:
    """Widths and cycle counts of a root.

    Parameters
    ----------
    value_bits
        Unsigned bits of the number under the root.
    frac_bits
        Fraction bits of the root.
    digit_bits
        Root bits per cycle.

    Raises
    ------
    ValueError
        If a number is out of its range.

    >>> params = IntegerRootParams(value_bits=21, frac_bits=4)
    >>> params.root_bits, params.latency
    (15, 7)
    """

    value_bits: int
    frac_bits: int = 0
    digit_bits: int = 2

    def __post_init__(self) -> None:
        check_whole("value_bits", self.value_bits, 1, 96)
        check_whole("frac_bits", self.frac_bits, 0, 32)
        check_whole("digit_bits", self.digit_bits, 1, 4)

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
        """Digits that are looked up as the value is loaded: from 8 bits of it at most, if
        these give more than one."""
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

    ``start`` in cycle t loads the value. The root is there, and ``done`` high for one cycle,
    in cycle ``t + params.latency``; the root holds until the next ``start``. A ``start``
    before that begins anew.

    Digits of radix ``B = 2^digit_bits``, the highest first. Of the value's digits so far,
    the square of the root so far, Q, leaves a remainder of at most 2Q. With two further
    digits of the value behind it, the largest j is sought whose ``(2BQ + j) * j`` is not
    above it. All of these products exist as registers or wires: ``j * Q`` of the next Q
    differs from ``B * j * Q`` by one of a few constants, and the sums with each of them are
    ready when the digit is known. The first digits follow from so few bits of the value that
    they are looked up as the value is loaded.

    Members
    -------
    start : ``In(1)``
        Load the value.
    value : ``In(unsigned(params.value_bits))``
        Read with ``start``.
    root : ``Out(unsigned(params.root_bits))``
        The result.
    done : ``Out(1)``
        High in the first cycle of a result.
    """

    def __init__(self, params: IntegerRootParams) -> None:
        self.params = params
        super().__init__({
            "start": In(1),
            "value": In(unsigned(params.value_bits)),
            "root": Out(unsigned(params.root_bits)),
            "done": Out(1),
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

        # One digit: take the largest product off the remainder.
        # fits[j]: whether that of digit j can be taken off. Those up to the right one can.
        fits = [Const(1, 1),
                *(Signal(name=f"fits{digit}") for digit in range(1, 1 << digit_bits))]
        value = Cat(Const(0, 2 * params.frac_bits), self.value)
        value = Cat(value, Const(0, params.padded_bits - len(value)))
        first_bits = 2 * digit_bits * params.first_digits
        first = value[-first_bits:]
        first_root = Signal(first_bits // 2)
        m.d.comb += first_root.eq(_function_of(first, isqrt))
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
                remainder.eq(_function_of(first, lambda head: head - isqrt(head) ** 2)),
            ]
        with m.Elif(left.any()):
            # Only zeros leave at the top of the root: root_bits hold the largest one.
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

        For a power of two it is Q and j^2 side by side. For another digit a register holds
        ``J = jQ + c`` with ``c = j^2 // 2B``, beside which the rest of j^2 has its place. The
        J of the next Q, ``BQ + k`` for the digit k, is ``B*J + jk - (B - 1)*c``.
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
            with m.If(self.start):
                m.d.sync += multiple.eq(_function_of(
                    first_root, partial(_first_multiple, digit, carry)))
            with m.Elif(step):
                m.d.sync += multiple.eq(_last_that_fits(fits, nexts))
            products.append(Cat(Const(low, digit_bits + 1), multiple))
        return products


def _first_multiple(digit: int, carry: int, first: int) -> int:
    """Return a digit times the first digits of the root, and the carry of its own square."""
    return digit * first + carry


def _function_of(index: Value, function: Callable[[int], int]) -> Value:
    """Return a function of a few bits, in as many as it needs."""
    entries = [function(value) for value in range(1 << len(index))]
    return look_up(index, entries, max(max(entries).bit_length(), 1))


def _last_that_fits(fits: list[Value], choices: list[Value]) -> Value:
    """Return the last of the choices whose flag is high; if one is, all before it are."""
    if len(choices) == 1:
        return choices[0]
    half = len(choices) // 2
    return Mux(fits[half], _last_that_fits(fits[half:], choices[half:]),
               _last_that_fits(fits[:half], choices[:half]))
