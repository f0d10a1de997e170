"""A constant divided by a number, from tables: exact, and fast at a high clock."""

from __future__ import annotations

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import memory

from sterna.hw.parts.memory_attributes import BLOCK_ROM, LOGIC_ROM
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.parts.quotient import ConstantQuotient
from sterna.hw.parts.reciprocal_params import SMALL_DIVISORS, ReciprocalTableParams
from sterna.hw.parts.reciprocal_words import DIGITS

__all__ = ["ReciprocalTable"]


class ReciprocalTable(ConstantQuotient[ReciprocalTableParams]):
    """``floor((head << frac_bits) / max(divisor, 1))``, exact for every divisor.

    ``start`` in cycle t takes the divisor. The quotient is there, and ``done`` high for one
    cycle, in cycle ``t + params.latency``; the quotient holds until that of the next
    ``start``, which may come in any cycle.

    Small divisors have their quotients in the table. Above, an octave is cut into segments:
    the table has a line for each, and another memory says for each divisor how many the line
    is short of the quotient. Both are written when the circuit is made, so the result is
    exact by construction; see :mod:`sterna.hw.parts.reciprocal_words`.

    No divisor may be above ``params.max_divisor``. Parameters and members are those of
    :class:`~sterna.hw.parts.quotient.ConstantQuotient`.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))
        flags = steps.flags(self.start, params.latency, "started")
        m.d.comb += self.done.eq(flags[-1])

        octave, address, place = self._segment(m)
        divisor = steps.register(self.divisor, "divisor_1")
        word = self._read_segment(m, steps, steps.register(address, "address"))
        octave = steps.delay(octave, 3, "octave")
        place = steps.delay(place, 3, "place")
        correction = self._read_correction(m, steps, divisor, octave)

        # The upper bits of a quotient from the table are those of the drop otherwise.
        base = Cat(word[:params.base_bits],
                   word[params.base_bits:params.quotient_bits]
                   & (~octave.any()).replicate(params.quotient_bits - params.base_bits))
        if params.wraps:
            small = self._read_small(m, steps, divisor)
            base = Mux(steps.delay(~divisor[SMALL_DIVISORS.bit_length() - 1:].any(), 2, "small"),
                       small, base)
        drop = word[params.base_bits:params.base_bits + params.drop_bits]
        base = steps.register(base, "base")
        rows = [steps.register(_row(drop, place[2 * digit:2 * digit + 2]), f"row{digit}")
                for digit in range(DIGITS)]
        # -(total >> 6) = (-(total >> 4) + 3) >> 2; two digits are added, the third taken off.
        upper = steps.register(_keep(Cat(Const(3, 2), base) - rows[2],
                                     params.quotient_bits + 3), "upper")
        lower = steps.register(((rows[1] << 2) + rows[0])[4:].as_signed(), "lower")
        quotient = ((upper - lower) + Cat(Const(0, 2), correction))[2:]
        with m.If(flags[-2]):
            m.d.sync += self.quotient.eq(quotient[:params.quotient_bits])
        return m

    def _segment(self, m: Module) -> tuple[Signal, Value, Value]:
        """Return a flag for each octave, the segment's number, and the place in it.

        For a divisor that has its quotient in the table, all digits of the place are 1.
        """
        params, divisor = self.params, self.divisor
        bits = 2 * DIGITS
        octaves = Signal(len(params.octaves))
        direct = Signal()
        m.d.comb += [
            octaves.eq(Cat(divisor[octave - 1] & ~divisor[octave:].any()
                           for octave in params.octaves)),
            direct.eq(~divisor[params.index_bits + 1:].any()),
        ]
        address_bits = max(params.depth - 1, 1).bit_length()
        addresses = [_when(direct, divisor[:params.index_bits + 1])]
        places = [_when(direct, Const(int("01" * DIGITS, 2), bits))]
        for octave, flag in zip(params.octaves, octaves, strict=True):
            place_bits = octave - 1 - params.index_bits
            index = Cat(divisor[place_bits:octave - 1],
                        Const(place_bits + 1, max(address_bits - params.index_bits, 1)))
            addresses.append(_when(flag, index))
            whole = Cat(Const(0, bits), divisor[:place_bits])
            places.append(_when(flag, whole[-bits:]))
        return octaves, reduce(or_, addresses)[:address_bits], reduce(or_, places)

    def _read_segment(self, m: Module, steps: Pipeline, address: Value) -> Value:
        """Return the word of a segment, two steps later."""
        return _read(m, steps, "segments", self.params.segment_words, self.params.word_bits,
                     address, BLOCK_ROM)

    def _read_small(self, m: Module, steps: Pipeline, divisor: Value) -> Value:
        """Return the quotient of a small divisor, two steps later."""
        return _read(m, steps, "small", self.params.small_words, self.params.quotient_bits,
                     divisor, LOGIC_ROM)

    def _read_correction(
        self, m: Module, steps: Pipeline, divisor: Value, octave: Value,
    ) -> Value:
        """Return the correction of a divisor, four steps later."""
        params = self.params
        found = []
        for bits, bank in params.correction_banks.items():
            address = divisor[:params.correction_address_bits(bits)]
            value = _read(m, steps, f"corrections{bits}", bank, max(bank).bit_length(),
                          address, BLOCK_ROM if len(bank) > SMALL_DIVISORS else LOGIC_ROM)
            flags = [flag for flag, of in zip(octave, params.octaves, strict=True)
                     if params.bank(of) == bits]
            found.append(steps.register(_when(Cat(flags).any(), value), f"found{bits}"))
        return steps.register(reduce(or_, found) if found else Const(0, 1), "correction")


def _read(m, steps, name: str, words: list[int], width: int, address: Value, attrs) -> Value:
    """Read a constant memory; the word comes two steps later, from a register of its own."""
    words = words + [0] * (2 - len(words))
    m.submodules[name] = rom = memory.Memory(
        shape=unsigned(width), depth=len(words), init=words, attrs=attrs)
    read = rom.read_port()
    m.d.comb += [read.addr.eq(address[:len(read.addr)]), read.en.eq(1)]
    return steps.register(read.data, f"{name}_word")


def _when(flag: Value, value: Value) -> Value:
    """Return an unsigned value, or 0."""
    return value & flag.replicate(len(value))


def _row(drop: Value, digit: Value) -> Value:
    """Return -1, 0, 1 or 2 times the drop, for -1 its complement; one LUT for each bit."""
    bits = len(drop) + 1
    chosen = Mux(digit[1], Mux(digit[0], drop << 1, drop), Mux(digit[0], 0, ~drop))
    return Cat(
        Mux(digit.any(), chosen[:bits], (~Cat(drop, Const(0, 1)))), ~digit.any()).as_signed()


def _keep(value: Value, bits: int) -> Value:
    """Return a signed value in fewer bits, which hold it."""
    return value[:bits].as_signed()
