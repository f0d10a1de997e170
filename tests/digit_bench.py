"""A bench for circuits that start with an operand and are done some cycles later."""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Signal
from amaranth.lib.wiring import Component

from sterna.hw.testbench.amaranth import run_bench

__all__ = ["check_restarts", "check_results"]


def check_results(
    dut: Component, operand: Signal, result: Signal, expected: Callable[[int], int],
    operands: list[int], gap: int = 0,
) -> None:
    """Start with each, ``gap`` cycles after the one before was done; exact cycles, too."""
    latency, mask = dut.params.latency, (1 << len(operand)) - 1

    async def bench(ctx):
        for value in operands:
            ctx.set(operand, value)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            ctx.set(operand, ~value & mask)
            for _ in range(latency - 1):
                assert not ctx.get(dut.done)
                await ctx.tick()
            assert ctx.get(dut.done)
            assert ctx.get(result) == expected(value), value
            for _ in range(gap):
                await ctx.tick()
                assert not ctx.get(dut.done)
                assert ctx.get(result) == expected(value), value

    run_bench(dut, bench)


def check_restarts(
    dut: Component, operand: Signal, result: Signal, expected: Callable[[int], int],
    operands: tuple[int, int],
) -> None:
    """Start with the second operand in every cycle after the first: only the second counts."""
    latency = dut.params.latency

    async def bench(ctx):
        for wait in range(1, latency + 1):
            for value, cycles in zip(operands, (wait, latency), strict=True):
                ctx.set(dut.start, 1)
                ctx.set(operand, value)
                await ctx.tick()
                ctx.set(dut.start, 0)
                for _ in range(cycles - 1):
                    assert not ctx.get(dut.done)
                    await ctx.tick()
            assert ctx.get(dut.done)
            assert ctx.get(result) == expected(operands[1])

    run_bench(dut, bench)
