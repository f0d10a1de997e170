"""The table of a reciprocal: its contents for every divisor, and the circuit that reads it."""

from __future__ import annotations

import numpy as np
import pytest

from sterna.hw.emit.verilog import write_verilog
from sterna.hw.flow.report import cell_counts
from sterna.hw.parts.reciprocal_table import ReciprocalTable, ReciprocalTableParams, line
from sterna.hw.testbench.amaranth import run_bench


def check(dut: ReciprocalTable, divisors: list[int]) -> None:
    """Divide by one in each cycle, and hold every quotient and its cycle to the division."""
    params = dut.params
    numerator = params.head << params.frac_bits

    async def bench(ctx):
        for cycle in range(len(divisors) + params.latency + 3):
            started = cycle < len(divisors)
            ctx.set(dut.start, started)
            ctx.set(dut.divisor, divisors[cycle] if started else params.max_divisor)
            due = cycle - params.latency
            assert ctx.get(dut.done) == (0 <= due < len(divisors))
            if due >= 0:
                divisor = divisors[min(due, len(divisors) - 1)]
                assert ctx.get(dut.quotient) == numerator // max(divisor, 1), divisor
            await ctx.tick()

    run_bench(dut, bench)


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


@pytest.mark.parametrize(("frac_bits", "max_divisor", "head"), [
    (1, 1, 127), (3, 7, 127), (5, 16, 1), (7, 300, 127), (9, 1023, 1023), (12, 2047, 127),
    (14, 500, 5), (26, 1500, 127), (12, 4095, 127)])
def test_every_divisor_of_a_small_table_is_exact(frac_bits, max_divisor, head):
    check(ReciprocalTable(ReciprocalTableParams(frac_bits, max_divisor, head)),
          list(range(max_divisor + 1)))


def test_some_divisors_of_every_segment_are_exact():
    dut = ReciprocalTable(ReciprocalTableParams(24, 39818))
    assert dut.params.wraps
    dice = np.random.default_rng(3)
    divisors = [*range(600), *range(39700, 39819), *(2 ** np.arange(10, 16)).tolist(),
                *(2 ** np.arange(10, 16) - 1).tolist(), *dice.integers(512, 39819, 900).tolist()]
    check(dut, divisors)


@pytest.mark.parametrize(("frac_bits", "max_divisor", "quotient_bits", "depth", "word_bits"), [
    (24, 39818, 31, 2104, 36), (16, 9954, 23, 526, 26), (16, 100, 23, 101, 23)])
def test_stated_sizes_are_these(frac_bits, max_divisor, quotient_bits, depth, word_bits):
    params = ReciprocalTableParams(frac_bits, max_divisor)
    found = params.quotient_bits, params.depth, params.word_bits, params.latency
    assert found == (quotient_bits, depth, word_bits, 6)


def test_there_is_no_multiplier_and_the_memory_is_stated(tmp_path):
    table = ReciprocalTable(ReciprocalTableParams(9, 300))
    path = write_verilog(table, "reciprocal_table", tmp_path)
    counts = cell_counts(path, "reciprocal_table")
    assert counts.multipliers == 0
    assert counts.memory_bits == table.params.memory_bits


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
