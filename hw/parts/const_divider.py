"""A constant divided by a number, several quotient bits a cycle and without a multiplier."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from sterna.hw.parts.digits import count_digits, look_up
from sterna.hw.parts.quotient import ConstantQuotient
from sterna.model.checks import check_whole

__all__ = ["ConstantDivider", "ConstantDividerParams"]


@dataclass(frozen=True, slots=True)
class ConstantDividerParams:
    """Widths and cycle counts of a divider.

    Parameters
    ----------
    frac_bits
        Bits by which ``head`` is shifted left before it is divided.
    divisor_bits
        Unsigned bits of the divisor.
    head
        The constant.
    digit_bits
        Quotient bits per cycle.
    min_divisor
        Smallest divisor that comes. With 1, a divisor of 0 may come and counts as 1.

    Raises
    ------
    ValueError
        If a number is out of its range.

    >>> params = ConstantDividerParams(frac_bits=24, divisor_bits=16)
    >>> params.steps, params.latency, params.quotient_bits
    (6, 7, 31)
    """

    frac_bits: int
    divisor_bits: int
    head: int = 127
    digit_bits: int = 4
    min_divisor: int = 1

    def __post_init__(self) -> None:
        check_whole("frac_bits", self.frac_bits, 1, 64)
        check_whole("divisor_bits", self.divisor_bits, 1, 64)
        check_whole("head", self.head, 1, 1 << 24)
        check_whole("digit_bits", self.digit_bits, 1, 5)
        check_whole("min_divisor", self.min_divisor, 1, (1 << self.divisor_bits) - 1)
        if self.has_table and self.head > 1023:
            raise ValueError(
                f"head must be at most 1023 (the size of its table) or less than twice "
                f"min_divisor ({self.min_divisor}), got {self.head}")

    @property
    def has_table(self) -> bool:
        """Whether ``head // divisor`` can exceed 1, so that a table gives it."""
        return self.head >= 2 * self.min_divisor

    @property
    def steps(self) -> int:
        """Cycles that give a digit each."""
        return -(-self.frac_bits // self.digit_bits)

    @property
    def latency(self) -> int:
        """Cycles from ``start`` to ``done``: the loading of the divisor and the digits."""
        return self.steps + 1

    @property
    def surplus_bits(self) -> int:
        """Low quotient bits that the last digit gives beyond ``frac_bits``.

        They are dropped, which is exact: floor(floor(a * 2^j / d) / 2^j) = floor(a / d).
        """
        return self.steps * self.digit_bits - self.frac_bits

    @property
    def quotient_bits(self) -> int:
        """Unsigned bits of the largest quotient, that of ``min_divisor``."""
        return max(((self.head << self.frac_bits) // self.min_divisor).bit_length(), 1)


class ConstantDivider(ConstantQuotient[ConstantDividerParams]):
    """``floor((head << frac_bits) / max(divisor, 1))``, exact for every divisor.

    ``start`` in cycle t loads the divisor. The quotient is there, and ``done`` high for one
    cycle, in cycle ``t + params.latency``; the quotient holds until the next ``start``. A
    ``start`` before that begins anew.

    Restoring division of radix ``2^digit_bits``: the remainder, shifted by a digit, is
    compared with all multiples of the divisor at once, and the largest that is not above it
    is taken off. The odd multiples are sums of two or three shifted divisors, made when the
    divisor is loaded; the even ones are wires.

    A divisor below ``params.min_divisor`` gives an undefined quotient, save that 0 counts as 1
    if that is 1. Parameters and members are those of
    :class:`~sterna.hw.parts.quotient.ConstantQuotient`.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        left = count_digits(m, self.start, self.done, params.latency)
        remainder = Signal(params.divisor_bits, reset_less=True)
        quotient = Signal(params.quotient_bits + params.surplus_bits, reset_less=True)

        head_quotient, head_remainder = self._divide_head()
        multiples = self._multiples(m)
        digit, rest = self._digit(remainder, multiples)
        if params.min_divisor == 1:
            # Every multiple of 0 fits into a remainder of 0: a 0 that counts as 1 takes none.
            nonzero = Signal(reset_less=True)
            with m.If(self.start):
                m.d.sync += nonzero.eq(self.divisor.any())
            digit &= nonzero.replicate(params.digit_bits)

        with m.If(self.start):
            m.d.sync += [quotient.eq(head_quotient), remainder.eq(head_remainder)]
        with m.Elif(left.any()):
            # Only zeros leave at the top: quotient_bits hold the largest quotient.
            m.d.sync += [
                quotient.eq(Cat(digit, quotient)[:len(quotient)]), remainder.eq(rest)]
        m.d.comb += self.quotient.eq(quotient[params.surplus_bits:])
        return m

    def _divide_head(self) -> tuple[Value, Value]:
        """Return ``head // divisor`` and ``head % divisor``, combinational."""
        params, divisor = self.params, self.divisor
        head = Const(params.head)
        if not params.has_table:
            # At most 1. The constant has no more bits than a divisor that is above it.
            fits = divisor <= head
            return fits, Mux(fits, (head - divisor)[:params.divisor_bits], head)

        index_bits = min(params.head.bit_length(), params.divisor_bits)
        entries = [params.head // max(index, 1) | params.head % max(index, 1) << len(head)
                   for index in range(1 << index_bits)]
        entry = look_up(divisor[:index_bits], entries, len(head) + index_bits)
        above = divisor[index_bits:].any()
        return Mux(above, 0, entry[:len(head)]), Mux(above, head, entry[len(head):])

    def _multiples(self, m) -> dict[int, Value]:
        """Return 1 to ``2^digit_bits - 1`` times the divisor of the last ``start``."""
        params = self.params
        loaded: dict[int, Value] = {1: self.divisor}
        multiples: dict[int, Value] = {}
        for odd in range(1, 1 << params.digit_bits, 2):
            if odd > 1:
                # The nearest power of two and an odd multiple made before, usually 1.
                power = 1 << (odd.bit_length() - 1)
                if odd - power <= 2 * power - odd:
                    loaded[odd] = (loaded[1] << (power.bit_length() - 1)) + loaded[odd - power]
                else:
                    loaded[odd] = (loaded[1] << power.bit_length()) - loaded[2 * power - odd]
            bits = params.divisor_bits + odd.bit_length()
            register = Signal(bits, name=f"times{odd}", reset_less=True)
            with m.If(self.start):
                m.d.sync += register.eq(loaded[odd][:bits])
            for shift in range((((1 << params.digit_bits) - 1) // odd).bit_length()):
                multiples[odd << shift] = Cat(Const(0, shift), register)
        return multiples

    def _digit(self, remainder: Value, multiples: dict[int, Value]) -> tuple[Value, Value]:
        """Return the digit and the new remainder, which is below the divisor."""
        params = self.params
        shifted = Cat(Const(0, params.digit_bits), remainder)
        rests = [shifted]
        fits: list[Value] = [Const(1, 1)]
        for times in range(1, 1 << params.digit_bits):
            # Zeros at the low end of both take no part in the subtraction.
            zeros = (times & -times).bit_length() - 1
            difference = shifted[zeros:] - multiples[times][zeros:]
            fits.append(~difference[-1])
            rests.append(Cat(Const(0, zeros), difference))
        fits.append(Const(0, 1))
        chosen = [fits[times] & ~fits[times + 1] for times in range(1 << params.digit_bits)]
        rest = reduce(or_, (
            rest[:params.divisor_bits] & pick.replicate(params.divisor_bits)
            for rest, pick in zip(rests, chosen, strict=True)))
        digit = Cat(
            reduce(or_, (pick for times, pick in enumerate(chosen) if times >> bit & 1))
            for bit in range(params.digit_bits))
        return digit, rest
