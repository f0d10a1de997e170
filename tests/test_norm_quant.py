"""NormQuant against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from norm_bench import NormPauses, check_cycles, check_events, run_norm
from pairwise import pairwise

from sterna.hw.emit.verilog import write_verilog
from sterna.hw.flow.report import cell_counts
from sterna.hw.units.norm_params import NormParams
from sterna.hw.units.norm_quant import NormQuant
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.quantized.integer import norm_quant

STEADY = NormPauses()
PAUSES = [STEADY, NormPauses(words=0.6, scales=0.9, seed=1), NormPauses(0.2, 0.6, 0.4, seed=2)]
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


def check(dut: NormQuant, vectors: list[list[np.ndarray]], pauses: NormPauses = STEADY):
    events, = run_norm(dut, [vectors], pauses=pauses)
    check_events(dut.params, vectors, events)
    check_cycles(dut.params, vectors, events)
    return events


def limits(profile: NumericProfile) -> tuple[int, int]:
    bits = max(profile.x.bits, profile.o.bits, profile.p.bits)
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def random_vectors(
    profile: NumericProfile, rng: np.random.Generator, longest: int, count: int,
) -> list[np.ndarray]:
    """Vectors of any length and magnitude, the shortest and the longest among them."""
    low, high = limits(profile)
    lengths = [longest, 1, *rng.integers(1, longest + 1, count - 2).tolist()]
    vectors = []
    for length in lengths:
        limit = int(2 ** rng.uniform(0, np.log2(high + 1)))
        vectors.append(np.clip(rng.integers(-limit, limit + 1, length), low, high))
    return vectors


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


@pytest.mark.parametrize(("profile", "rows", "lanes"), [
    (S16, 1, 1), (C12, 1, 1), (C12, 2, 8), (S16, 8, 8)], ids=name)
def test_extremes_equal_the_reference(profile, rows, lanes):
    dut = NormQuant(NormParams(profile, rows=rows, lanes=lanes, channels=11, trace=True))
    check(dut, [extreme_vectors(profile, 11)])


@pytest.mark.parametrize(("digit_bits", "reciprocal_steps"), [(0, 6), (5, 2)])
def test_every_maximum_of_a_small_format_equals_the_reference(digit_bits, reciprocal_steps):
    dut = NormQuant(NormParams(
        TINY, rows=1, lanes=1, channels=3, trace=True, digit_bits=digit_bits))
    assert dut.params.reciprocal_steps == reciprocal_steps
    vectors = [np.array([a, b]) for a in range(-16, 16) for b in range(a, 16)]
    check(dut, [vectors])


@pytest.mark.parametrize(("rows", "lanes", "sequences", "profile", "pauses"), [
    (rows, rows * words, *rest) for rows, words, *rest in pairwise(
        [1, 3, 8], [1, 2, 3, 4], [1, 2], [S16, C12], PAUSES,
        where=lambda rows, words, *_: rows * words <= 24)], ids=name)
def test_random_vectors_equal_the_reference_while_every_end_pauses(
        profile, rows, lanes, sequences, pauses):
    rng = np.random.default_rng(pauses.seed + 100)
    dut = NormQuant(NormParams(
        profile, rows=rows, lanes=lanes, channels=37, sequences=sequences, trace=True))
    check(dut, [random_vectors(profile, rng, 37, 5 + 2 * sequence)
                for sequence in range(sequences)], pauses)


@pytest.mark.parametrize(("options", "profile", "sequences"), pairwise(
    [{}, {"digit_bits": 1, "root_digit_bits": 1}, {"digit_bits": 2, "root_digit_bits": 4},
     {"digit_bits": 3, "root_digit_bits": 3}, {"digit_bits": 5}, {"routing_registers": True},
     {"routing_registers": True, "digit_bits": 2}], [TINY, UNEVEN], [1, 2]), ids=name)
def test_any_digits_and_formats_equal_the_reference(profile, options, sequences):
    rng = np.random.default_rng(7)
    dut = NormQuant(NormParams(
        profile, rows=2, lanes=4, channels=21, sequences=sequences, trace=True, **options))
    check(dut, [random_vectors(profile, rng, 21, 6) for _ in range(sequences)])


@pytest.mark.parametrize(("profile", "rows", "lanes"), [
    (S16, 1, 4), (C12, 2, 8), (S16, 4, 4), (C12, 4, 12)], ids=name)
def test_nothing_of_a_longer_vector_leaks_into_a_shorter_one(profile, rows, lanes):
    low, high = limits(profile)
    dut = NormQuant(
        NormParams(profile, rows=rows, lanes=lanes, channels=30, sequences=2, trace=True))
    lengths = [30, 1, 29, 2, 25, 3, 30, 5, 8, 9, 12, 13, 30, 4, 16]
    first = [np.where(np.arange(n) % 3, low, high) if n > 20 else np.arange(n) % 2 + 1
             for n in lengths]
    check(dut, [first, [vector[::-1] // 2 for vector in first[::-1]]])


def test_the_longest_loud_vector_does_not_overflow(profile):
    low, high = limits(profile)
    for channels in (128, 130):
        dut = NormQuant(NormParams(profile, rows=8, lanes=8, channels=channels, trace=True))
        events = check(dut, [[np.full(channels, low), np.full(channels, high)]])
        assert events.scales[0][2]["s"] == dut.params.sum_max
        assert events.scales[0][2]["n"] == dut.params.norm_max


def test_reset_at_any_time_forgets_the_vectors_before(profile):
    rng = np.random.default_rng(9)
    dut = NormQuant(NormParams(profile, rows=2, lanes=4, channels=18, sequences=2, trace=True))
    pauses = NormPauses(0.1, 0.3, 0.5, seed=5)
    cuts: list[int | None] = [1, 9, 11, 12, 13, 14, 16, 20, 26, 33, 50, 70]
    phases, limit = [], []
    for cut in cuts:
        phases += [[random_vectors(profile, rng, 18, 4) for _ in range(2)] for _ in range(2)]
        limit += [cut, None]
    runs = run_norm(dut, phases, pauses=pauses, cut=limit)
    for vectors, cut, events in zip(phases, limit, runs, strict=True):
        if cut is None:
            check_events(dut.params, vectors, events)
            check_cycles(dut.params, vectors, events)
    served = [len(events.services) for cut, events in zip(limit, runs, strict=True) if cut]
    assert min(served) == 0
    assert max(served) > 1


def test_a_sequence_that_waits_long_is_not_passed_over(profile):
    dut = NormQuant(NormParams(profile, rows=1, lanes=1, channels=4, sequences=2))
    vectors = [[np.array([3, -1])] * 12, [np.array([-5, 2, 7])] * 4]
    events = check(dut, vectors, NormPauses(scales=0.5, seed=8))
    assert [sequence for _, sequence in events.services[:8]] == [0, 1] * 4


@pytest.mark.parametrize(("profile", "sizes", "counts"), [
    # max_steps, first_chunk_steps, scale_steps, idle_steps
    (S16, {"rows": 1, "lanes": 1, "channels": 128}, (2, 9, 15, 1)),
    (S16, {"rows": 8, "lanes": 8, "channels": 128}, (3, 9, 17, 1)),
    (S16, {"rows": 8, "lanes": 16, "channels": 384}, (3, 9, 18, 1)),
    (S16, {"rows": 8, "lanes": 8, "channels": 128, "root_digit_bits": 3}, (3, 9, 15, 1)),
    (S16, {"rows": 8, "lanes": 8, "channels": 128, "digit_bits": 4}, (3, 10, 16, 1)),
    (S16, {"rows": 8, "lanes": 8, "channels": 128, "routing_registers": True}, (3, 10, 19, 1)),
    (C12, {"rows": 2, "lanes": 2, "channels": 128}, (2, 9, 15, 1)),
    (C12, {"rows": 32, "lanes": 32, "channels": 128}, (4, 9, 17, 1)),
    (TINY, {"rows": 4, "lanes": 4, "channels": 20, "digit_bits": 5}, (2, 6, 12, 1)),
])
def test_stated_cycles_are_these_and_kept(profile, sizes, counts):
    dut = NormQuant(NormParams(profile, **sizes))
    params = dut.params
    assert counts == (
        params.max_steps, params.first_chunk_steps, params.scale_steps, params.idle_steps)
    rng = np.random.default_rng(11)
    low, high = limits(profile)
    y = rng.integers(max(low, -900), min(high, 900), (2, sizes["channels"]))
    events = check(dut, [list(y)])

    words, chunks = params.words(sizes["channels"]), params.chunks(sizes["channels"])
    assert events.words[0][:words] == list(range(words))
    first = words - 1 + counts[0] + counts[1]
    assert [taken for _, taken, _ in events.acts[:chunks]] == list(range(first, first + chunks))
    assert events.scales[0][1] == first + chunks - 1 + counts[2]


def test_largest_element_always_becomes_127(profile):
    # What the smallest root, and the flag of a silent vector in its place, rests on.
    maxima = np.arange(1, 1 - limits(profile)[0])
    q = norm_quant(maxima[:, None], profile)["q"]
    assert (q == 127).all()


@pytest.mark.parametrize(("sizes", "profile", "per_lane"), [
    ({"rows": 1, "lanes": 1, "digit_bits": 3}, C12, 2),
    ({"rows": 2, "lanes": 4, "sequences": 2, "digit_bits": 4}, S16, 2),
    ({"rows": 1, "lanes": 1}, TINY, 1)])
def test_a_lane_has_few_multipliers_and_a_bank_one_memory(sizes, profile, per_lane, tmp_path):
    dut = NormQuant(NormParams(profile, channels=64, **sizes))
    params = dut.params
    path = write_verilog(dut, "norm_quant", tmp_path)
    counts = cell_counts(path, "norm_quant")
    assert counts.cells["$mul"] == counts.multipliers == per_lane * params.lanes
    # A table gives both quotients.
    assert counts.memory_bits == 64 * params.y_bits * params.sequences + params.table_bits
    if params.digit_bits:
        assert counts.cells["$mem_v2"] == params.banks * params.sequences


def test_no_factor_is_wider_than_a_multiplier(profile):
    # Two signed numbers of 18 bits; R has no sign.
    params = NormParams(profile, rows=8, lanes=16, channels=384)
    assert params.y_bits <= 18
    assert params.low_bits < 18
    assert params.r_bits - params.low_bits < 18


@pytest.mark.parametrize(("arguments", "message"), [
    ({"rows": 0}, "rows must be a whole number from 1"),
    ({"lanes": 0}, "lanes must be a whole number from 1"),
    ({"lanes": 6}, r"lanes \(6\) must be a multiple of rows \(4\)"),
    ({"lanes": 2}, r"lanes \(2\) must be a multiple of rows \(4\)"),
    ({"channels": 0}, "channels must be a whole number from 1"),
    ({"sequences": 3}, "sequences must be a whole number from 1 to 2, got 3"),
    ({"digit_bits": 6}, "digit_bits must be a whole number from 0 to 5, got 6"),
    ({"root_digit_bits": 0}, "root_digit_bits must be a whole number from 1 to 4, got 0"),
])
def test_bad_parameters_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        NormParams(S16, **({"rows": 4, "lanes": 4, "channels": 8} | arguments))
