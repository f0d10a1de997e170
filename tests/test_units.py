# amaranth: UnusedElaboratable=no
# A constructor that refuses its arguments leaves an object that nobody can use.
"""Units with a stream in and a stream out against the reference, in Amaranth's simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Cat, Elaboratable, Module, Signal, signed
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_bench import Pauses, StreamRun, run_stream, run_streams

from sterna.hw.parts.requantize import Requantize, RequantizeParams
from sterna.hw.parts.sigmoid_table import SigmoidParams
from sterna.hw.units.glu import GluParams, GluUnit
from sterna.hw.units.mlgru import MlgruParams, MlgruUnit
from sterna.model.profile import C12, S16, FixedPoint, NumericProfile
from sterna.model.quantized.integer import IntegerRecords, requantize, saturate
from sterna.model.quantized.records import glu_cell, mlgru_cell

STEADY = Pauses()
PAUSES = [STEADY, Pauses(0.5, 0.0, 1), Pauses(0.0, 0.5, 2), Pauses(0.4, 0.6, 3)]
# Every shift and width differs from those of the two profiles in use.
ODD = NumericProfile(
    name="odd", x=FixedPoint(13, 8), z=FixedPoint(9, 5), h=FixedPoint(14, 10),
    o=FixedPoint(7, 5), p=FixedPoint(5, 3), logit=FixedPoint(16, 8), reciprocal_bits=16,
    root_frac=2, scale_frac=14, mantissa_bits=12, scale_bits=14, sigmoid_frac=11,
    sigmoid_segments=32)
# A state coarser than z: here alone can a candidate round up out of its format.
COARSE = replace(ODD, name="coarse", h=FixedPoint(5, 1), o=FixedPoint(3, 0))
PROFILES = [S16, C12, ODD, COARSE]

Beats = list[dict[str, Any]]
def numbers(rng: np.random.Generator, bits: int, shape: int | tuple[int, ...]) -> np.ndarray:
    """Signed numbers, many of them at the ends of their range or beside zero."""
    top = 1 << (bits - 1)
    extreme = rng.choice([-top, top - 1, min(-top + 1, 0), -1, 0, min(1, top - 1)], shape)
    return np.where(rng.random(shape) < 0.3, extreme, rng.integers(-top, top, shape))


def columns(**values: Any) -> Beats:
    """Beats from arrays that have a row for each."""
    rows = zip(*(np.asarray(each).tolist() for each in values.values()), strict=True)
    return [dict(zip(values, row, strict=True)) for row in rows]


# Each kind of unit: how to make it, random beats, and what the reference makes of beats.


def glu(profile: NumericProfile, lanes: int = 2, **options) -> GluUnit:
    return GluUnit(GluParams(profile, lanes, **options), profile.sigmoid_table())


def glu_beats(dut: GluUnit, rng: np.random.Generator, count: int) -> Beats:
    params = dut.params
    shape, bits = (count, params.lanes), params.profile.z.bits
    return columns(gate=numbers(rng, bits, shape), up=numbers(rng, bits, shape),
                   last=rng.integers(2, size=count))


def glu_results(dut: GluUnit, beats: Beats) -> Beats:
    params = dut.params
    values = {f"glu.{name}.z": np.array([beat[name] for beat in beats]) for name in ("gate", "up")}
    IntegerRecords(glu_cell(params.profile, "glu", params.lanes), {},
                   np.array(params.profile.sigmoid_table())).run(values)
    found = columns(p=values["glu.p"],
                    **({"silu": values["glu.gate.silu"]} if params.trace else {}))
    return [{**each, "last": beat["last"]} for each, beat in zip(found, beats, strict=True)]


def mlgru(profile: NumericProfile, layers: int, channels: int, lanes: int, **options) -> MlgruUnit:
    return MlgruUnit(MlgruParams(profile, layers, channels, lanes, **options),
                     profile.sigmoid_table())


def mlgru_beats(dut: MlgruUnit, rng: np.random.Generator, count: int) -> Beats:
    """Beats of text, a new sequence beginning now and then, whatever came before."""
    params = dut.params
    z = (numbers(rng, params.profile.z.bits, (count, params.lanes)) for _ in range(3))
    starts = rng.random(count) < 0.3 / params.words
    return columns(**dict(zip("fcg", z, strict=True)), start=starts.astype(int))


def mlgru_results(dut: MlgruUnit, beats: Beats) -> Beats:
    params, found = dut.params, []
    cell = IntegerRecords(
        mlgru_cell(params.profile, "mlgru", params.lanes), {}, np.array(dut._table))
    tensors = {"o": "o", "h": "h", **(
        {"f": "f.sigmoid", "g": "g.sigmoid", "c": "c.silu"} if params.trace else {})}
    taken = 0
    states = np.zeros((params.words, params.lanes), dtype=np.int64)
    for beat in beats:
        if beat["start"]:
            taken, states[:] = 0, 0
        word = taken % params.words
        values = {f"mlgru.{part}.z": np.array(beat[part]) for part in "fcg"}
        _, (states[word],) = cell.run(values, [states[word]])
        taken += 1
        found.append({**{part: values[f"mlgru.{name}"].tolist()
                         for part, name in tensors.items()},
                      "last": int(taken % params.beats_per_layer == 0)})
    return found


def requantizer(*arguments, **options) -> Requantize:
    return Requantize(RequantizeParams(*arguments, **options))


def requantize_beats(dut: Requantize, rng: np.random.Generator, count: int) -> Beats:
    params = dut.params
    shift = ({"shift": rng.integers(len(params.shifts), size=count)}
             if params.select_bits else {})
    tag = {"tag": rng.integers(1 << params.tag_bits, size=count)} if params.tag_bits else {}
    return columns(
        acc=numbers(rng, params.sum_bits, (count, params.lanes)),
        bias=numbers(rng, params.bias_bits, (count, params.lanes)),
        scale=rng.integers(0, 1 << params.scale_bits, count), **shift, **tag)


def requantized(params: RequantizeParams, beat: dict, bits: int) -> list[int]:
    return requantize(
        np.array(beat["acc"], dtype=object), beat["scale"], params.shifts[beat.get("shift", 0)],
        np.array(beat["bias"], dtype=object), FixedPoint(bits, 0)).tolist()


def requantize_results(dut: Requantize, beats: Beats) -> Beats:
    params, found = dut.params, []
    for beat in beats:
        value = requantized(params, beat, params.out_bits)
        result = {"value": value, **{name: beat[name] for name in beat if name == "tag"}}
        if params.narrower:
            narrow = [requantized(params, beat, bits) for bits in params.narrower]
            result["fits"] = [
                sum((each[lane] == value[lane]) << index for index, each in enumerate(narrow))
                for lane in range(params.lanes)]
        if params.trace:
            # What saturates at 24 bits is of no more use than what does at the widest format.
            result["full"] = requantized(params, beat, 24)
        found.append(result)
    return found


# Input and output, the layouts of their payloads, random beats, and their results.
UNITS: dict[type, tuple] = {
    GluUnit: ("preacts", "products", "preact_layout", "product_layout", glu_beats, glu_results),
    MlgruUnit: ("preacts", "states", "preact_layout", "state_layout", mlgru_beats, mlgru_results),
    Requantize: (
        "accs", "results", "acc_layout", "result_layout", requantize_beats, requantize_results)}


def random_beats(dut, seed: int, count: int = 40) -> Beats:
    return UNITS[type(dut)][4](dut, np.random.default_rng(seed), count)


def fields(layout, payload: int):
    """The fields of a payload as integers and lists of integers."""
    view = layout.from_bits(payload)
    return {name: int(view[name]) if isinstance(view[name], int) else list(view[name])
            for name in layout.members}


def run_phases(dut, phases: Sequence[tuple[Beats, int | None]], pauses=STEADY) -> list[StreamRun]:
    """Run beats after a reset, to so many results or all, and compare them with the reference."""
    inputs, outputs, sent, taken, _, results = UNITS[type(dut)]
    into, out = getattr(dut.params, sent), taken and getattr(dut.params, taken)
    if isinstance(dut, Requantize):     # its results never wait
        pauses = replace(pauses, sink=0.0)
    expected = [results(dut, beats) for beats, _ in phases]
    counts = [len(wanted) if limit is None else limit
              for wanted, (_, limit) in zip(expected, phases, strict=True)]
    runs = run_streams(
        dut, getattr(dut, inputs), getattr(dut, outputs),
        [([into.const(beat).as_value().value for beat in beats], count)
         for (beats, _), count in zip(phases, counts, strict=True)],
        pauses=pauses, max_cycles=60 * max(len(each) for each in expected) + 300)
    for run, wanted in zip(runs, expected, strict=True):
        found = [fields(out, payload) for payload in run.results]
        if getattr(dut.params, "tag_bits", 0):      # and a trace
            for each in found:
                each["full"] = [max(min(full, (1 << 23) - 1), -1 << 23) for full in each["full"]]
        assert found == wanted[:len(found)]
    return runs


def check(dut, beats: Beats, pauses=STEADY) -> StreamRun:
    run, = run_phases(dut, [(beats, None)], pauses)
    return run


MAKERS: dict[str, Callable] = {
    **{f"glu {profile.name}": partial(glu, profile, 3, trace=True)
       for profile in PROFILES},
    "glu table": partial(glu, C12, 3, silu_table=True),
    **{f"mlgru {profile.name}": partial(mlgru, profile, 2, 6, 2, trace=True)
       for profile in PROFILES},
    # A tiny state must not be read before it is written.
    **{f"mlgru {shape}": partial(mlgru, C12, *shape) for shape in (
        (1, 1, 1), (1, 2, 2), (2, 1, 1), (1, 3, 1), (2, 4, 2), (5, 1, 1), (1, 6, 1), (3, 8, 8))},
    "mlgru (1, 3, 1) S16": partial(mlgru, S16, 1, 3, 1),
    "requantise": partial(requantizer, 17, 14, 18, 10, shifts=(9, 11, 14), lanes=3),
    **{f"requantise {widths}": partial(
        requantizer, *widths, shifts=(3, 12, 13), lanes=2, narrower=narrower, trace=True,
        tag_bits=5) for *widths, narrower in (
            (17, 16, 17, 17, (16,)), (17, 14, 17, 16, (13, 8)), (12, 9, 5, 20, (19, 3, 2)),
            (24, 24, 24, 2, ()), (2, 2, 2, 24, (2,)), (20, 16, 24, 6, (5,)))},
}


@pytest.mark.parametrize(("name", "pauses"), [
    (name, PAUSES[(index + more) % 4]) for index, name in enumerate(MAKERS) for more in (0, 2)],
    ids=str)
def test_random_beats_equal_the_reference_while_both_ends_pause(name, pauses):
    dut = MAKERS[name]()
    check(dut, random_beats(dut, pauses.seed, 50), pauses)


@pytest.mark.parametrize("name", [
    "glu S16", "glu C12", "mlgru S16", "mlgru C12", "requantise"])
def test_a_reset_forgets_what_is_under_way(name):
    dut = MAKERS[name]()
    first, second = random_beats(dut, 5, 9), random_beats(dut, 6, 9)
    if "mlgru" in name:     # the reset alone begins a sequence
        second = [{**beat, "start": 0} for beat in second]
    several = len(UNITS[type(dut)][5](dut, first)) // 2
    run_phases(dut, [(first, several), (second, None), (first[:4], 0), (second, None)],
               Pauses(0.2, 0.3, 4))


@pytest.mark.parametrize(("make", "latency", "spacing"), [
    (partial(glu, S16), 8, 1), (partial(glu, C12), 6, 1), (partial(glu, ODD), 8, 1),
    (partial(glu, C12, silu_table=True), 6, 1),
    (partial(mlgru, S16, 2, 8, 2), 11, 1), (partial(mlgru, C12, 2, 8, 2), 9, 1),
    *((partial(mlgru, C12, *shape), 9, spacing) for shape, spacing in (
        ((1, 1, 1), 7), ((1, 2, 2), 7), ((2, 1, 1), 4), ((1, 3, 1), 3), ((2, 4, 2), 2),
        ((5, 1, 1), 2), ((1, 6, 1), 2), ((3, 8, 8), 3))),
    (partial(requantizer, 17, 16, 16, 16, shifts=(9, 12)), 4, 1),
])
def test_rate_and_latency_are_as_stated(make, latency, spacing):
    dut = make()
    run = check(dut, random_beats(dut, 4, 20))
    assert dut.params.latency == latency
    assert run.sent_at == [spacing * index for index in range(len(run.sent_at))]
    assert run.taken_at == [sent + latency for sent in run.sent_at]


# Extremes


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_extremes_of_the_glu_and_the_mlgru_equal_the_reference(profile):
    z = profile.z
    ends = [z.min, z.max, z.min + 1, z.max - 1, -1, 0, 1]
    check(glu(profile, 1, trace=True),
          [{"gate": [a], "up": [b], "last": 0} for a in ends for b in ends])
    # Channel by channel all triples, held for several tokens and then turned around, so that
    # the state is driven from one end of its range to the other.
    triples = [dict(f=[f], c=[c], g=[g]) for f in ends for c in ends[:5] for g in ends[:5]]
    turned = triples[31:] + triples[:31]
    check(mlgru(profile, 1, len(triples), 1),
          [{**beat, "start": int(index == 0)} for index, beat in enumerate(
              4 * triples + 4 * turned)])


TWO = replace(S16, name="two", sigmoid_segments=2)
NARROW = replace(
    C12, name="narrow", z=FixedPoint(6, 2), h=FixedPoint(8, 4), sigmoid_segments=16,
    sigmoid_frac=6)
DIRECT = replace(NARROW, name="direct", sigmoid_segments=64)


@pytest.mark.parametrize(("profile", "tables", "pauses"), [
    *((profile, 4, STEADY) for profile in (S16, C12, NARROW)), (TWO, 1, STEADY),
    (DIRECT, 1, STEADY),
    *((profile, 1, Pauses(0.0, 0.6, 1)) for profile in (S16, C12, TWO, NARROW, DIRECT))],
    ids=lambda value: getattr(value, "name", str(value)))
def test_sigmoids_equal_the_reference_at_every_boundary_whatever_the_table(
        profile, tables, pauses):
    # Both ends, both sides of zero and of every boundary of a segment, and random values; the
    # real table, the steepest, and the flattest two.
    z, rng = profile.z, np.random.default_rng(11)
    edges = np.arange(z.min, z.max + 1, 1 << profile.sigmoid_step_bits)
    values = np.concatenate([edges - 1, edges, edges + 1, [z.max, -1, 0, 1],
                             rng.integers(z.min, z.max + 1, 800)])
    beats = [{"f": [value], "c": [0], "g": [value], "start": 0}
             for value in np.clip(values, z.min, z.max).tolist()]
    real, most = profile.sigmoid_table(), profile.sigmoid_max
    half = len(real) // 2
    steep = [0] * half + [most] * (len(real) - half)
    for table in (real, steep, [most] * len(real), [0] * len(real))[:tables]:
        dut = MlgruUnit(MlgruParams(profile, 1, 8, trace=True), table)
        check(dut, beats, pauses)


@pytest.mark.parametrize("shifts", [(0,), (1,), (12,), (40,), (0, 1, 9, 40)])
def test_extremes_of_the_requantiser_equal_the_reference(shifts):
    def ends(bits: int) -> list[int]:
        return [-(1 << (bits - 1)), (1 << (bits - 1)) - 1, -1, 0, 1]

    check(requantizer(17, 16, 16, 16, shifts=shifts), [
        {"acc": [acc], "scale": scale, "bias": [bias]} | ({"shift": i} if len(shifts) > 1 else {})
        for acc in ends(17) for scale in (0, 1, (1 << 16) - 1) for bias in ends(16)
        for i in range(len(shifts))])


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_an_mlgru_of_any_formats_equals_the_reference(data):
    limit_bits = data.draw(st.integers(1, 4), "limit_bits")
    z_frac = data.draw(st.integers(1, 8), "z_frac")
    z = FixedPoint(limit_bits + 1 + z_frac, z_frac)
    h_frac = data.draw(st.integers(1, 12), "h_frac")
    o_frac = data.draw(st.integers(0, 10), "o_frac")
    sigmoid_frac = data.draw(st.integers(max(1, h_frac - z_frac, o_frac - h_frac), 15), "Ff")
    index_bits = data.draw(st.integers(1, min(z.bits, 7)), "index_bits")
    profile = replace(
        S16, name="drawn", z=z, h=FixedPoint(limit_bits + 1 + h_frac, h_frac),
        o=FixedPoint(data.draw(st.integers(3, 16)), o_frac), p=FixedPoint(16, 0),
        sigmoid_frac=sigmoid_frac, sigmoid_segments=1 << index_bits)
    dut = mlgru(profile, 2, 4, 2)
    check(dut, random_beats(dut, data.draw(st.integers(0, 1 << 30), "seed"), 32))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_requantiser_of_any_widths_equals_the_reference(data):
    widths = [data.draw(st.integers(2, 24)) for _ in range(4)]
    shifts = data.draw(st.sets(st.integers(0, 40), min_size=1, max_size=4))
    dut = requantizer(*widths, shifts=tuple(sorted(shifts)))
    check(dut, random_beats(dut, data.draw(st.integers(0, 1 << 30), "seed"), 30))


# What only one of them has


def test_every_gate_of_a_table_of_silu_equals_the_reference():
    dut = glu(C12, 1, trace=True, silu_table=True)
    assert dut.params.looks_up_silu
    assert not glu(S16, silu_table=True).params.looks_up_silu
    check(dut, [{"gate": [gate], "up": [3], "last": 0}
                for gate in range(C12.z.min, C12.z.max + 1)])


def test_another_table_gives_another_product():
    table = C12.sigmoid_table()
    table[140:] = [C12.sigmoid_max] * len(table[140:])
    beats = [{"gate": [140 - 128], "up": [C12.z.max], "last": 0}]
    with pytest.raises(AssertionError):
        check(GluUnit(GluParams(C12, 1), table), beats)
    check(glu(C12, 1), beats)


@pytest.mark.parametrize("pauses", [STEADY, Pauses(0.3, 0.5, 5)], ids=str)
def test_a_start_in_mid_token_begins_a_new_sequence(pauses):
    dut = mlgru(C12, 2, 6, 2)
    beats = random_beats(dut, 14, 60)
    for index, beat in enumerate(beats):
        beat["start"] = int(index in (0, 14, 20, 21, 26, 39))
    check(dut, beats, pauses)


def test_an_update_clamped_before_the_sum_changes_no_result():
    narrow, clamp = FixedPoint(5, 0), FixedPoint(6, 0)
    x = np.arange(narrow.min, narrow.max + 1)[:, None]
    y = np.arange(-200, 201)[None, :]
    np.testing.assert_array_equal(
        saturate(x + y, narrow), saturate(x + saturate(y, clamp), narrow))


class Narrowed(Elaboratable):
    """A requantiser and its results in a narrower format."""

    def __init__(self, unit: Requantize, bits: int) -> None:
        self.unit, self.bits = unit, bits
        self.values = [Signal(signed(bits)) for _ in range(unit.params.lanes)]

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self.unit
        m.d.comb += [value.eq(unit.params.narrowed(unit.results.payload, lane, self.bits))
                     for lane, value in enumerate(self.values)]
        return m


@pytest.mark.parametrize("bits", [16, 13, 8])
def test_a_result_saturated_twice_is_saturated_to_the_narrower_format(bits):
    unit = requantizer(17, 14, 17, 16, shifts=(9, 12), lanes=2, narrower=(13, 8))
    params, dut = unit.params, Narrowed(unit, bits)
    beats = random_beats(unit, bits, 100)
    results = SimpleNamespace(payload=Cat(dut.values), valid=unit.results.valid, ready=Signal())
    run = run_stream(dut, unit.accs, results,
                     [params.acc_layout.const(beat).as_value().value for beat in beats],
                     len(beats), max_cycles=300)
    assert run.results == [
        sum((value & (1 << bits) - 1) << bits * lane
            for lane, value in enumerate(requantized(params, beat, bits))) for beat in beats]
    with pytest.raises(ValueError, match=r"bits must be 16 or one of narrower .*, got 12"):
        params.narrowed(Signal(params.result_layout), 0, 12)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: glu(S16, 0), "lanes must be a whole number from 1 to 4096, got 0"),
    (lambda: GluUnit(GluParams(C12, lanes=1), S16.sigmoid_table()),
     "sigmoid table of profile C12 has 256 entries, got 65"),
    (lambda: mlgru(S16, 0, 8, 1), "layers must be a whole number from 1 to 1024, got 0"),
    (lambda: mlgru(S16, 1, 0, 1), "channels must be a whole number from 1"),
    (lambda: mlgru(S16, 1, 8, 0), "lanes must be a whole number from 1"),
    (lambda: mlgru(S16, 1, 8, 3), r"channels \(8\) must be a multiple of lanes \(3\)"),
    (lambda: MlgruUnit(MlgruParams(C12, 1, 8), S16.sigmoid_table()),
     "sigmoid table of profile C12 has 256 entries, got 65"),
    *((lambda table=table: MlgruUnit(MlgruParams(S16, 1, 8), table), message)
      for table, message in (
          ([0] * 64 + [1 << 15], "entries must be from 0 to 32767, got 0 to 32768"),
          ([-1] + [0] * 64, "entries must be from 0 to 32767, got -1 to 0"),
          ([1] + [0] * 64, "must not decrease"))),
    (lambda: SigmoidParams(S16, weighted=True),
     "an entry for each of the 65536 values of z, got 64"),
    (lambda: requantizer(1, 16, 16, 16, (9,)), "sum_bits must be a whole number from 2 to 24"),
    (lambda: requantizer(17, 16, 16, 25, (9,)), "out_bits must be a whole number from 2 to 24"),
    (lambda: requantizer(17, 16, 16, 16, ()), "shifts must name at least one shift"),
    (lambda: requantizer(17, 16, 16, 16, (41,)), "every shift must be .* from 0 to 40, got 41"),
    (lambda: requantizer(17, 16, 16, 16, (9, 8)), r"shifts must increase, got \(9, 8\)"),
    (lambda: requantizer(17, 16, 16, 16, (9,), 0), "lanes must be a whole number from 1"),
])
def test_what_a_unit_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
