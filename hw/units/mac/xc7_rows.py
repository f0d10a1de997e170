"""Rows of the array made of 7 series carry chains and LUTs with two outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Instance, Module, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.array_row import ArrayRow
from sterna.hw.units.mac.array_style import tree_steps
from sterna.hw.units.mac.weight_codes import PAIR_BITS

__all__ = ["PairAdder", "TernaryAdder", "Xc7PairRow"]


def lut_init(low: Callable[..., bool | int], high: Callable[..., bool | int]) -> int:
    """Return the 64-bit contents of a LUT6_2 for two functions of ``I0`` to ``I4``, one per half.

    O5 is always the lower half; O6 is the upper half while ``I5`` is 1, else the lower.

    >>> hex(lut_init(lambda a, b, c, d, e: a, lambda a, b, c, d, e: a & b))
    '0x88888888aaaaaaaa'
    """
    contents = 0
    for half, function in enumerate((low, high)):
        for index in range(32):
            bits = [(index >> place) & 1 for place in range(5)]
            contents |= (int(function(*bits)) & 1) << (32 * half + index)
    return contents


def lut6_2(init: int, inputs: list[Value], o5: Value, o6: Value) -> Instance:
    """Return a LUT6_2 with ``inputs`` I0 to I5 and both outputs."""
    return Instance(
        "LUT6_2", p_INIT=Const(init, 64), o_O5=o5, o_O6=o6,
        **{f"i_I{place}": value for place, value in enumerate(inputs)})


class CarryChain(wiring.Component):
    """A chain of CARRY4 cells, four bits each; combinational, no carry in."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__({
            "propagate": In(width),     # passes the carry on; XORed with it, gives total
            "generate": In(width),      # the carry out of a bit that does not propagate
            "total": Out(width),
        })

    def elaborate(self, platform):
        m = Module()
        carry = Const(0, 1)
        totals = []
        for low in range(0, self.width, 4):
            high = min(low + 4, self.width)
            unused = Const(0, low + 4 - high)
            carries, total = Signal(4, name=f"carries{low}"), Signal(4, name=f"total{low}")
            m.submodules[f"carry{low}"] = Instance(
                "CARRY4",
                i_CI=carry, i_CYINIT=Const(0, 1),
                i_S=Cat(self.propagate[low:high], unused),
                i_DI=Cat(self.generate[low:high], unused),
                o_O=total, o_CO=carries)
            carry = carries[3]
            totals.append(total)
        m.d.comb += self.total.eq(Cat(totals))
        return m


TERNARY_INIT = lut_init(
    lambda a, b, c, below, unused: a + b + c >= 2,
    lambda a, b, c, below, unused: a ^ b ^ c ^ below)
"""Contents of the LUT: I0 to I2 = the operands, I3 = O5 of the bit below."""


