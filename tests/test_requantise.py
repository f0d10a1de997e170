# amaranth: UnusedElaboratable=no
# A constructor that refuses its arguments leaves an object that nobody can use.
"""The requantiser against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.hw.requantise import Requantise, RequantiseParams
from sterna.hw.testing import Pauses, StreamRun, run_stream
from sterna.model.integer import requantise
from sterna.model.profile import FixedPoint

STEADY = Pauses()


def extremes(bits: int) -> list[int]:
    return [-(1 << (bits - 1)), (1 << (bits - 1)) - 1, -1, 0, 1]


def run_requantise(dut: Requantise, beats: list[dict], pauses=STEADY) -> StreamRun:
    """Run beats given as fields; ``shift`` is an index."""
    layout = dut.params.acc_layout
    payloads = [layout.const(beat).as_value().value for beat in beats]
    return run_stream(dut, dut.accs, dut.results, payloads, len(payloads), pauses=pauses,
                      max_cycles=40 * len(payloads) + 100)


def check(dut: Requantise, beats: list[dict], pauses=STEADY) -> StreamRun:
    params = dut.params
    run = run_requantise(dut, beats, pauses)
    for beat, payload in zip(beats, run.results, strict=True):
        got = list(params.result_layout.from_bits(payload).value)
        expected = requantise(
            np.array(beat["acc"], dtype=object), beat["scale"],
            params.shifts[beat.get("shift", 0)], np.array(beat["bias"], dtype=object),
            FixedPoint(params.out_bits, 0))
        assert got == expected.tolist(), beat
    return run


def random_beats(params: RequantiseParams, rng: np.random.Generator, count: int) -> list[dict]:
    def draw(bits: int) -> int:
        if rng.random() < 0.3:
            return int(rng.choice(extremes(bits)))
        return int(rng.integers(-(1 << (bits - 1)), 1 << (bits - 1)))

    beats = []
    for _ in range(count):
        beat = {
            "acc": [draw(params.sum_bits) for _ in range(params.lanes)],
            "bias": [draw(params.bias_bits) for _ in range(params.lanes)],
            "scale": int(rng.integers(0, 1 << params.scale_bits)),
        }
        if params.select_bits:
            beat["shift"] = int(rng.integers(0, len(params.shifts)))
        beats.append(beat)
    return beats


@pytest.mark.parametrize("shifts", [(0,), (1,), (12,), (40,), (0, 1, 9, 40)])
def test_extremes_equal_the_reference(shifts):
    dut = Requantise(17, 16, 16, 16, shifts=shifts)
    beats = [
        {"acc": [acc], "scale": scale, "bias": [bias]} | ({"shift": i} if len(shifts) > 1 else {})
        for acc in extremes(17) for scale in (0, 1, (1 << 16) - 1) for bias in extremes(16)
        for i in range(len(shifts))]
    check(dut, beats)


@pytest.mark.parametrize("pauses", [STEADY, Pauses(0.5, 0.0, 1), Pauses(0.0, 0.5, 2),
                                    Pauses(0.4, 0.7, 3)], ids=str)
def test_random_lanes_equal_the_reference_while_both_ends_pause(pauses):
    dut = Requantise(17, 14, 18, 10, shifts=(9, 11, 14), lanes=3)
    check(dut, random_beats(dut.params, np.random.default_rng(pauses.seed), 120), pauses)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_width_equals_the_reference(data):
    bits = st.integers(2, 24)
    dut = Requantise(
        data.draw(bits, "sum_bits"), data.draw(bits, "scale_bits"),
        data.draw(bits, "bias_bits"), data.draw(bits, "out_bits"),
        shifts=tuple(sorted(data.draw(st.sets(st.integers(0, 40), min_size=1, max_size=4)))))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30), "seed"))
    check(dut, random_beats(dut.params, rng, 30))


def test_a_beat_per_cycle_and_the_stated_latency():
    dut = Requantise(17, 16, 16, 16, shifts=(9, 12))
    run = check(dut, random_beats(dut.params, np.random.default_rng(4), 20))
    assert run.sent_at == list(range(20))
    assert run.taken_at == list(range(dut.params.latency, dut.params.latency + 20))


@pytest.mark.parametrize(("arguments", "message"), [
    ((1, 16, 16, 16, (9,)), "sum_bits must be a whole number from 2 to 24, got 1"),
    ((17, 16, 16, 25, (9,)), "out_bits must be a whole number from 2 to 24, got 25"),
    ((17, 16, 16, 16, ()), "shifts must name at least one shift"),
    ((17, 16, 16, 16, (41,)), "every shift must be a whole number from 0 to 40, got 41"),
    ((17, 16, 16, 16, (9, 8)), r"shifts must increase, got \(9, 8\)"),
    ((17, 16, 16, 16, (9,), 0), "lanes must be a whole number from 1"),
])
def test_bad_parameters_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RequantiseParams(*arguments)
