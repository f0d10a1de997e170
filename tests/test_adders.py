"""A fixed ternary matrix as adders that share sums: what they add up, how many, in Verilog."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sterna import TernaryMatrix, adders_component, emit_adders, emit_matrix, layer_cost
from sterna.hw.layers.adders import AdderPlan, plan_adders
from sterna.hw.testbench.amaranth import run_bench
from sterna.hw.tools.process import verilator_environment
from sterna.model.cache import Cache

MATRICES = arrays(np.int8, st.tuples(st.integers(1, 7), st.integers(1, 7)),
                  elements=st.integers(-1, 1))


def values(plan: AdderPlan, acts: np.ndarray) -> list[np.ndarray]:
    """Every value of a plan, for ``acts [columns, n]``."""
    found = list(acts.astype(np.int64))
    for a, of_a, b, of_b in plan.sums:
        found.append(of_a * found[a] + of_b * found[b])
    return found


def plain_adders(weights: np.ndarray) -> int:
    """Adders of a matrix whose rows share nothing; a row without a 1 is subtracted from 0."""
    entries = abs(weights).sum(axis=1)
    return int((np.maximum(entries - 1, 0) + ((weights < 1).all(axis=1) & (entries > 0))).sum())


@given(MATRICES)
def test_a_plan_adds_up_the_products_with_no_adder_too_many(weights):
    plan = plan_adders(weights)
    coefficients = values(plan, np.eye(weights.shape[1]))
    for row, value in zip(weights, plan.rows, strict=True):
        np.testing.assert_array_equal(row, 0 if value is None else coefficients[value])
    assert len(plan.sums) <= plain_adders(weights)
    used = {value for a, _, b, _ in plan.sums for value in (a, b)} | set(plan.rows)
    assert used >= set(range(plan.columns, plan.columns + len(plan.sums)))
    # Each range is reached at both ends.
    for (low, high), of in zip(plan.ranges, coefficients, strict=True):
        assert low == np.where(of > 0, -128, 127) @ of
        assert high == np.where(of > 0, 127, -128) @ of


def test_more_than_half_of_the_adders_go_where_many_rows_share():
    weights = np.random.default_rng(0).integers(-1, 2, (64, 64))
    plan = plan_adders(weights)
    assert (len(plan.sums), plain_adders(weights), max(plan.depths)) == (1158, 2673, 7)
    assert plan == plan_adders(weights)


# Beside random rows one of zeros, equal and opposite ones, one input alone, one subtracted.
ROWS = np.zeros((15, 14), dtype=int)
ROWS[:9] = np.random.default_rng(1).integers(-1, 2, (9, 14))
ROWS[10:, :3] = [[1, -1, 1], [1, -1, 1], [-1, 1, -1], [0, 1, 0], [0, 0, -1]]


@pytest.mark.parametrize(("weights", "simulator"), [
    pytest.param(ROWS, "verilator", marks=pytest.mark.long),
    *(pytest.param(weights, "icarus", marks=pytest.mark.needs("iverilog"))
      for weights in (ROWS, np.array([[1]]), np.array([[0, 0]])))])
def test_the_test_of_the_folder_passes_and_its_verilog_is_clean(weights, simulator, tmp_path):
    emitted = emit_adders(weights, tmp_path / "adders")
    done = subprocess.run(
        ["make", f"SIM={simulator}", f"PYTHON={sys.executable}"], cwd=emitted.folder, text=True,
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "FAIL=0" in done.stdout
    done = subprocess.run(
        ["verilator", "--lint-only", "-Wall", "sterna.vlt", f"{emitted.module}.v"],
        cwd=emitted.folder, text=True, capture_output=True, check=False,
        env=verilator_environment())
    assert (done.returncode, done.stderr) == (0, "")


def test_a_vector_is_taken_every_cycle_and_comes_out_after_the_stated_latency():
    dut = adders_component(ROWS)
    acts = np.random.default_rng(3).integers(-128, 128, (6, ROWS.shape[1]))
    found = []

    async def bench(ctx):
        ctx.set(dut.sums.ready, 1)
        for cycle in range(len(acts) + dut.params.latency + 2):
            if ctx.get(dut.sums.valid):
                found.append((cycle, [ctx.get(each) for each in dut.sums.payload.sum]))
            assert ctx.get(dut.acts.ready)
            ctx.set(dut.acts.valid, cycle < len(acts))
            for port, value in zip(dut.acts.payload.q, acts[min(cycle, len(acts) - 1)],
                                   strict=True):
                ctx.set(port, int(value))
            await ctx.tick()

    run_bench(dut, bench)
    assert found == [(cycle + dut.params.latency, sums)
                     for cycle, sums in enumerate((acts @ ROWS.T).tolist())]


@pytest.mark.long
def test_a_small_matrix_takes_fewer_luts_than_an_array_of_its_size(tmp_path):
    weights = np.random.default_rng(2).integers(-1, 2, (8, 16))
    cache = Cache(tmp_path / "cache")
    adders = layer_cost(emit_adders(weights, tmp_path / "adders"), cache=cache)
    array = layer_cost(emit_matrix(
        weights, tmp_path / "array", rows=8, cols=16, lanes=16), cache=cache)
    assert (adders.latency, adders.period) == ((4,), (1.0,))
    assert 2 * adders.area.lut < array.area.lut
    assert (adders.area.block_ram, adders.area.dsp) == (0, 0)


@pytest.mark.parametrize(("weights", "message"), [
    ([[0, 2]], "every weight must be -1, 0 or 1"), (np.ones((2, 0)), "shape|columns"),
    (TernaryMatrix(np.eye(3, dtype=int), scale=0.5), "output")])
def test_what_is_no_plain_matrix_is_refused(weights, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        emit_adders(weights, tmp_path / "adders")
    assert not (tmp_path / "adders").exists()