class TernaryAdder(wiring.Component):
    """``a + b + c``; combinational.

    The LUT of a bit reduces three operands to two: their exclusive or, and their majority (O5),
    which has the weight of the next bit. There it enters the exclusive or (O6) and is the other
    operand of the carry chain.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__({
            "a": In(signed(width)),
            "b": In(signed(width)),
            "c": In(signed(width)),
            "total": Out(signed(width)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.chain = chain = CarryChain(self.width)
        majority = Signal(self.width)
        half_sum = Signal(self.width)
        below = Cat(Const(0, 1), majority)[:self.width]
        for place in range(self.width):
            m.submodules[f"lut{place}"] = lut6_2(
                TERNARY_INIT,
                [self.a[place], self.b[place], self.c[place], below[place], Const(0, 1),
                 Const(1, 1)],
                majority[place], half_sum[place])
        m.d.comb += [
            chain.propagate.eq(half_sum),
            chain.generate.eq(below),
            self.total.eq(chain.total.as_signed()),
        ]
        return m


@dataclass(frozen=True, slots=True)
class PartialSum:
    """A signed value and the number of columns that it sums."""

    value: Value
    columns: int


def add_tree(
    m: Module, steps: Pipeline, partials: list[PartialSum], bits: Callable[[int], int],
) -> Value:
    """Add neighbours, level by level; ``bits`` maps a number of columns to the signed width of
    their sum.
    """
    for depth in range(tree_steps(len(partials))):
        groups = [partials[i:i + 3] for i in range(0, len(partials), 3)]
        partials = []
        for index, group in enumerate(groups):
            name = f"tree{depth}_{index}"
            columns = sum(partial.columns for partial in group)
            if len(group) == 1:
                value = group[0].value
            else:
                m.submodules[name] = adder = TernaryAdder(bits(columns))
                m.d.comb += [port.eq(partial.value) for port, partial in zip(
                    (adder.a, adder.b, adder.c), group, strict=False)]
                value = adder.total
            partials.append(PartialSum(steps.register(value, f"{name}_sum"), columns))
    return partials[0].value


def _operand(x0: int, x1: int, *select: int) -> int:
    """Return the lower half: a bit of the single operand, or the carry of two."""
    number = select[0] | select[1] << 1 | select[2] << 2
    return (0, x0, x0 ^ 1, x1, x1 ^ 1, 0, 0, 0)[number]


def _half_sum(x0: int, x1: int, *select: int) -> int:
    """Return the upper half: the exclusive or of two operands, equal or opposite in sign."""
    number = select[0] | select[1] << 1 | select[2] << 2
    same = x0 ^ x1
    return (0, same, same, same ^ 1, same ^ 1, 0, 0, 0)[number]


PAIR_INIT = lut_init(_operand, _half_sum)
"""Contents of the LUT: I0, I1 = x0, x1; I2 to I4 = the low code bits; I5 = two operands."""


class PairAdder(wiring.Component):
    """``w0 * x0 + w1 * x1`` less the number of -1 weights, for a code of
    :mod:`sterna.hw.units.mac.weight_codes`; combinational.

    For each bit, a CARRY4 needs whether it propagates a carry (O6) and, if not, the carry out
    (O5). With one operand, both outputs are its bit: no carry is ever generated. With two, O6 is
    their exclusive or; if it is 0, they are equal and either is the carry: the code selects the one
    on O5.
    """

    def __init__(self, act_bits: int) -> None:
        self.act_bits = act_bits
        super().__init__({
            "code": In(unsigned(PAIR_BITS)),
            "x0": In(signed(act_bits)),
            "x1": In(signed(act_bits)),
            "total": Out(signed(act_bits + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.chain = chain = CarryChain(self.act_bits + 1)
        for place in range(self.act_bits + 1):
            bit = min(place, self.act_bits - 1)        # sign extension
            o5, o6 = Signal(name=f"o5_{place}"), Signal(name=f"o6_{place}")
            m.submodules[f"lut{place}"] = lut6_2(
                PAIR_INIT, [self.x0[bit], self.x1[bit], *self.code], o5, o6)
            m.d.comb += [chain.generate[place].eq(o5), chain.propagate[place].eq(o6)]
        m.d.comb += self.total.eq(chain.total.as_signed())
        return m


class Xc7PairRow(ArrayRow):
    """One row of style ``xc7-pair``: pair adders, three-input adders, accumulator.

    Every adder ends in a register. A ``-x`` is added as its one's complement; the missing +1s
    are the number of -1 weights of the row, the start value of the accumulator.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, self.advance)

        partials = []
        for index in range(len(self.weights)):
            m.submodules[f"pair{index}"] = pair = PairAdder(params.act_bits)
            m.d.comb += [pair.code.eq(self.weights[index]), pair.x0.eq(self.acts[2 * index])]
            columns = min(2, params.cols - 2 * index)
            if columns == 2:
                m.d.comb += pair.x1.eq(self.acts[2 * index + 1])
            partials.append(PartialSum(steps.register(pair.total, f"pair{index}_sum"), columns))

        self.accumulate(m, add_tree(m, steps, partials, params.operand_bits))
        return m
