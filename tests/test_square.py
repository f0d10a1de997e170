"""Squares without a multiplier."""

from amaranth.hdl import Module, Signal, signed
from amaranth.sim import Simulator

from sterna.hw.parts.arithmetic import square_of, square_parts


def test_every_square_is_exact() -> None:
    m = Module()
    value, result = Signal(signed(8)), Signal(15)
    m.d.comb += result.eq(square_of(square_parts(value)))

    async def check(ctx) -> None:
        for number in range(-128, 128):
            ctx.set(value, number)
            await ctx.delay(1e-9)
            assert ctx.get(result) == number * number

    simulator = Simulator(m)
    simulator.add_testbench(check)
    simulator.run()
