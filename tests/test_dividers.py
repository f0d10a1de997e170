"""Quotients and roots, digit by digit and from tables, in Amaranth's simulator."""

from __future__ import annotations

from math import isqrt

import numpy as np
import pytest
from amaranth.hdl import Signal
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.hw.flow.report import cell_counts
from sterna.hw.parts.digit_serial import (
    ConstantDivider,
    ConstantDividerParams,
    IntegerRoot,
    IntegerRootParams,
)
from sterna.hw.parts.reciprocal_table import ReciprocalTable, ReciprocalTableParams, line
from sterna.hw.testbench.amaranth import run_bench

Params = ConstantDividerParams | IntegerRootParams | ReciprocalTableParams
Unit = ConstantDivider | IntegerRoot | ReciprocalTable
UNITS: dict[type, type] = {
    ConstantDividerParams: ConstantDivider, IntegerRootParams: IntegerRoot,
    ReciprocalTableParams: ReciprocalTable}


def make(params: Params) -> Unit:
    return UNITS[type(params)](params)


def ports_of(dut: Unit) -> tuple[Signal, Signal]:
    """Operand and result."""
    return (dut.value, dut.root) if isinstance(dut, IntegerRoot) else (dut.divisor, dut.quotient)


def expected(dut: Unit, operand: int) -> int:
    params = dut.params
    if isinstance(dut, IntegerRoot):
        return isqrt(operand << 2 * params.frac_bits)
    return (params.head << params.frac_bits) // max(operand, 1)


def check(params: Params, operands: list[int], gap: int = 0) -> None:
    """Start with each, a table in every cycle, others ``gap`` cycles after the one before was
    done; results come after exactly the latency, and hold until the next start.
    """
    dut = make(params)
    operand, result = ports_of(dut)
    mask, latency = (1 << len(operand)) - 1, params.latency
    spacing = 1 if isinstance(dut, ReciprocalTable) else latency + gap
    starts = [spacing * index for index in range(len(operands))]

    async def bench(ctx):
        finished = 0
        for cycle in range(starts[-1] + latency + 4):
            index, waits = divmod(cycle, spacing)
            begins = index < len(operands) and not waits
            value = operands[min(index, len(operands) - 1)]
            ctx.set(dut.start, begins)
            ctx.set(operand, value if begins else ~value & mask)
            is_due = finished < len(operands) and cycle == starts[finished] + latency
            assert ctx.get(dut.done) == is_due
            finished += is_due
            started = min(-(-cycle // spacing), len(operands))      # before this cycle
            if is_due or 0 < finished == started:
                assert ctx.get(result) == expected(dut, operands[finished - 1])
            await ctx.tick()
        assert finished == len(operands)

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
    ReciprocalTableParams(9, 300)], ids=str)
def test_there_is_no_multiplier_and_no_memory_but_the_stated(params):
    counts = cell_counts(make(params), "unit")
    assert counts.multipliers == 0
    assert not [kind for kind in counts.cells if "div" in kind or "mod" in kind]
    if isinstance(params, ReciprocalTableParams):
        banks = params.correction_banks.values()
        assert counts.memory_bits == (
            max(len(params.segment_words), 2) * params.word_bits
            + len(params.small_words) * params.quotient_bits
            + sum(max(len(bank), 2) * max(bank).bit_length() for bank in banks))
    else:
        assert counts.memory_bits == 0


@pytest.mark.parametrize("params", [
    *(ConstantDividerParams(frac_bits, divisor_bits)
      for frac_bits, divisor_bits in ((1, 1), (4, 3), (7, 7), (11, 9))),
    *(ConstantDividerParams(9, 10, head=head, min_divisor=least) for head, least in (
        (127, 2), (127, 64), (127, 127), (127, 128), (100, 50), (1, 1), (508, 508), (508, 300))),
    ConstantDividerParams(16, 12),
    *(IntegerRootParams(value_bits, frac_bits, digit_bits)
      for value_bits, frac_bits in ((1, 0), (2, 1), (5, 2), (9, 0), (8, 3))
      for digit_bits in (1, 2, 3, 4)),
    IntegerRootParams(12), IntegerRootParams(12, digit_bits=3),
    *(ReciprocalTableParams(*sizes) for sizes in (
        (1, 1, 127), (3, 7, 127), (5, 16, 1), (7, 300, 127), (9, 1023, 1023), (12, 2047, 127),
        (14, 500, 5), (26, 1500, 127), (12, 4095, 127)))], ids=str)
