"""Products with constants, in Amaranth's simulator."""

from __future__ import annotations

from itertools import pairwise

import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from sterna.hw.parts.arithmetic import constant_product, signed_digits

FACTORS = [*range(1, 70), 127, 128, 129, 171, 683, 2731, 43691, 65535]


def test_digits_give_the_factor_and_no_two_are_neighbours():
    for factor in FACTORS:
        digits = signed_digits(factor)
        assert sum(sign << shift for sign, shift in digits) == factor
        shifts = [shift for _, shift in digits]
        assert all(b - a >= 2 for a, b in pairwise(shifts))
    assert signed_digits(0) == []


@pytest.mark.parametrize("bits", [1, 2, 9])
def test_products_equal_the_operator(bits):
    m = Module()
    value = Signal(bits)
    products = []
    for factor in FACTORS:
        product = constant_product(value, factor)
        products.append(Signal(len(product), name=f"product{factor}"))
        m.d.comb += products[-1].eq(product)

    async def bench(ctx):
        for number in {0, 1, 2, 3, 170, 341, (1 << bits) - 1}:
            if number < 1 << bits:
                ctx.set(value, number)
                await ctx.delay(1e-9)
                assert [ctx.get(product) for product in products] == [
                    factor * number for factor in FACTORS]

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()


def test_a_factor_below_one_is_refused():
    with pytest.raises(ValueError, match="factor must be at least 1, got 0"):
        constant_product(Signal(3), 0)
