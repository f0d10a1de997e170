"""The residual adder against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

import numpy as np
import pytest

from sterna.hw.testbench.amaranth import Pauses, StreamRun, run_stream, run_streams
from sterna.hw.units.residual import ResidualAdd, ResidualParams
from sterna.model.profile import C12, S16, FixedPoint
from sterna.model.quantized.integer import saturate

STEADY = Pauses()
PAUSES = [STEADY, Pauses(0.5, 0.0, 1), Pauses(0.0, 0.5, 2), Pauses(0.4, 0.6, 3)]


def vectors(params: ResidualParams, rng: np.random.Generator, count: int) -> np.ndarray:
    """``y [count, words, rows]``: the first to load, the others to add, with extremes."""
    limit = 1 << (params.update_bits - 1)
    shape = (count, params.words, params.rows)
    y = rng.integers(-limit, limit, shape)
    extreme = rng.choice([-limit, limit - 1, -1, 0, 1], shape)
    y = np.where(rng.random(shape) < 0.3, extreme, y)
    y.reshape(count, -1)[:, params.channels:] = 0
    y[0] = saturate(y[0], params.profile.x)
    return y


def reference(params: ResidualParams, y: np.ndarray, loads=(0,)) -> np.ndarray:
    results, x = [], None
    for index, update in enumerate(y):
        x = update if index in loads else saturate(x + update, params.profile.x)
        results.append(x)
    return np.array(results)


def payloads_of(params: ResidualParams, y: np.ndarray, loads=(0,)) -> list[int]:
    return [
        params.update_layout.const(
            {"y": word.tolist(), "load": int(index in loads)}).as_value().value
        for index, update in enumerate(y) for word in update]


def check_results(params: ResidualParams, results: list[int], expected: np.ndarray) -> None:
    words = expected.reshape(-1, params.rows)
    assert len(results) <= len(words)
    for index, payload in enumerate(results):
        got = params.word_layout.from_bits(payload)
        assert list(got.x) == words[index].tolist(), f"word {index}"
        assert got.last == (index % params.words == params.words - 1), f"word {index}"


def check(dut: ResidualAdd, y: np.ndarray, pauses=STEADY, loads=(0,)) -> StreamRun:
    payloads = payloads_of(dut.params, y, loads)
    run = run_stream(dut, dut.updates, dut.words, payloads, len(payloads), pauses=pauses,
                     max_cycles=20 * len(payloads) + 100)
    check_results(dut.params, run.results, reference(dut.params, y, loads))
    return run


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda profile: profile.name)
def test_every_pair_of_extremes_equals_the_reference(profile):
    fmt = profile.x
    updates = [-(1 << fmt.bits), (1 << fmt.bits) - 1, fmt.min, fmt.max, -1, 0, 1]
    old = [fmt.min, fmt.max, -1, 0, 1, fmt.min + 1, fmt.max - 1]
    pairs = np.array([(a, b) for a in old for b in updates])
    dut = ResidualAdd(ResidualParams(profile, rows=1, channels=len(pairs)))
    check(dut, pairs.T[:, :, None])


@pytest.mark.parametrize("profile", [S16, C12], ids=lambda profile: profile.name)
@pytest.mark.parametrize("pauses", PAUSES, ids=str)
@pytest.mark.parametrize("words", [1, 2, 3, 4, 5, 6, 7])
def test_vectors_of_any_length_equal_the_reference(profile, pauses, words):
    # A channel less than the words hold: the last one of the last word is padding.
    dut = ResidualAdd(ResidualParams(profile, rows=3, channels=3 * words - 1))
    assert dut.params.words == words
    check(dut, vectors(dut.params, np.random.default_rng(pauses.seed), 12), pauses)


@pytest.mark.parametrize(("rows", "channels"), [(1, 1), (1, 2), (1, 5), (4, 3), (8, 64)])
def test_a_word_per_cycle_and_the_stated_latency(rows, channels):
    dut = ResidualAdd(ResidualParams(C12, rows=rows, channels=channels))
    y = vectors(dut.params, np.random.default_rng(5), 9)
    run = check(dut, y)
    count = 9 * dut.params.words
    spacing = dut.params.update_spacing
    assert (dut.params.latency, spacing) == (2, 1 if dut.params.words > 2 else 3)
    assert run.sent_at == list(range(0, spacing * count, spacing))
    assert run.taken_at == [sent + dut.params.latency for sent in run.sent_at]


@pytest.mark.parametrize("words", [3, 4, 6, 9])
def test_without_stalls_and_spacing_every_word_comes_after_the_stated_latency(words):
    dut = ResidualAdd(ResidualParams(S16, rows=2, channels=2 * words, spaced=False, stalls=False))
    run = check(dut, vectors(dut.params, np.random.default_rng(words), 9), Pauses(0.3, 0.0, 3))
    assert [taken - sent for sent, taken in zip(run.sent_at, run.taken_at, strict=True)] == (
        [dut.params.latency] * len(run.results))


@pytest.mark.parametrize("words", [1, 2, 3, 6])
def test_a_later_load_forgets_what_was_kept(words):
    dut = ResidualAdd(ResidualParams(S16, rows=2, channels=2 * words))
    y = vectors(dut.params, np.random.default_rng(6), 9)
    loads = (0, 3, 4, 7)
    y[list(loads)] = saturate(y[list(loads)], S16.x)
    check(dut, y, Pauses(0.2, 0.3, 7), loads)


@pytest.mark.parametrize("words", [1, 2, 3, 6])
def test_reset_in_mid_vector_begins_a_new_vector(words):
    dut = ResidualAdd(ResidualParams(C12, rows=2, channels=2 * words))
    params = dut.params
    rng = np.random.default_rng(8)
    first, second = vectors(params, rng, 4), vectors(params, rng, 4)
    complete = payloads_of(params, second)
    phases = [(payloads_of(params, first), 2 * words + words // 2), (complete, len(complete)),
              (payloads_of(params, first)[:words + 1], 0), (complete, len(complete))]
    runs = run_streams(dut, dut.updates, dut.words, phases, pauses=Pauses(0.2, 0.3, 9),
                       max_cycles=1000)
    check_results(params, runs[0].results, reference(params, first))
    for run in (runs[1], runs[3]):
        check_results(params, run.results, reference(params, second))


def test_an_update_clamped_before_the_sum_changes_no_result():
    x_format = FixedPoint(5, 0)
    clamp = FixedPoint(6, 0)
    x = np.arange(x_format.min, x_format.max + 1)[:, None]
    y = np.arange(-200, 201)[None, :]
    np.testing.assert_array_equal(
        saturate(x + y, x_format), saturate(x + saturate(y, clamp), x_format))


@pytest.mark.parametrize(("rows", "channels", "message"), [
    (0, 8, "rows must be a whole number from 1 to 4096, got 0"),
    (8, 0, "channels must be a whole number from 1 to 1048576, got 0"),
    (8, 2.0, "channels must be a whole number"),
])
def test_bad_sizes_are_refused(rows, channels, message):
    with pytest.raises(ValueError, match=message):
        ResidualParams(S16, rows=rows, channels=channels)
