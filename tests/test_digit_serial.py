"""Quotients and roots, digit by digit, in Amaranth's simulator: every operand, or any."""

from __future__ import annotations

from math import isqrt
from typing import TypeAlias

import numpy as np
import pytest
from amaranth.hdl import Signal
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.hw.emit.verilog import write_verilog
from sterna.hw.flow.report import cell_counts
from sterna.hw.parts.digit_serial import (
    ConstantDivider,
    ConstantDividerParams,
    IntegerRoot,
    IntegerRootParams,
)
from sterna.hw.testbench.amaranth import run_bench
from sterna.model.quantized.integer import isqrt as reference_isqrt

Unit: TypeAlias = ConstantDivider | IntegerRoot


def make(params: ConstantDividerParams | IntegerRootParams) -> Unit:
    return IntegerRoot(params) if isinstance(params, IntegerRootParams) else ConstantDivider(params)


def ports_of(dut: Unit) -> tuple[Signal, Signal]:
    """Operand and result."""
    return (dut.value, dut.root) if isinstance(dut, IntegerRoot) else (dut.divisor, dut.quotient)


def expected(dut: Unit, operand: int) -> int:
    params = dut.params
    if isinstance(dut, IntegerRoot):
        return isqrt(operand << 2 * params.frac_bits)
    return (params.head << params.frac_bits) // max(operand, 1)


def check(dut: Unit, operands: list[int], gap: int = 0) -> None:
    """Start with each, ``gap`` cycles after the one before was done; exact cycles, too."""
    operand, result = ports_of(dut)
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
            assert ctx.get(result) == expected(dut, value), value
            for _ in range(gap):
                await ctx.tick()
                assert not ctx.get(dut.done)
                assert ctx.get(result) == expected(dut, value), value

    run_bench(dut, bench)


@pytest.mark.parametrize(("params", "operands"), [
    (ConstantDividerParams(24, 16), (77, 30_001)),
    (IntegerRootParams(21, frac_bits=4), (2_000_000, 77_777)),
], ids=["quotient", "root"])
def test_a_start_begins_anew(params, operands):
    # The second operand comes in every cycle after the first: only the second counts.
    dut = make(params)
    operand, result = ports_of(dut)
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
            assert ctx.get(result) == expected(dut, operands[1])

    run_bench(dut, bench)


@pytest.mark.parametrize("params", [
    ConstantDividerParams(24, 16), ConstantDividerParams(24, 16, head=2032, min_divisor=2032),
    *(IntegerRootParams(21, frac_bits=4, digit_bits=bits) for bits in (1, 2, 3, 4)),
], ids=str)
def test_there_is_no_multiplier_and_no_memory(params, tmp_path):
    counts = cell_counts(write_verilog(make(params), "unit", tmp_path), "unit")
    assert counts.multipliers == 0
    assert counts.memory_bits == 0
    assert not [kind for kind in counts.cells if "div" in kind or "mod" in kind or "mem" in kind]


@pytest.mark.parametrize("params", [
    *(ConstantDividerParams(frac_bits, divisor_bits, digit_bits=digit_bits)
      for frac_bits, divisor_bits in ((1, 1), (4, 3), (7, 7), (11, 9))
      for digit_bits in (1, 2, 3, 4, 5)),
    *(ConstantDividerParams(9, 10, head=head, min_divisor=least) for head, least in (
        (127, 2), (127, 64), (127, 127), (127, 128), (100, 50), (1, 1), (508, 508), (508, 300))),
    ConstantDividerParams(16, 12),
    *(IntegerRootParams(value_bits, frac_bits, digit_bits)
      for value_bits, frac_bits in ((1, 0), (2, 1), (5, 2), (9, 0), (8, 3))
      for digit_bits in (1, 2, 3, 4)),
    IntegerRootParams(12), IntegerRootParams(12, digit_bits=3)], ids=str)
def test_every_operand_of_a_small_width_is_exact(params):
    if isinstance(params, IntegerRootParams):
        least, bits = 0, params.value_bits
    else:
        # With 1 as the smallest divisor a 0 may come, too.
        least, bits = params.min_divisor - (params.min_divisor == 1), params.divisor_bits
    check(make(params), list(range(least, 1 << bits)), gap=int(bits < 10))


@settings(max_examples=40)
@given(st.data())
def test_any_width_and_divisor_is_exact(data):
    divisor_bits = data.draw(st.integers(1, 40), "divisor_bits")
    top = (1 << divisor_bits) - 1
    min_divisor = data.draw(st.one_of(st.just(1), st.integers(1, top)), "min_divisor")
    params = ConstantDividerParams(
        data.draw(st.integers(1, 40), "frac_bits"), divisor_bits,
        head=data.draw(st.integers(1, max(min(2 * min_divisor, 1 << 24) - 1, 255)), "head"),
        digit_bits=data.draw(st.integers(1, 5), "digit_bits"), min_divisor=min_divisor)
    divisors = data.draw(st.lists(
        st.one_of(st.integers(min_divisor, top),
                  st.integers(min_divisor, min(min_divisor + 300, top))), max_size=12), "divisors")
    zero = [0] if min_divisor == 1 else []
    check(ConstantDivider(params), [min_divisor, top, *zero, *divisors])


@settings(max_examples=40)
@given(st.data())
def test_any_width_and_value_is_exact(data):
    value_bits = data.draw(st.integers(1, 64), "value_bits")
    params = IntegerRootParams(
        value_bits, frac_bits=data.draw(st.integers(0, 12), "frac_bits"),
        digit_bits=data.draw(st.integers(1, 4), "digit_bits"))
    top = (1 << value_bits) - 1
    # Squares, and both of their neighbours, are where a root goes wrong.
    near_squares = st.builds(lambda root, off: max(min(root * root + off, top), 0),
                             st.integers(0, isqrt(top)), st.integers(-1, 1))
    values = data.draw(
        st.lists(st.one_of(near_squares, st.integers(0, top)), max_size=12), "values")
    check(IntegerRoot(params), [0, 1, top, *values])


def test_the_reference_takes_the_same_root():
    values = np.random.default_rng(1).integers(0, 1 << 29, 60)
    roots = [isqrt(value) for value in values.tolist()]
    assert reference_isqrt(values).tolist() == roots


@pytest.mark.parametrize(("params", "digits", "latency", "bits"), [
    (ConstantDividerParams(24, 16), 6, 7, 31), (ConstantDividerParams(16, 12), 4, 5, 23),
    (ConstantDividerParams(16, 12, digit_bits=3), 6, 7, 23),
    (ConstantDividerParams(16, 15, head=2032, min_divisor=2032), 4, 5, 17),
    (IntegerRootParams(21, 4), 8, 7, 15), (IntegerRootParams(21, 2), 7, 6, 13),
    (IntegerRootParams(21, 4, 3), 5, 5, 15), (IntegerRootParams(1), 1, 1, 1),
], ids=str)
def test_stated_cycles_and_widths_are_these(params, digits, latency, bits):
    is_root = isinstance(params, IntegerRootParams)
    assert (digits, bits) == ((params.digits, params.root_bits) if is_root
                              else (params.steps, params.quotient_bits))
    assert params.latency == latency