def test_every_operand_of_a_small_width_is_exact(params):
    match params:
        case IntegerRootParams():
            operands = range(1 << params.value_bits)
        case ConstantDividerParams():
            # With 1 as the smallest divisor a 0 may come, too.
            operands = range(params.min_divisor - (params.min_divisor == 1),
                             1 << params.divisor_bits)
        case _:
            operands = range(params.max_divisor + 1)
    check(params, list(operands), gap=int(operands.stop < 1 << 10))


def test_some_divisors_of_every_segment_are_exact():
    params = ReciprocalTableParams(24, 39818)
    assert params.wraps
    dice = np.random.default_rng(3)
    check(params, [
        *range(600), *range(39700, 39819), *(2 ** np.arange(10, 16)).tolist(),
        *(2 ** np.arange(10, 16) - 1).tolist(), *dice.integers(512, 39819, 900).tolist()])


@settings(max_examples=40)
@given(st.data())
def test_any_width_and_divisor_is_exact(data):
    divisor_bits = data.draw(st.integers(1, 40), "divisor_bits")
    top = (1 << divisor_bits) - 1
    min_divisor = data.draw(st.one_of(st.just(1), st.integers(1, top)), "min_divisor")
    params = ConstantDividerParams(
        data.draw(st.integers(1, 40), "frac_bits"), divisor_bits,
        head=data.draw(st.integers(1, max(min(2 * min_divisor, 1 << 24) - 1, 255)), "head"),
        min_divisor=min_divisor)
    divisors = data.draw(st.lists(
        st.one_of(st.integers(min_divisor, top),
                  st.integers(min_divisor, min(min_divisor + 300, top))), max_size=12), "divisors")
    zero = [0] if min_divisor == 1 else []
    check(params, [min_divisor, top, *zero, *divisors])


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
    check(params, [0, 1, top, *values])


@pytest.mark.parametrize(("params", "stated"), [
    *((ConstantDividerParams(*sizes), {"latency": latency, "quotient_bits": bits})
      for sizes, latency, bits in (
          ((24, 16), 25, 31), ((16, 12), 17, 23), ((16, 15, 2032, 2032), 17, 17))),
    *((IntegerRootParams(*sizes), {"digits": digits, "latency": latency, "root_bits": bits})
      for sizes, digits, latency, bits in (
          ((21, 4), 8, 7, 15), ((21, 2), 7, 6, 13), ((21, 4, 3), 5, 5, 15), ((1,), 1, 1, 1))),
    *((ReciprocalTableParams(*sizes),
       {"latency": 6, "quotient_bits": bits, "depth": depth, "word_bits": word_bits})
      for sizes, bits, depth, word_bits in (
          ((24, 39818), 31, 2104, 36), ((16, 9954), 23, 526, 26), ((16, 100), 23, 101, 23))),
], ids=str)
def test_stated_cycles_and_sizes_are_these(params, stated):
    assert {name: getattr(params, name) for name in stated} == stated


@pytest.mark.parametrize(("frac_bits", "max_divisor", "head"), [
    (24, 39818, 127), (24, 32768, 127), (16, 9954, 127), (26, 74600, 127), (20, 65535, 1),
    (9, 1 << 17, 1023)])
def test_line_and_correction_make_the_quotient_of_every_divisor(frac_bits, max_divisor, head):
    params = ReciprocalTableParams(frac_bits, max_divisor, head)
    words = params.words
    assert len(words.bases) == len(words.drops) == params.depth
    direct = np.arange(min(2 << params.index_bits, max_divisor + 1))
    np.testing.assert_array_equal(
        words.bases[:len(direct)], (head << frac_bits) // np.maximum(direct, 1))
    first = len(direct)
    for bits, corrections in words.corrections.items():
        place_bits = bits - 1 - params.index_bits
        divisors = (1 << (bits - 1)) + np.arange(len(corrections))
        of = first + ((divisors - divisors[0]) >> place_bits)
        places = divisors & ((1 << place_bits) - 1)
        drops = np.array(words.drops)[of]
        quotients = np.array(words.bases)[of] - line(drops, places, place_bits) + corrections
        np.testing.assert_array_equal(quotients, (head << frac_bits) // divisors)
        assert min(corrections) >= 0
        first = of[-1] + 1
    assert first == params.depth
    assert divisors[-1] == max_divisor


@pytest.mark.parametrize(("arguments", "message"), [
    ((0, 8), "frac_bits must be a whole number from 1 to 32, got 0"),
    ((8, 0), "max_divisor must be a whole number from 1"),
    ((24, 1 << 18), "max_divisor must be a whole number from 1 to 262143, got 262144"),
    ((2, 509), "max_divisor must be a whole number from 1 to 508, got 509"),
    ((8, 8, 1024), "head must be a whole number from 1 to 1023, got 1024"),
])
def test_bad_parameters_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ReciprocalTableParams(*arguments)
