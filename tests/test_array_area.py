"""The array takes no more than it should: counts are exact, so they are held to limits."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from sterna.hw.flow.target import TARGETS
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_array import TernaryMacArray
from sterna.hw.units.mac.mac_params import MacParams

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

# LUTs for one product per cycle, on a small size of each style.
LIMITS = [
    (ArrayStyle.ECP5_CHAIN, "ecp5-85k", 4, 32, 14.0),
    (ArrayStyle.ECP5_TABLE, "ecp5-85k", 8, 48, 11.6),
    (ArrayStyle.XC7_PAIR, "xc7", 2, 48, 9.0),
    (ArrayStyle.XC7_TABLE, "xc7", 8, 48, 5.5),
    (ArrayStyle.GENERIC, "ice40-hx8k", 8, 32, 20.5),
]


@pytest.fixture
def benchmark(monkeypatch):
    """The script that measures all styles."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("array_styles")


def area(benchmark, style: ArrayStyle, target: str, rows: int, cols: int):
    array = TernaryMacArray(MacParams(rows, cols, max_columns=384, style=style))
    return benchmark.array_area(array, rows * cols, TARGETS[target])


@pytest.mark.long
@pytest.mark.parametrize(("style", "target", "rows", "cols", "limit"), LIMITS)
def test_luts_for_a_product_per_cycle_stay_within_their_limit(
        style, target, rows, cols, limit, benchmark):
    found = area(benchmark, style, target, rows, cols)
    assert found.luts_per_mac <= limit, found
    assert found.multipliers == 0
    # What nextpnr adds to Yosys's cells: constants, or cells for lone flip-flops on iCE40.
    if target == "ecp5-85k":
        assert found.luts - found.mapped_luts <= 4


@pytest.mark.long
def test_the_plain_arrays_of_the_benchmark_are_larger(benchmark):
    params = MacParams(2, 16, 64)
    ours = area(benchmark, ArrayStyle.ECP5_CHAIN, "ecp5-85k", 2, 16).luts
    tree, naive = (
        benchmark.array_area(benchmark.PlainArray(params, has_tree=has_tree), 32,
                             TARGETS["ecp5-85k"], multipliers=False).luts
        for has_tree in (True, False))
    assert ours < tree < naive
