"""The divider of a constant, in Amaranth's simulator: every divisor, or any."""

from __future__ import annotations

from functools import partial

import pytest
from digit_bench import check_restarts, check_results
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.hw.emit.verilog import write_verilog
from sterna.hw.flow.report import cell_counts
from sterna.hw.parts.digit_serial import ConstantDivider, ConstantDividerParams


def check(dut: ConstantDivider, divisors: list[int], gap: int = 0) -> None:
    check_results(dut, dut.divisor, dut.quotient, partial(quotient, dut.params), divisors, gap)


def quotient(params: ConstantDividerParams, divisor: int) -> int:
    return (params.head << params.frac_bits) // max(divisor, 1)


@pytest.mark.parametrize("digit_bits", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("frac_bits", "divisor_bits"), [(1, 1), (4, 3), (7, 7), (11, 9)])
def test_every_divisor_of_a_small_width_is_exact(frac_bits, divisor_bits, digit_bits):
    dut = ConstantDivider(ConstantDividerParams(frac_bits, divisor_bits, digit_bits=digit_bits))
    check(dut, list(range(1 << divisor_bits)), gap=1)


@pytest.mark.parametrize(("head", "min_divisor"), [(127, 2), (127, 64), (127, 127), (127, 128),
                                                   (100, 50), (1, 1), (508, 508), (508, 300)])
def test_every_divisor_from_the_smallest_is_exact(head, min_divisor):
    dut = ConstantDivider(ConstantDividerParams(9, 10, head=head, min_divisor=min_divisor))
    check(dut, list(range(min_divisor, 1 << 10)))


def test_every_divisor_of_twelve_bits_is_exact():
    check(ConstantDivider(ConstantDividerParams(16, 12)), list(range(1 << 12)))


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


def test_a_start_begins_anew():
    dut = ConstantDivider(ConstantDividerParams(24, 16))
    check_restarts(
        dut, dut.divisor, dut.quotient, partial(quotient, dut.params), (77, 30_001))


@pytest.mark.parametrize(("arguments", "steps", "latency", "quotient_bits"), [
    ({"frac_bits": 24, "divisor_bits": 16}, 6, 7, 31),
    ({"frac_bits": 16, "divisor_bits": 12}, 4, 5, 23),
    ({"frac_bits": 16, "divisor_bits": 12, "digit_bits": 3}, 6, 7, 23),
    ({"frac_bits": 16, "divisor_bits": 15, "head": 2032, "min_divisor": 2032}, 4, 5, 17),
])
def test_stated_cycles_and_widths_are_these(arguments, steps, latency, quotient_bits):
    params = ConstantDividerParams(**arguments)
    assert (params.steps, params.latency, params.quotient_bits) == (
        steps, latency, quotient_bits)


@pytest.mark.parametrize("options", [{}, {"head": 2032, "min_divisor": 2032}], ids=str)
def test_there_is_no_multiplier_and_no_memory(options, tmp_path):
    dut = ConstantDivider(ConstantDividerParams(24, 16, **options))
    path = write_verilog(dut, "const_divider", tmp_path)
    counts = cell_counts(path, "const_divider")
    assert counts.multipliers == 0
    assert counts.memory_bits == 0
    assert not [kind for kind in counts.cells if "div" in kind or "mod" in kind or "mem" in kind]


@pytest.mark.parametrize(("arguments", "options", "message"), [
    ((0, 8), {}, "frac_bits must be a whole number from 1 to 64, got 0"),
    ((8, 0), {}, "divisor_bits must be a whole number from 1"),
    ((8, 8), {"head": 0}, "head must be a whole number from 1"),
    ((8, 8), {"digit_bits": 6}, "digit_bits must be a whole number from 1 to 5, got 6"),
    ((8, 8), {"min_divisor": 0}, "min_divisor must be a whole number from 1 to 255, got 0"),
    ((8, 8), {"min_divisor": 256}, "min_divisor must be a whole number from 1 to 255, got 256"),
    ((8, 16), {"head": 2032}, r"head must be at most 1023 .* min_divisor \(1\), got 2032"),
])
def test_bad_parameters_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        ConstantDividerParams(*arguments, **options)
