# amaranth: UnusedElaboratable=no
# A constructor that refuses its arguments leaves an object that nobody can use.
"""The MLGRU unit against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.hw.testbench.amaranth import Pauses, StreamRun, run_stream, run_streams
from sterna.hw.units.mlgru import MlgruParams, MlgruUnit
from sterna.hw.units.mlgru_product import preact_payloads, state_values
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.quantized.integer import mlgru_cell

STEADY = Pauses()
PAUSES = [STEADY, Pauses(0.5, 0.0, 1), Pauses(0.0, 0.5, 2), Pauses(0.4, 0.6, 3)]
# Every shift and width differs from those of the two profiles in use.
ODD = NumericProfile(
    name="odd", x=FixedPoint(13, 8), z=FixedPoint(9, 5), h=FixedPoint(14, 10),
    o=FixedPoint(7, 5), p=FixedPoint(11, 6), logit=FixedPoint(16, 8), reciprocal_bits=16,
    root_frac=2, scale_frac=14, mantissa_bits=12, scale_bits=14, sigmoid_frac=11,
    sigmoid_segments=32)
# A state coarser than z: here alone can a candidate round up out of its format.
COARSE = replace(ODD, name="coarse", h=FixedPoint(5, 1), o=FixedPoint(3, 0))
PROFILES = [S16, C12, ODD, COARSE]


def make(profile: NumericProfile, layers: int, channels: int, lanes: int) -> MlgruUnit:
    return MlgruUnit(MlgruParams(
        profile, layers=layers, channels=channels, lanes=lanes), profile.sigmoid_table())


def reference(profile: NumericProfile, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """o and h of one sequence of pre-activations ``z [tokens, 3, layers, channels]``."""
    table = np.array(profile.sigmoid_table())
    state = np.zeros(z.shape[2:], dtype=np.int64)
    outputs, states = [], []
    for f, c, g in z:
        cell = mlgru_cell(f, c, g, state, table, profile)
        state = cell["h"]
        outputs.append(cell["o"])
        states.append(state)
    return np.array(outputs), np.array(states)


def payloads_of(z: np.ndarray, params: MlgruParams, *, start: bool = True) -> list[int]:
    return [payload for t, (f, c, g) in enumerate(z)
            for payload in preact_payloads(f, c, g, params, start=start and t == 0)]


def check_results(results: list[int], params: MlgruParams, z: np.ndarray) -> None:
    o, h = state_values(results, params)
    expected_o, expected_h = reference(params.profile, z)
    np.testing.assert_array_equal(o.reshape(expected_o.shape), expected_o)
    np.testing.assert_array_equal(h.reshape(expected_h.shape), expected_h)


def run_and_check(unit: MlgruUnit, z: np.ndarray, pauses=STEADY) -> StreamRun:
    payloads = payloads_of(z, unit.params)
    run = run_stream(unit, unit.preacts, unit.states, payloads, len(payloads), pauses=pauses,
                     max_cycles=60 * len(payloads) + 200)
    check_results(run.results, unit.params, z)
    return run


def random_preacts(profile, rng, tokens: int, layers: int, channels: int) -> np.ndarray:
    shape = (tokens, 3, layers, channels)
    z = rng.integers(profile.z.min, profile.z.max + 1, shape)
    extreme = rng.choice([profile.z.min, profile.z.max, 0, -1], shape)
    return np.where(rng.random(shape) < 0.2, extreme, z)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_every_combination_of_extremes_equals_the_reference(profile):
    # Channel by channel: all triples of extreme f, c and g, held for several tokens and then
    # turned around, so that the state is driven from one end of its range to the other.
    ends = [profile.z.min, profile.z.max, -1, 0, profile.z.min + 1]
    triples = np.array([(f, c, g) for f in ends for c in ends for g in ends]).T
    z = np.stack([triples[:, None, :]] * 4 + [np.roll(triples, 31, axis=1)[:, None, :]] * 4)
    run_and_check(make(profile, 1, triples.shape[1], 1), z)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@pytest.mark.parametrize("pauses", PAUSES, ids=str)
def test_random_sequences_equal_the_reference_while_both_ends_pause(profile, pauses):
    rng = np.random.default_rng(pauses.seed)
    run_and_check(make(profile, 2, 6, 2), random_preacts(profile, rng, 8, 2, 6), pauses)


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda profile: profile.name)
@pytest.mark.parametrize(("layers", "channels", "lanes"), [
    (1, 1, 1), (1, 2, 2), (2, 1, 1), (1, 3, 1), (2, 4, 2), (5, 1, 1), (1, 6, 1), (3, 8, 8),
])
@pytest.mark.parametrize("pauses", [STEADY, Pauses(0.3, 0.3, 4)], ids=str)
def test_a_tiny_state_is_never_read_before_it_is_written(
        profile, layers, channels, lanes, pauses):
    unit = make(profile, layers, channels, lanes)
    rng = np.random.default_rng(12)
    run = run_and_check(unit, random_preacts(profile, rng, 10, layers, channels), pauses)
    if pauses == STEADY:
        spacing = unit.params.beat_spacing
        assert run.sent_at == [spacing * i for i in range(len(run.sent_at))]
        assert spacing == max(1, -(-7 // unit.params.words))


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda profile: profile.name)
def test_a_beat_per_cycle_and_the_stated_latency(profile):
    unit = make(profile, 2, 8, 2)
    rng = np.random.default_rng(13)
    run = run_and_check(unit, random_preacts(profile, rng, 3, 2, 8))
    assert run.sent_at == list(range(24))
    assert run.taken_at == list(range(unit.params.latency, unit.params.latency + 24))


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda profile: profile.name)
@pytest.mark.parametrize("pauses", [STEADY, Pauses(0.3, 0.5, 5)], ids=str)
def test_start_in_mid_token_begins_a_new_sequence(profile, pauses):
    unit = make(profile, 2, 6, 2)
    params = unit.params
    rng = np.random.default_rng(14)
    sequences = [random_preacts(profile, rng, tokens, 2, 6) for tokens in (3, 2, 1, 4)]
    # All but the last are cut off within their last token, one after its first beat.
    cuts = [params.words - 2, 1, params.words - 1, 0]
    payloads, kept = [], []
    for z, cut in zip(sequences, cuts, strict=True):
        beats = payloads_of(z, params)
        beats = beats[:len(beats) - cut]
        kept.append(len(beats))
        payloads += beats
    run = run_stream(unit, unit.preacts, unit.states, payloads, len(payloads), pauses=pauses,
                     max_cycles=60 * len(payloads))
    begin = 0
    for z, count in zip(sequences, kept, strict=True):
        o, h = state_values(run.results[begin:begin + count], params)
        expected_o, expected_h = reference(profile, z)
        np.testing.assert_array_equal(o.reshape(-1), expected_o.reshape(-1)[:o.size])
        np.testing.assert_array_equal(h.reshape(-1), expected_h.reshape(-1)[:h.size])
        begin += count


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda profile: profile.name)
def test_reset_in_mid_sequence_begins_a_new_sequence(profile):
    unit = make(profile, 2, 6, 2)
    params = unit.params
    rng = np.random.default_rng(15)
    first, second = (random_preacts(profile, rng, 4, 2, 6) for _ in range(2))
    complete = payloads_of(second, params, start=False)  # the reset alone must suffice
    phases = [
        (payloads_of(first, params), 3 * params.words + 2), (complete, len(complete)),
        (payloads_of(first, params)[:params.words + 1], 0), (complete, len(complete)),
    ]
    runs = run_streams(unit, unit.preacts, unit.states, phases, pauses=Pauses(0.2, 0.3, 6),
                       max_cycles=2000)
    check_results(runs[1].results, params, second)
    check_results(runs[3].results, params, second)


def test_a_start_at_every_token_keeps_no_state():
    unit = make(C12, 1, 6, 1)
    rng = np.random.default_rng(16)
    tokens = random_preacts(C12, rng, 5, 1, 6)
    payloads = [payload for z in tokens for payload in payloads_of(z[None], unit.params)]
    run = run_stream(unit, unit.preacts, unit.states, payloads, len(payloads), max_cycles=500)
    for t, z in enumerate(tokens):
        check_results(run.results[6 * t:6 * t + 6], unit.params, z[None])


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_unit_that_never_stalls_gives_the_same_results(profile):
    params = MlgruParams(profile, layers=2, channels=8, lanes=2, stalls=False)
    unit = MlgruUnit(params, profile.sigmoid_table())
    rng = np.random.default_rng(18)
    z = random_preacts(profile, rng, 6, 2, 8)
    run = run_and_check(unit, z, Pauses(0.4, 0.0, 7))
    assert [taken - sent for sent, taken in zip(run.sent_at, run.taken_at, strict=True)] == (
        [unit.params.latency] * len(run.results))


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_formats_equal_the_reference(data):
    limit_bits = data.draw(st.integers(1, 4), "limit_bits")
    z_frac = data.draw(st.integers(1, 8), "z_frac")
    z = FixedPoint(limit_bits + 1 + z_frac, z_frac)
    h_frac = data.draw(st.integers(1, 12), "h_frac")
    h = FixedPoint(limit_bits + 1 + h_frac, h_frac)
    o_frac = data.draw(st.integers(0, 10), "o_frac")
    sigmoid_frac = data.draw(st.integers(max(1, h_frac - z_frac, o_frac - h_frac), 15), "Ff")
    index_bits = data.draw(st.integers(1, min(z.bits, 7)), "index_bits")
    profile = replace(
        S16, name="drawn", z=z, h=h, o=FixedPoint(data.draw(st.integers(3, 16)), o_frac),
        p=FixedPoint(16, 0), sigmoid_frac=sigmoid_frac, sigmoid_segments=1 << index_bits)
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30), "seed"))
    run_and_check(make(profile, 2, 4, 2), random_preacts(profile, rng, 8, 2, 4))


@pytest.mark.parametrize(("arguments", "message"), [
    ((S16, 0, 8, 1), "layers must be a whole number from 1 to 1024, got 0"),
    ((S16, 1, 0, 1), "channels must be a whole number from 1"),
    ((S16, 1, 8, 0), "lanes must be a whole number from 1"),
    ((S16, 1, 8, 3), r"channels \(8\) must be a multiple of lanes \(3\)"),
])
def test_bad_sizes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MlgruParams(*arguments)


def test_a_table_of_another_profile_is_refused():
    with pytest.raises(ValueError, match="sigmoid table of profile C12 has 256 entries, got 65"):
        MlgruUnit(MlgruParams(C12, layers=1, channels=8), S16.sigmoid_table())


def test_bad_preactivations_are_refused():
    params = MlgruParams(C12, 1, 4, 2)
    good = np.zeros((1, 4), dtype=np.int64)
    with pytest.raises(ValueError, match=r"c must have shape \(1, 4\), got \(4,\)"):
        preact_payloads(good, good[0], good, params, start=True)
    with pytest.raises(ValueError, match="g must be from -128 to 127, got 128 to 128"):
        preact_payloads(good, good, good + 128, params, start=True)


def test_payload_bits_are_where_the_layout_puts_them():
    params = MlgruParams(ODD, 1, 4, 2)
    rng = np.random.default_rng(17)
    f, c, g = random_preacts(ODD, rng, 1, 1, 4)[0]
    for start in (False, True):
        for beat, payload in enumerate(preact_payloads(f, c, g, params, start=start)):
            lanes = slice(2 * beat, 2 * beat + 2)
            expected = params.preact_layout.const({
                "f": f[0, lanes].tolist(), "c": c[0, lanes].tolist(),
                "g": g[0, lanes].tolist(), "start": int(start and beat == 0)})
            assert payload == expected.as_value().value
    result = params.state_layout.const({"o": [-64, 63], "h": [-8192, 8191]})
    o, h = state_values([result.as_value().value], params)
    assert (o.tolist(), h.tolist()) == ([[-64, 63]], [[-8192, 8191]])
