"""The integer root in Amaranth's simulator: every value, or any."""

from __future__ import annotations

from functools import partial
from math import isqrt

import numpy as np
import pytest
from digit_bench import check_restarts, check_results
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.hw.emit.verilog import write_verilog
from sterna.hw.flow.report import cell_counts
from sterna.hw.parts.digit_serial import IntegerRoot, IntegerRootParams
from sterna.model.quantized.integer import isqrt as reference_isqrt


def check(dut: IntegerRoot, values: list[int], gap: int = 0) -> None:
    check_results(dut, dut.value, dut.root, partial(root, dut.params), values, gap)


def root(params: IntegerRootParams, value: int) -> int:
    return isqrt(value << 2 * params.frac_bits)


@pytest.mark.parametrize("digit_bits", [1, 2, 3, 4])
@pytest.mark.parametrize(("value_bits", "frac_bits"), [(1, 0), (2, 1), (5, 2), (9, 0), (8, 3)])
def test_every_value_of_a_small_width_is_exact(value_bits, frac_bits, digit_bits):
    dut = IntegerRoot(IntegerRootParams(value_bits, frac_bits=frac_bits, digit_bits=digit_bits))
    check(dut, list(range(1 << value_bits)), gap=1)


@pytest.mark.parametrize("digit_bits", [2, 3])
def test_every_value_of_twelve_bits_is_exact(digit_bits):
    check(IntegerRoot(IntegerRootParams(12, digit_bits=digit_bits)), list(range(1 << 12)))


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


def test_a_start_begins_anew():
    dut = IntegerRoot(IntegerRootParams(21, frac_bits=4))
    check_restarts(dut, dut.value, dut.root, partial(root, dut.params), (2_000_000, 77_777))


@pytest.mark.parametrize(("arguments", "root_bits", "digits", "latency"), [
    ({"value_bits": 21, "frac_bits": 4}, 15, 8, 7),
    ({"value_bits": 21, "frac_bits": 2}, 13, 7, 6),
    ({"value_bits": 21, "frac_bits": 4, "digit_bits": 3}, 15, 5, 5),
    ({"value_bits": 1}, 1, 1, 1),
])
def test_stated_cycles_and_widths_are_these(arguments, root_bits, digits, latency):
    params = IntegerRootParams(**arguments)
    assert (params.root_bits, params.digits, params.latency) == (root_bits, digits, latency)


@pytest.mark.parametrize("digit_bits", [1, 2, 3, 4])
def test_there_is_no_multiplier_and_no_memory(digit_bits, tmp_path):
    root = IntegerRoot(IntegerRootParams(21, frac_bits=4, digit_bits=digit_bits))
    path = write_verilog(root, "integer_root", tmp_path)
    counts = cell_counts(path, "integer_root")
    assert counts.multipliers == 0
    assert counts.memory_bits == 0


@pytest.mark.parametrize(("value_bits", "options", "message"), [
    (0, {}, "value_bits must be a whole number from 1 to 96, got 0"),
    (8, {"frac_bits": -1}, "frac_bits must be a whole number from 0"),
    (8, {"digit_bits": 5}, "digit_bits must be a whole number from 1 to 4, got 5"),
])
def test_bad_parameters_are_refused(value_bits, options, message):
    with pytest.raises(ValueError, match=message):
        IntegerRootParams(value_bits, **options)
