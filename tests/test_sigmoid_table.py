# amaranth: UnusedElaboratable=no
# A constructor that refuses its arguments leaves an object that nobody can use.
"""The sigmoid table against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sterna.hw.parts.sigmoid_table import SigmoidParams, SigmoidTable
from sterna.hw.testbench.amaranth import run_bench
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.quantized.integer import sigmoid

COARSE = replace(S16, name="coarse", sigmoid_segments=2)
NARROW = replace(
    C12, name="narrow", z=FixedPoint(6, 2), h=FixedPoint(8, 4), sigmoid_segments=16,
    sigmoid_frac=6)
DIRECT = replace(NARROW, name="direct", sigmoid_segments=64)
PROFILES = [S16, C12, COARSE, NARROW, DIRECT]


def run_table(
    profile: NumericProfile, table: list[int], values: np.ndarray, *, holds: int = 0,
) -> np.ndarray:
    """Feed values one per step, with ``holds`` cycles of a low advance after each."""
    dut = SigmoidTable(SigmoidParams(profile), table)
    results = []

    async def bench(ctx):
        for value in [*values.tolist(), *[0] * dut.params.latency]:
            ctx.set(dut.z, value)
            ctx.set(dut.advance, 1)
            await ctx.tick()
            ctx.set(dut.advance, 0)
            for _ in range(holds):
                ctx.set(dut.z, ~value)
                await ctx.tick()
            results.append(ctx.get(dut.sigmoid))

    run_bench(dut, bench)
    return np.array(results[dut.params.latency - 1:dut.params.latency - 1 + len(values)])


def points(profile: NumericProfile, count: int) -> np.ndarray:
    """Both ends, both sides of zero and of every segment boundary, and random values."""
    rng = np.random.default_rng(11)
    edges = np.arange(profile.z.min, profile.z.max + 1, 1 << profile.sigmoid_step_bits)
    special = np.concatenate([edges - 1, edges, edges + 1, [profile.z.max, -1, 0, 1]])
    values = np.concatenate([special, rng.integers(profile.z.min, profile.z.max + 1, count)])
    return np.clip(values, profile.z.min, profile.z.max)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@pytest.mark.parametrize("holds", [0, 2])
def test_table_equals_the_reference(profile, holds):
    table = profile.sigmoid_table()
    values = points(profile, 800)
    np.testing.assert_array_equal(
        run_table(profile, table, values, holds=holds),
        sigmoid(values, np.array(table), profile))


@pytest.mark.parametrize("profile", [S16, C12, NARROW], ids=lambda profile: profile.name)
def test_steepest_and_flattest_tables_do_not_overflow(profile):
    entries = len(profile.sigmoid_table())
    half = entries // 2
    for table in ([0] * half + [profile.sigmoid_max] * (entries - half),
                  [profile.sigmoid_max] * entries, [0] * entries):
        values = points(profile, 200)
        np.testing.assert_array_equal(
            run_table(profile, table, values), sigmoid(values, np.array(table), profile))


@pytest.mark.parametrize(("table", "message"), [
    ([0] * 64, "the sigmoid table of profile S16 has 65 entries, got 64"),
    ([0] * 64 + [1 << 15], "entries must be from 0 to 32767, got 0 to 32768"),
    ([-1] + [0] * 64, "entries must be from 0 to 32767, got -1 to 0"),
    ([1] + [0] * 64, "must not decrease"),
])
def test_bad_tables_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        SigmoidTable(SigmoidParams(S16), table)
    with pytest.raises(ValueError, match="an entry for each of the 65536 values of z, got 64"):
        SigmoidParams(S16, weighted=True)       # a table of SiLU does not interpolate
