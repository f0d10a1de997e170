"""Rounding shifts in one adder against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.hdl import Module, Signal, signed
from amaranth.sim import Simulator

from sterna.hw.parts.arithmetic import rounded_sum, saturated_shift, with_rounding_bit
from sterna.model.profile import FixedPoint
from sterna.model.quantized.integer import rs, saturate

VALUE = signed(7)
ADDEND = signed(4)


def every_result(build, addends) -> list[tuple[int, int, int]]:
    """(value, addend, result) of ``build(value, addend)`` for every value."""
    m = Module()
    value, addend = Signal(VALUE), Signal(ADDEND)
    built = build(value, addend)
    result = Signal(built.shape())
    m.d.comb += result.eq(built)
    results = []

    async def bench(ctx):
        for a in range(-64, 64):
            for b in addends:
                ctx.set(value, a)
                ctx.set(addend, b)
                await ctx.delay(1e-9)
                results.append((a, b, ctx.get(result)))

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
    return results


@pytest.mark.parametrize("shift", [0, 1, 3, 6, 7, 9])
def test_every_rounded_sum_equals_the_reference(shift):
    results = every_result(lambda value, addend: rounded_sum(
        with_rounding_bit(value, shift), addend), [-8, -1, 0, 1, 7])
    assert all(int(rs(np.int64(a), shift)) + b == got for a, b, got in results)


@pytest.mark.parametrize("shift", [0, 1, 3, 6, 7, 9])
@pytest.mark.parametrize("bits", [2, 4, 6, 7, 8])
def test_every_saturated_shift_equals_the_reference(shift, bits):
    fmt = FixedPoint(bits, 0)
    results = every_result(lambda value, addend: saturated_shift(value, shift, fmt), [0])
    assert all(int(saturate(rs(np.int64(a), shift), fmt)) == got for a, _, got in results)
