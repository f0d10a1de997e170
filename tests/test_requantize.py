"""The requantiser against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from amaranth.hdl import Cat, Elaboratable, Module, Signal, signed
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.hw.parts.requantize import Requantize, RequantizeParams
from sterna.hw.testbench.amaranth import Pauses, StreamRun, run_stream
from sterna.model.profile import FixedPoint
from sterna.model.quantized.integer import requantize

STEADY = Pauses()


def extremes(bits: int) -> list[int]:
    return [-(1 << (bits - 1)), (1 << (bits - 1)) - 1, -1, 0, 1]


def run_requantize(dut: Requantize, beats: list[dict], pauses=STEADY) -> StreamRun:
    """Run beats given as fields; ``shift`` is an index."""
    layout = dut.params.acc_layout
    payloads = [layout.const(beat).as_value().value for beat in beats]
    return run_stream(dut, dut.accs, dut.results, payloads, len(payloads), pauses=pauses,
                      max_cycles=40 * len(payloads) + 100)


def check(dut: Requantize, beats: list[dict], pauses=STEADY) -> StreamRun:
    params = dut.params
    run = run_requantize(dut, beats, pauses)
    for beat, payload in zip(beats, run.results, strict=True):
        check_result(params, beat, payload)
    return run


def check_result(params: RequantizeParams, beat: dict, payload: int) -> None:
    got = params.result_layout.from_bits(payload)
    shift = params.shifts[beat.get("shift", 0)]
    acc, bias = (np.array(beat[name], dtype=object) for name in ("acc", "bias"))

    def expected(bits: int) -> list[int]:
        return requantize(acc, beat["scale"], shift, bias, FixedPoint(bits, 0)).tolist()

    assert list(got.value) == expected(params.out_bits), beat
    for index, bits in enumerate(params.narrower):
        narrow = expected(bits)
        for lane in range(params.lanes):
            assert (got.fits[lane] >> index) & 1 == (got.value[lane] == narrow[lane]), beat
    if params.trace:
        # What saturates at 24 bits is of no more use than what does at the widest format.
        widest = expected(24)
        assert [max(min(full, (1 << 23) - 1), -1 << 23) for full in got.full] == widest, beat


def random_beats(params: RequantizeParams, rng: np.random.Generator, count: int) -> list[dict]:
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
    dut = Requantize(RequantizeParams(17, 16, 16, 16, shifts=shifts))
    beats = [
        {"acc": [acc], "scale": scale, "bias": [bias]} | ({"shift": i} if len(shifts) > 1 else {})
        for acc in extremes(17) for scale in (0, 1, (1 << 16) - 1) for bias in extremes(16)
        for i in range(len(shifts))]
    check(dut, beats)


@pytest.mark.parametrize("pauses", [STEADY, Pauses(0.5, 0.0, 1), Pauses(0.0, 0.5, 2),
                                    Pauses(0.4, 0.7, 3)], ids=str)
def test_random_lanes_equal_the_reference_while_both_ends_pause(pauses):
    dut = Requantize(RequantizeParams(17, 14, 18, 10, shifts=(9, 11, 14), lanes=3))
    check(dut, random_beats(dut.params, np.random.default_rng(pauses.seed), 120), pauses)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_width_equals_the_reference(data):
    bits = st.integers(2, 24)
    params = RequantizeParams(
        data.draw(bits, "sum_bits"), data.draw(bits, "scale_bits"),
        data.draw(bits, "bias_bits"), data.draw(bits, "out_bits"),
        shifts=tuple(sorted(data.draw(st.sets(st.integers(0, 40), min_size=1, max_size=4)))))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30), "seed"))
    check(Requantize(params), random_beats(params, rng, 30))


@pytest.mark.parametrize(("sums", "scale", "bias", "out", "narrower"), [
    (17, 16, 17, 17, (16,)), (17, 14, 17, 16, (13, 8)), (12, 9, 5, 20, (19, 3, 2)),
    (24, 24, 24, 2, ()), (2, 2, 2, 24, (2,)), (20, 16, 24, 6, (5,)),
])
def test_narrower_formats_and_unsaturated_results_equal_the_reference(
        sums, scale, bias, out, narrower):
    dut = Requantize(RequantizeParams(
        sums, scale, bias, out, shifts=(3, 12, 13), lanes=2, narrower=narrower, trace=True,
        tag_bits=5))
    check(dut, random_beats(dut.params, np.random.default_rng(9), 150))


class Narrowed(Elaboratable):
    """A requantiser and its results in a narrower format."""

    def __init__(self, requantize: Requantize, bits: int) -> None:
        self.requantize = requantize
        self.bits = bits
        self.values = [Signal(signed(bits)) for _ in range(requantize.params.lanes)]

    def elaborate(self, platform):
        m = Module()
        m.submodules.requantize = unit = self.requantize
        m.d.comb += [
            value.eq(unit.params.narrowed(unit.results.payload, lane, self.bits))
            for lane, value in enumerate(self.values)]
        return m


@pytest.mark.parametrize("bits", [16, 13, 8])
def test_a_result_saturated_twice_is_saturated_to_the_narrower_format(bits):
    unit = Requantize(RequantizeParams(
        17, 14, 17, 16, shifts=(9, 12), lanes=2, narrower=(13, 8), stalls=False))
    params = unit.params
    dut = Narrowed(unit, bits)
    beats = random_beats(params, np.random.default_rng(bits), 100)
    payloads = [params.acc_layout.const(beat).as_value().value for beat in beats]
    results = SimpleNamespace(
        payload=Cat(dut.values), valid=unit.results.valid, ready=Signal())
    run = run_stream(dut, unit.accs, results, payloads, len(payloads), max_cycles=300)
    for beat, payload in zip(beats, run.results, strict=True):
        expected = requantize(
            np.array(beat["acc"]), beat["scale"], params.shifts[beat["shift"]],
            np.array(beat["bias"]), FixedPoint(bits, 0)).tolist()
        assert payload == sum(
            (value & (1 << bits) - 1) << bits * lane for lane, value in enumerate(expected))
    assert [taken - sent for sent, taken in zip(run.sent_at, run.taken_at, strict=True)] == (
        [params.latency] * len(beats))


def test_a_format_that_no_result_is_checked_for_is_refused():
    params = RequantizeParams(17, 14, 17, 16, shifts=(9,), narrower=(13,))
    with pytest.raises(ValueError, match=r"bits must be 16 or one of narrower \(13,\), got 12"):
        params.narrowed(Signal(params.result_layout), 0, 12)


def test_a_beat_per_cycle_and_the_stated_latency():
    dut = Requantize(RequantizeParams(17, 16, 16, 16, shifts=(9, 12)))
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
        RequantizeParams(*arguments)
