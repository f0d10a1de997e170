# amaranth: UnusedElaboratable=no
# A constructor that refuses its arguments leaves an object that nobody can use.
"""The GLU unit against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sterna.hw.testbench.amaranth import Pauses, StreamRun, run_stream, run_streams
from sterna.hw.units.glu import GluParams, GluUnit
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.quantized.integer import glu_product

STEADY = Pauses()
PAUSES = [STEADY, Pauses(0.5, 0.0, 1), Pauses(0.0, 0.5, 2), Pauses(0.4, 0.6, 3)]
# Widths and shifts that neither profile in use has.
ODD = replace(S16, name="odd", z=FixedPoint(9, 5), h=FixedPoint(14, 10), o=FixedPoint(7, 5),
              p=FixedPoint(5, 3), sigmoid_frac=11, sigmoid_segments=32)
PROFILES = [S16, C12, ODD]


def make(profile: NumericProfile, **options) -> GluUnit:
    return GluUnit(GluParams(profile, **options), profile.sigmoid_table())


def random_beats(dut: GluUnit, rng: np.random.Generator, count: int) -> list[dict]:
    params, z = dut.params, dut.params.profile.z
    shape = (count, 2, params.lanes)
    values = np.where(rng.random(shape) < 0.25,
                      rng.choice([z.min, z.max, z.min + 1, -1, 0, 1], shape),
                      rng.integers(z.min, z.max + 1, shape))
    beats = []
    for gate, up in values.tolist():
        beat = {"gate": gate, "up": up, "last": int(rng.integers(2))}
        if params.sequences > 1:
            beat["sequence"] = int(rng.integers(2))
        beats.append(beat)
    return beats


def payloads_of(dut: GluUnit, beats: list[dict]) -> list[int]:
    return [dut.params.preact_layout.const(beat).as_value().value for beat in beats]


def check_results(dut: GluUnit, results: list[int], beats: list[dict]) -> None:
    params = dut.params
    table = np.array(params.profile.sigmoid_table())
    silu, p = glu_product(np.array([beat["gate"] for beat in beats]),
                          np.array([beat["up"] for beat in beats]), table, params.profile)
    for index, (beat, payload) in enumerate(zip(beats, results, strict=False)):
        got = params.product_layout.from_bits(payload)
        assert list(got.p) == p[index].tolist(), beat
        assert got.last == beat["last"]
        if params.sequences > 1:
            assert got.sequence == beat["sequence"]
        if params.trace:
            assert list(got.silu) == silu[index].tolist(), beat


def check(dut: GluUnit, beats: list[dict], pauses=STEADY) -> StreamRun:
    run = run_stream(dut, dut.preacts, dut.products, payloads_of(dut, beats), len(beats),
                     pauses=pauses, max_cycles=20 * len(beats) + 100)
    check_results(dut, run.results, beats)
    return run


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_every_pair_of_extremes_equals_the_reference(profile):
    z = profile.z
    ends = [z.min, z.max, z.min + 1, z.max - 1, -1, 0, 1]
    check(make(profile, lanes=1, trace=True),
          [{"gate": [a], "up": [b], "last": 0} for a in ends for b in ends])


@pytest.mark.parametrize("pauses", PAUSES, ids=str)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_random_beats_equal_the_reference_while_both_ends_pause(profile, pauses):
    dut = make(profile, lanes=3, sequences=2, trace=True)
    check(dut, random_beats(dut, np.random.default_rng(pauses.seed), 60), pauses)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_beat_per_cycle_and_the_stated_latency(profile):
    dut = make(profile, lanes=2)
    run = check(dut, random_beats(dut, np.random.default_rng(4), 20))
    assert dut.params.latency == (6 if profile.sigmoid_step_bits == 0 else 8)
    assert run.sent_at == list(range(20))
    assert run.taken_at == list(range(dut.params.latency, dut.params.latency + 20))


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda profile: profile.name)
def test_reset_forgets_what_is_under_way(profile):
    dut = make(profile, lanes=2)
    beats = random_beats(dut, np.random.default_rng(5), 40)
    first, second = beats[:20], beats[20:]
    phases = [(payloads_of(dut, first), 9), (payloads_of(dut, second), 20),
              (payloads_of(dut, first[:3]), 0), (payloads_of(dut, second), 20)]
    runs = run_streams(dut, dut.preacts, dut.products, phases, pauses=Pauses(0.2, 0.3, 6),
                       max_cycles=500)
    check_results(dut, runs[0].results, first)
    for run in (runs[1], runs[3]):
        check_results(dut, run.results, second)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@pytest.mark.parametrize("options", [
    {"stalls": False}, {"silu_table": True}], ids=str)
def test_how_it_is_built_changes_no_result_and_no_latency(profile, options):
    dut = make(profile, lanes=2, **options)
    beats = random_beats(dut, np.random.default_rng(7), 30)
    run = check(dut, beats, Pauses(0.4, 0.0, 8))
    assert [taken - sent for sent, taken in zip(run.sent_at, run.taken_at, strict=True)] == (
        [dut.params.latency] * len(beats))


def test_every_gate_of_a_table_of_silu_equals_the_reference():
    dut = make(C12, lanes=1, trace=True, silu_table=True)
    assert dut.params.looks_up_silu
    assert not make(S16, lanes=1, silu_table=True).params.looks_up_silu
    check(dut, [{"gate": [gate], "up": [3], "last": 0}
                for gate in range(C12.z.min, C12.z.max + 1)])


def test_another_table_gives_another_product():
    table = C12.sigmoid_table()
    table[140:] = [C12.sigmoid_max] * len(table[140:])
    dut = GluUnit(GluParams(C12, lanes=1), table)
    beats = [{"gate": [140 - 128], "up": [C12.z.max], "last": 0}]
    with pytest.raises(AssertionError):
        check(dut, beats)
    check(make(C12, lanes=1), beats)


def test_fields_are_there_only_where_they_are_needed():
    def names(layout):
        return [name for name, _ in layout]

    plain, full = make(C12, lanes=2).params, make(C12, lanes=2, sequences=2, trace=True).params
    assert names(plain.preact_layout) == ["gate", "up", "last"]
    assert names(full.preact_layout) == ["gate", "up", "last", "sequence"]
    assert names(plain.product_layout) == ["p", "last"]
    assert names(full.product_layout) == ["p", "last", "sequence", "silu"]
    assert (plain.sequence_bits, full.sequence_bits) == (0, 1)


@pytest.mark.parametrize(("options", "message"), [
    ({"lanes": 0}, "lanes must be a whole number from 1 to 4096, got 0"),
    ({"lanes": 1, "sequences": 3}, "sequences must be a whole number from 1 to 2, got 3"),
])
def test_bad_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(S16, **options)


def test_a_table_of_another_profile_is_refused():
    with pytest.raises(ValueError, match="sigmoid table of profile C12 has 256 entries, got 65"):
        GluUnit(GluParams(C12, lanes=1), S16.sigmoid_table())
