"""NormQuant against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from amaranth.hdl import Const
from pairwise import pairwise
from stream_bench import Passed, Pauses, run_ports

from sterna.hw.emit.verilog import write_verilog
from sterna.hw.flow.report import cell_counts
from sterna.hw.units.norm_params import NormParams
from sterna.hw.units.norm_quant import NormQuant
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.quantized.integer import norm_quant

STEADY = Pauses()
PAUSES = [STEADY, Pauses(0.6, {"scales": 0.9}, 1), Pauses(0.2, {"acts": 0.6, "scales": 0.4}, 2)]
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


Run = dict[str, Passed]
Vectors = Sequence[np.ndarray]


def run_norm(
    dut: NormQuant, phases: Sequence[tuple[Sequence[Vectors], int | None]], pauses: Pauses = STEADY,
) -> list[Run]:
    """Run the vectors of each sequence until their scales were taken, or for so many cycles."""
    params = dut.params
    service = SimpleNamespace(
        valid=dut.service, ready=Const(1),
        payload=dut.service_sequence if params.sequences > 1 else Const(0))
    return run_ports(
        dut, {f"words{index}": stream for index, stream in enumerate(dut.words)},
        {"acts": dut.acts, "scales": dut.scales, "service": service},
        [({f"words{index}": pack(params, of_sequence) for index, of_sequence in enumerate(vectors)},
          {"scales": sum(map(len, vectors))}, cycles) for vectors, cycles in phases],
        pauses=pauses)


def pack(params: NormParams, vectors: Vectors) -> list[int]:
    """The payloads of the words of vectors, one vector after the other."""
    payloads = []
    for vector in vectors:
        count = params.words(len(vector))
        padded = np.pad(vector, (0, count * params.rows - len(vector)))
        payloads += [params.word_layout.const({"y": word, "last": index == count - 1}).as_value()
                     .value for index, word in enumerate(padded.reshape(count, -1).tolist())]
    return payloads


def fields(layout, payload: int) -> dict:
    view = layout.from_bits(payload)
    return {name: list(view[name]) if name == "q" else int(view[name]) for name in layout.members}


def check_results(params: NormParams, vectors: Sequence[Vectors], run: Run) -> None:
    """Hold every output of a run to the reference, and the sequences to their order."""
    acts = (fields(params.act_layout, payload) for payload in run["acts"].payloads)
    scales = (fields(params.scale_layout, payload) for payload in run["scales"].payloads)
    places = [iter(of_sequence) for of_sequence in vectors]
    assert len(run["service"].at) == sum(map(len, vectors))
    for sequence in run["service"].payloads:
        y = next(places[sequence])
        expected = norm_quant(y, params.profile)
        q: list[int] = []
        chunks = params.chunks(len(y))
        for index in range(chunks):
            act = next(acts)
            assert act["last"] == (index == chunks - 1)
            assert act.get("sequence", 0) == sequence
            q += act["q"]
        np.testing.assert_array_equal(q[:len(y)], expected["q"])
        assert not any(q[len(y):])
        scale = next(scales)
        assert scale.pop("sequence", 0) == sequence
        assert scale == {name: int(expected[name][0])
                         for name in ("v", *("mrsn" if params.trace else ()))}
    assert next(acts, None) is None
    assert next(scales, None) is None


def check_cycles(params: NormParams, vectors: Sequence[Vectors], run: Run) -> None:
    """Hold the cycle of every event to the counts of ``params``, pauses and all."""
    acts, scales = run["acts"], run["scales"]
    words = [run[f"words{index}"] for index in range(len(vectors))]
    arrivals, ends = [], []
    for of_sequence, passed in zip(vectors, words, strict=True):
        lasts = np.cumsum([params.words(len(y)) for y in of_sequence]) - 1
        ends.append([passed.at[last] for last in lasts])
        arrivals.append([end + params.max_steps for end in ends[-1]])
    free, before, chunk = 0, params.sequences - 1, 0
    released: list[list[int]] = [[] for _ in vectors]
    for index, (service, sequence) in enumerate(
            zip(run["service"].at, run["service"].payloads, strict=True)):
        heads = {place: arrivals[place][len(released[place])] for place in range(len(vectors))
                 if len(released[place]) < len(arrivals[place])}
        expected = max(free, min(heads.values()))
        waiting = [place for place, arrival in heads.items() if arrival <= expected]
        assert service == expected
        assert sequence == (waiting[0] if len(waiting) == 1 else 1 - before)
        before = sequence

        due = service + params.first_chunk_steps
        for _ in range(params.chunks(len(vectors[sequence][len(released[sequence])]))):
            first = acts.offered_at[chunk]
            assert first == due
            due, chunk = acts.at[chunk] + 1, chunk + 1
        released[sequence].append(first)
        assert scales.offered_at[index] == acts.at[chunk - 1] + params.scale_steps
        free = scales.at[index] + params.idle_steps

    for passed, closed, opened in zip(words, ends, released, strict=True):
        shut = {cycle for start, end in zip(closed, opened, strict=True)
                for cycle in range(start + 1, end)}
        assert passed.ready_at == [
            cycle for cycle in range(free - params.idle_steps + 1) if cycle not in shut]


def check(dut: NormQuant, vectors: list[list[np.ndarray]], pauses: Pauses = STEADY) -> Run:
    run, = run_norm(dut, [(vectors, None)], pauses)
    check_results(dut.params, vectors, run)
    check_cycles(dut.params, vectors, run)
    return run


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
     {"digit_bits": 3, "root_digit_bits": 3}, {"digit_bits": 5}], [TINY, UNEVEN], [1, 2]), ids=name)
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
        run = check(dut, [[np.full(channels, low), np.full(channels, high)]])
        scale = fields(dut.params.scale_layout, run["scales"].payloads[0])
        assert (scale["s"], scale["n"]) == (dut.params.sum_max, dut.params.norm_max)


def test_reset_at_any_time_forgets_the_vectors_before(profile):
    rng = np.random.default_rng(9)
    dut = NormQuant(NormParams(profile, rows=2, lanes=4, channels=18, sequences=2, trace=True))
    phases = []
    for cut in (1, 9, 11, 12, 13, 14, 16, 20, 26, 33, 50, 70):
        phases += [([random_vectors(profile, rng, 18, 4) for _ in range(2)], cycles)
                   for cycles in (cut, None)]
    runs = run_norm(dut, phases, Pauses(0.1, {"acts": 0.3, "scales": 0.5}, 5))
    for (vectors, _), run in zip(phases[1::2], runs[1::2], strict=True):
        check_results(dut.params, vectors, run)
        check_cycles(dut.params, vectors, run)
    served = [len(run["service"].at) for run in runs[::2]]
    assert min(served) == 0
    assert max(served) > 1


def test_a_sequence_that_waits_long_is_not_passed_over(profile):
    dut = NormQuant(NormParams(profile, rows=1, lanes=1, channels=4, sequences=2))
    vectors = [[np.array([3, -1])] * 12, [np.array([-5, 2, 7])] * 4]
    run = check(dut, vectors, Pauses(sink={"scales": 0.5}, seed=8))
    assert run["service"].payloads[:8] == [0, 1] * 4


@pytest.mark.parametrize(("profile", "sizes", "counts"), [
    # max_steps, first_chunk_steps, scale_steps, idle_steps
    (S16, {"rows": 1, "lanes": 1, "channels": 128}, (2, 9, 15, 1)),
    (S16, {"rows": 8, "lanes": 8, "channels": 128}, (3, 9, 17, 1)),
    (S16, {"rows": 8, "lanes": 16, "channels": 384}, (3, 9, 18, 1)),
    (S16, {"rows": 8, "lanes": 8, "channels": 128, "root_digit_bits": 3}, (3, 9, 15, 1)),
    (S16, {"rows": 8, "lanes": 8, "channels": 128, "digit_bits": 4}, (3, 10, 16, 1)),
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
    run = check(dut, [list(y)])

    words, chunks = params.words(sizes["channels"]), params.chunks(sizes["channels"])
    assert run["words0"].at[:words] == list(range(words))
    first = words - 1 + counts[0] + counts[1]
    assert run["acts"].at[:chunks] == list(range(first, first + chunks))
    assert run["scales"].at[0] == first + chunks - 1 + counts[2]


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
    assert counts.memory_bits == 64 * params.y_bits * params.sequences + (
        params.table.memory_bits if params.digit_bits == 0 else 0)
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
