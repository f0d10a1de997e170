"""The core's norm, with the store of its vectors, against the integer reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In
from pairwise import pairwise

from sterna.hw.core.compute.datapath import join_norm
from sterna.hw.core.compute.norm import Norm
from sterna.hw.core.compute.vectors import VectorStore, element_layout
from sterna.hw.core.params.geometry import MAX_SLOTS
from sterna.hw.core.params.limits import Limits, StageLimits
from sterna.hw.flow.report import cell_counts
from sterna.hw.layers.layer_params import LayerParams
from sterna.hw.testbench.amaranth import run_bench
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.quantized.integer import combine_scale, norm_quant
from sterna.model.quantized.plan import StageKind

TINY = replace(
    C12, name="tiny", x=FixedPoint(5, 2), o=FixedPoint(4, 2), p=FixedPoint(4, 1),
    reciprocal_bits=5, root_frac=0)
# The widest vector is not the residual, and the multipliers are as wide as they may be.
UNEVEN = replace(
    C12, name="uneven", x=FixedPoint(8, 4), o=FixedPoint(10, 6), p=FixedPoint(14, 6),
    reciprocal_bits=23, root_frac=7, scale_frac=19)


def name(value: object) -> str:
    """A value in the name of a test."""
    return value.name if isinstance(value, NumericProfile) else str(value)


def params_of(profile: NumericProfile, channels: int, **sizes: int) -> LayerParams:
    """A geometry whose longest vector has so many channels."""
    limits = Limits(
        profile, (StageLimits(StageKind.HEAD, 1, 1, channels),), (1, 1), normalizes=True)
    usual = {"rows": 1, "cols": 8, "quant_lanes": 4, "trace": True}
    return LayerParams(limits, **(usual | sizes))


class NormBench(wiring.Component):
    """The norm of a core, and the stores of the vectors of its phases."""

    def __init__(self, params: LayerParams) -> None:
        self.params, self.norm = params, Norm(params)
        super().__init__({
            "elements": In(element_layout(params)),
            "elements_valid": In(1).array(params.phases)})

    def elaborate(self, platform):
        m = Module()
        join_norm(m, self.norm, [VectorStore(self.params) for _ in range(self.params.phases)],
                  [(self.elements, valid) for valid in self.elements_valid])
        return m


Round = tuple[int, Sequence[np.ndarray], list[int]]     # phase, vectors, mantissas


def run_rounds(dut: NormBench, rounds: Sequence[Round]) -> list[dict[str, list]]:
    """Give the vectors of a phase, then its job; return for each round what each sequence got."""
    params, norm = dut.params, dut.norm
    taps = norm.taps
    found: list[dict[str, list]] = []

    async def bench(ctx):
        for phase, vectors, mantissas in rounds:
            each: dict[str, list] = {lane: [] for lane in ("q", "maximum", "root", "v", "a")}
            chunks = -(-len(vectors[0]) // params.quant_lanes)
            ctx.set(norm.stages[phase].chunks, chunks)
            ctx.set(norm.stages[phase].k, mantissas)
            for sequence, vector in enumerate(vectors):
                padded = np.pad(vector, (0, chunks * params.quant_lanes - len(vector)))
                words = padded.reshape(-1, params.post_lanes).tolist()
                for index, word in enumerate(words):
                    place = index * params.post_lanes // params.cell_lanes
                    ctx.set(dut.elements, {
                        "sequence": sequence, "place": place, "wide": 1, "first": index == 0,
                        "last": index == len(words) - 1, "y": word})
                    ctx.set(dut.elements_valid[phase], 1)
                    await ctx.tick()
            ctx.set(dut.elements_valid[phase], 0)
            await ctx.tick().repeat(8)
            ctx.set(norm.jobs.valid, 1)
            ctx.set(norm.jobs.payload, phase)
            await ctx.tick()
            ctx.set(norm.jobs.valid, 0)
            for _ in range(4000):
                if ctx.get(norm.acts_valid):
                    each["q"].append((ctx.get(norm.acts.sequence), list(ctx.get(norm.acts.q))))
                for lane, tap, names in (
                        ("maximum", taps.maximum, "mr"), ("root", taps.root, "sn"),
                        ("v", taps.scale, "v")):
                    if ctx.get(tap.valid):
                        each[lane].append([ctx.get(tap[name]) for name in names])
                if ctx.get(norm.scales_valid):
                    each["a"].append(ctx.get(norm.scales.scale))
                    if len(each["a"]) == MAX_SLOTS * len(vectors):
                        break
                await ctx.tick()
            await ctx.tick().repeat(3)
            found.append(each)

    run_bench(dut, bench)
    return found


def check(params: LayerParams, rounds: Sequence[Sequence[np.ndarray]]) -> list[dict[str, list]]:
    """Hold all that a norm makes of vectors to the reference, phase by phase in turn."""
    rng = np.random.default_rng(len(rounds))
    largest = 1 << params.profile.mantissa_bits
    given = [(index % params.phases, vectors,
              rng.integers(largest // 2, largest, MAX_SLOTS).tolist())
             for index, vectors in enumerate(rounds)]
    found = run_rounds(NormBench(params), given)
    for (_, vectors, mantissas), each in zip(given, found, strict=True):
        acts, scales = iter(each["q"]), iter(each["a"])
        for sequence, vector in enumerate(vectors):
            expected = norm_quant(vector, params.profile)
            own = [next(acts) for _ in range(-(-len(vector) // params.quant_lanes))]
            assert {owner for owner, _ in own} == {sequence if params.batch > 1 else 0}
            q = [value for _, values in own for value in values]
            np.testing.assert_array_equal(q[:len(vector)], expected["q"])
            assert not any(q[len(vector):])
            m, r, s, n, v = (int(expected[name][0]) for name in "mrsnv")
            # The reciprocal of nothing is not used.
            found_m, found_r = each["maximum"][sequence]
            assert (found_m, found_r if m else r) == (m, r)
            assert (each["root"][sequence][1], each["v"][sequence]) == (n, [v])
            assert each["root"][sequence][0] == (s if m else 0)
            assert [next(scales) for _ in mantissas] == [
                combine_scale(v, k, params.profile) for k in mantissas]
    return found


def limits(profile: NumericProfile) -> tuple[int, int]:
    bits = max(profile.x.bits, profile.o.bits, profile.p.bits)
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def in_rounds(vectors: list[np.ndarray], params: LayerParams) -> list[list[np.ndarray]]:
    """As many as a phase has sequences at a time; the last one is repeated."""
    batch = params.batch
    vectors = vectors + vectors[-1:] * (-len(vectors) % batch)
    return [vectors[first:first + batch] for first in range(0, len(vectors), batch)]


def extreme_vectors(profile: NumericProfile, length: int) -> list[np.ndarray]:
    low, high = limits(profile)
    place = np.arange(length)
    vectors = [np.zeros(length, dtype=np.int64)]
    for value in (1, 2, 3, 126, 127, 128, 129, -1, -2, -127, -128, high, -high, low, low + 1):
        value = max(min(value, high), low)
        vectors += [np.full(length, value), np.where(place == 0, value, 0),
                    np.where(place == length - 1, value, 0),
                    np.where(place % 2 == 0, value, -max(value, -high)),
                    np.where(place == length // 2, value, np.sign(value))]
    return vectors


def random_vectors(
    profile: NumericProfile, rng: np.random.Generator, length: int, count: int,
) -> list[np.ndarray]:
    """Vectors of any magnitude."""
    low, high = limits(profile)
    return [np.clip(rng.integers(-limit, limit + 1, length), low, high)
            for limit in (2 ** rng.uniform(0, np.log2(high + 1), count)).astype(int)]


@pytest.mark.parametrize(("profile", "sizes"), [
    (S16, {"sequences": 4}), (C12, {"sequences": 1, "quant_lanes": 1}),
    (S16, {"sequences": 2, "compact": True}), (C12, {"sequences": 8, "cell_lanes": 1})], ids=name)
def test_extremes_equal_the_reference(profile, sizes):
    params = params_of(profile, 11, **sizes)
    check(params, in_rounds(extreme_vectors(profile, 11), params))


@pytest.mark.parametrize("compact", [False, True])
def test_every_maximum_of_a_small_format_equals_the_reference(compact):
    params = params_of(TINY, 2, sequences=16, cols=2, quant_lanes=1, compact=compact)
    check(params, in_rounds(
        [np.array([a, b]) for a in range(-16, 16) for b in range(a, 16)], params))


@pytest.mark.parametrize(("sizes", "profile", "sequences"), pairwise(
    [{}, {"root_digit_bits": 2}, {"compact": True}, {"compact": True, "root_digit_bits": 4}],
    [TINY, UNEVEN, S16, C12], [1, 2, 8]), ids=name)
def test_any_digits_and_formats_equal_the_reference(profile, sizes, sequences):
    rng = np.random.default_rng(7)
    params = params_of(profile, 21, rows=2, post_lanes=2, sequences=sequences, **sizes)
    check(params, in_rounds(random_vectors(profile, rng, 21, 4 * sequences), params))


def test_nothing_of_a_longer_vector_leaks_into_a_shorter_one(profile):
    low, high = limits(profile)
    params = params_of(profile, 32, rows=4, sequences=4)
    rounds = []
    for length in (32, 1, 29, 2, 25, 3, 32, 5, 8, 9, 12, 13, 30, 4, 16):
        place = np.arange(length)
        vector = np.where(place % 3, low, high) if length > 20 else place % 2 + 1
        rounds.append([vector, vector[::-1] // 2])
    check(params, rounds)


def test_the_longest_loud_vector_does_not_overflow(profile):
    low, high = limits(profile)
    for channels in (128, 136):
        params = params_of(profile, channels, quant_lanes=8)
        found = check(params, [[np.full(channels, low)], [np.full(channels, high)]])
        assert found[0]["root"] == [[params.norm.sum_max, params.norm.norm_max]]


def test_largest_element_always_becomes_127(profile):
    # What the smallest root, and the flag of a silent vector in its place, rests on.
    maxima = np.arange(1, 1 - limits(profile)[0])
    q = norm_quant(maxima[:, None], profile)["q"]
    assert (q == 127).all()


@pytest.mark.parametrize(("profile", "per_lane"), [(S16, 2), (C12, 2), (TINY, 1)], ids=name)
def test_a_lane_has_few_multipliers_and_one_the_scale(profile, per_lane):
    norm = Norm(params_of(profile, 64, trace=False))
    assert cell_counts(norm, "norm").multipliers == 4 * per_lane + 1


def test_no_factor_is_wider_than_a_multiplier(profile):
    # Two signed numbers of 18 bits; R has no sign.
    norm = params_of(profile, 384).norm
    assert norm.y_bits <= 18
    assert norm.low_bits < 18
    assert norm.r_bits - norm.low_bits < 18


def test_a_root_of_too_many_bits_per_cycle_is_refused():
    with pytest.raises(ValueError, match="root_digit_bits must be a whole number from 1 to 4"):
        _ = params_of(S16, 8, root_digit_bits=5).norm
