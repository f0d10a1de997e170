"""Sums, products and shifts of Amaranth values, each value of a small width in a simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import pytest
from amaranth.hdl import Module, Signal, Value, signed
from amaranth.sim import Simulator

from sterna.hw.parts.arithmetic import (
    constant_product,
    rounded_sum,
    saturated_shift,
    signed_digits,
    square_of,
    square_parts,
    with_rounding_bit,
)
from sterna.model.profile import FixedPoint
from sterna.model.quantized.integer import rs, saturate

FACTORS = [*range(1, 70), 127, 128, 129, 171, 683, 2731, 43691, 65535]
SHIFTS = [0, 1, 3, 6, 7, 9]


def check(
    inputs: list[Signal], built: list[Value], cases: Iterable[tuple[int, ...]],
    expected: Callable[..., list[int]],
) -> None:
    """Hold combinational values to ``expected(*case)``, for each case of the inputs."""
    m = Module()
    results = [Signal(value.shape(), name=f"result{index}") for index, value in enumerate(built)]
    m.d.comb += [result.eq(value) for result, value in zip(results, built, strict=True)]

    async def bench(ctx):
        for case in cases:
            for signal, number in zip(inputs, case, strict=True):
                ctx.set(signal, number)
            await ctx.delay(1e-9)
            assert [ctx.get(result) for result in results] == expected(*case), case

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()


def test_every_square_is_exact():
    value = Signal(signed(8))
    check([value], [square_of(square_parts(value))], ((a,) for a in range(-128, 128)),
          lambda a: [a * a])


@pytest.mark.parametrize("shift", SHIFTS)
def test_every_rounded_sum_equals_the_reference(shift):
    value, addend = Signal(signed(7)), Signal(signed(4))
    check([value, addend], [rounded_sum(with_rounding_bit(value, shift), addend)],
          ((a, b) for a in range(-64, 64) for b in (-8, -1, 0, 1, 7)),
          lambda a, b: [int(rs(np.int64(a), shift)) + b])


@pytest.mark.parametrize("shift", SHIFTS)
def test_every_saturated_shift_equals_the_reference(shift):
    value = Signal(signed(7))
    formats = [FixedPoint(bits, 0) for bits in (2, 4, 6, 7, 8)]
    check([value], [saturated_shift(value, shift, each) for each in formats],
          ((a,) for a in range(-64, 64)),
          lambda a: [int(saturate(rs(np.int64(a), shift), each)) for each in formats])
    for largest in (3, 40):     # what cannot leave a format is not clamped
        check([value], [saturated_shift(value, shift, each, largest) for each in formats],
              ((a,) for a in range(-largest, largest + 1)),
              lambda a: [int(saturate(rs(np.int64(a), shift), each)) for each in formats])


@pytest.mark.parametrize("bits", [1, 2, 9])
def test_products_with_constants_equal_the_operator(bits):
    value = Signal(bits)
    numbers = {number for number in (0, 1, 2, 3, 170, 341, (1 << bits) - 1) if number < 1 << bits}
    check([value], [constant_product(value, factor) for factor in FACTORS],
          ((a,) for a in numbers), lambda a: [factor * a for factor in FACTORS])


def test_digits_give_the_factor_and_no_two_are_neighbours():
    for factor in FACTORS:
        digits = signed_digits(factor)
        assert sum(sign << shift for sign, shift in digits) == factor
        shifts = [shift for _, shift in digits]
        assert all(b - a >= 2 for a, b in pairwise(shifts))
    assert signed_digits(0) == []


def test_a_factor_below_one_is_refused():
    with pytest.raises(ValueError, match="factor must be at least 1, got 0"):
        constant_product(Signal(3), 0)
