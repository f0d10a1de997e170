"""The ternary array in every style against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value
from hypothesis import given, settings
from hypothesis import strategies as st
from pairwise import pairwise
from stream_bench import Pauses, StreamRun, run_stream, run_streams

from sterna.hw.flow.report import cell_counts
from sterna.hw.parts.bits import elements_of, from_ints
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_array import TernaryMacArray
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_packing import (
    CODES,
    beat_payloads,
    pack_projection,
    row_codes,
    row_trits,
)
from sterna.model.quantized.integer import ternary_matmul, transposed

STEADY = Pauses()
PAUSES = [STEADY, Pauses(0.5, 0.0, 1), Pauses(0.0, 0.5, 2), Pauses(0.4, 0.6, 3),
          Pauses(0.1, 0.9, 4)]
SHAPES = [  # rows, cols, max_columns
    (1, 1, 1), (1, 1, 5), (1, 2, 5), (2, 3, 3), (1, 4, 9), (3, 5, 17), (1, 7, 30), (2, 8, 16),
    (2, 9, 18), (1, 13, 30), (4, 16, 64)]
every_style = pytest.mark.parametrize("style", list(ArrayStyle))


class Cell(Elaboratable):
    """Stands in for ``Instance``, so that Amaranth's simulator runs styles of vendor cells.

    Written from the vendors' descriptions, not from ``hw/emit/cells``: the two check each other.
    """

    def __init__(self, kind: str, **connections) -> None:
        self.kind = kind
        self.connections = connections

    def input(self, name: str) -> Value:
        return Value.cast(self.connections.get(f"i_{name}", Const(0, 1)))

    def parameter(self, name: str, default=0):
        value = self.connections.get(f"p_{name}", default)
        return value.value if isinstance(value, Const) else value

    def drive(self, m: Module, name: str, value) -> None:
        if f"o_{name}" in self.connections:
            m.d.comb += Value.cast(self.connections[f"o_{name}"]).eq(value)

    def elaborate(self, platform):
        m = Module()
        getattr(self, f"_{self.kind.lower()}")(m)
        return m

    def _ccu2c(self, m):
        carry = self.input("CIN")
        for side in "01":
            init = Const(self.parameter(f"INIT{side}"), 16)
            pins = [self.input(f"{pin}{side}") for pin in "ABCD"]
            assert self.parameter(f"INJECT1_{side}") == "NO"
            propagate = init.bit_select(Cat(pins), 1)
            generate = init.bit_select(Cat(pins[:2], Const(0, 2)), 1)
            self.drive(m, f"S{side}", propagate ^ carry)
            carry = Mux(propagate, carry, generate)
        self.drive(m, "COUT", carry)

    def _lut6_2(self, m):
        init = Const(self.parameter("INIT"), 64)
        pins = [self.input(f"I{pin}") for pin in range(6)]
        self.drive(m, "O6", init.bit_select(Cat(pins), 1))
        self.drive(m, "O5", init[:32].bit_select(Cat(pins[:5]), 1))

    def _carry4(self, m):
        carry = self.input("CI") | self.input("CYINIT")
        propagate, other = self.input("S"), self.input("DI")
        totals, carries = [], []
        for bit in range(4):
            totals.append(propagate[bit] ^ carry)
            out = Signal(name=f"carry{bit}")
            m.d.comb += out.eq(Mux(propagate[bit], carry, other[bit]))
            carries.append(out)
            carry = out
        self.drive(m, "O", Cat(totals))
        self.drive(m, "CO", Cat(carries))


@pytest.fixture(scope="module", autouse=True)
def simulated_cells():
    with pytest.MonkeyPatch.context() as patch:
        for module in ("ecp5_rows", "xc7_rows"):
            patch.setattr(f"sterna.hw.units.mac.{module}.Instance", Cell)
        yield


def reference(weight: np.ndarray, acts: np.ndarray) -> np.ndarray:
    return ternary_matmul(acts.astype(np.int64), transposed(weight, acts))


def sums_of(run: StreamRun, params: MacParams) -> np.ndarray:
    """``[payloads, rows]``"""
    return elements_of(
        from_ints(run.results, 0, params.rows * params.sum_bits), params.sum_bits)


def random_product(rng: np.random.Generator, rows: int, columns: int):
    return (rng.integers(-1, 2, (rows, columns), dtype=np.int8),
            rng.integers(-128, 128, columns))


def extreme_products(rows: int, columns: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Matrices of one trit with the extreme activations, and the largest sums of either sign."""
    products = []
    for trit in (1, -1, 0):
        weight = np.full((rows, columns), trit, dtype=np.int8)
        products += [(weight, np.full(columns, act)) for act in (-128, 127, 0, -1)]
    alternating = np.resize(np.array([1, -1], dtype=np.int8), (rows, columns))
    return [*products, *((weight, np.resize([127, -128], columns))
                         for weight in (alternating, -alternating))]


def check_products(
    array: TernaryMacArray, products: list[tuple[np.ndarray, np.ndarray]], pauses=STEADY,
) -> StreamRun:
    """Run (weight, acts) pairs one after the other, and compare their products."""
    params = array.params
    payloads = [
        payload for weight, acts in products
        for payload in beat_payloads(pack_projection(weight, params), acts, params)]
    groups = [params.groups(len(weight)) for weight, _ in products]
    run = run_stream(
        array, array.beats, array.sums, payloads, sum(groups), pauses=pauses,
        max_cycles=40 * (len(payloads) + params.latency) + 100)
    parts = np.split(sums_of(run, params), np.cumsum(groups)[:-1])
    for part, (weight, acts) in zip(parts, products, strict=True):
        np.testing.assert_array_equal(
            part.reshape(-1)[:len(weight)], reference(weight, acts))
    return run


@pytest.mark.parametrize(("arguments", "message"), [
    ((0, 4, 16), "rows must be a whole number from 1 to 4096, got 0"),
    ((1, 0, 16), "cols must be a whole number from 1 to 4096, got 0"),
    ((1, 4, 0), "max_columns must be a whole number from 1"),
    ((1, 4.0, 16), r"cols must be a whole number .* got 4\.0"),
    ((1, 32, 16), r"cols \(32\) must be at most max_columns \(16\)"),
    ((1, 4, 16, 1), "act_bits must be a whole number from 2 to 16, got 1"),
    ((1, 4, 8, 8, "nexus"), "style must be one of generic, .* got 'nexus'"),
])
def test_bad_sizes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MacParams(*arguments)


@given(st.integers(1, 1 << 20), st.integers(2, 16))
def test_sum_width_is_the_least_that_holds_every_sum(max_columns, act_bits):
    params = MacParams(1, 1, max_columns, act_bits)
    most = params.sum_limit
    assert most == max_columns * 2 ** (act_bits - 1)
    assert most <= 2 ** (params.sum_bits - 1) - 1
    assert most > 2 ** (params.sum_bits - 2) - 1
    assert max_columns < 2 ** params.count_bits


@given(st.integers(1, 4096), st.integers(2, 16))
def test_operand_width_holds_sums_of_ones_complement_operands(operands, act_bits):
    bits = MacParams(1, 1, 1, act_bits).operand_bits(operands)
    low, high = -(2 ** (act_bits - 1)), 2 ** (act_bits - 1) - 1
    assert -(2 ** (bits - 1)) <= low * operands
    assert high * operands <= 2 ** (bits - 1) - 1


@every_style
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_extremes_give_exact_sums(style, shape):
    rows, cols, max_columns = shape
    params = MacParams(rows, cols, max_columns=max_columns, style=style)
    check_products(TernaryMacArray(params), extreme_products(rows, max_columns))


@pytest.mark.parametrize(("style", "shape", "pauses"), pairwise(
    list(ArrayStyle), SHAPES, PAUSES))
def test_random_products_are_exact_while_both_ends_pause(style, shape, pauses):
    rows, cols, max_columns = shape
    rng = np.random.default_rng(pauses.seed)
    products = [
        random_product(rng, int(rng.integers(1, 2 * rows + 2)),
                       int(rng.integers(1, max_columns + 1)))
        for _ in range(6)]
    params = MacParams(rows, cols, max_columns=max_columns, style=style)
    check_products(TernaryMacArray(params), products, pauses)


@pytest.mark.parametrize("style", [
    pytest.param(style, marks=[] if style is ArrayStyle.GENERIC else [pytest.mark.slow])
    for style in ArrayStyle])
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_geometry_is_exact(style, data):
    cols = data.draw(st.integers(1, 20), "cols")
    max_columns = data.draw(st.integers(cols, 40), "max_columns")
    array = TernaryMacArray(MacParams(
        data.draw(st.integers(1, 3), "rows"), cols, max_columns=max_columns,
        act_bits=data.draw(st.integers(2, 9), "act_bits"), style=style))
    limit = 1 << (array.params.act_bits - 1)
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30), "seed"))
    columns = data.draw(st.integers(1, max_columns), "columns")
    weight = rng.integers(-1, 2, (4, columns), dtype=np.int8)
    check_products(array, [(weight, rng.choice([-limit, limit - 1, 0, 1], columns))])


@pytest.mark.parametrize("columns", [[5] * 6, [15] * 6, [1, 15, 4, 5, 9, 4, 4, 13]], ids=str)
@every_style
def test_array_takes_a_beat_in_every_cycle(style, columns):
    rng = np.random.default_rng(5)
    array = TernaryMacArray(MacParams(2, 5, max_columns=15, style=style))
    run = check_products(array, [random_product(rng, 2, count) for count in columns])
    ends = np.cumsum([array.params.beats_per_group(count) for count in columns])
    assert run.sent_at == list(range(ends[-1]))
    assert run.taken_at == (ends - 1 + array.params.latency).tolist()


@every_style
def test_reset_in_mid_group_starts_a_new_group(style):
    array = TernaryMacArray(MacParams(2, 4, max_columns=16, style=style))
    rng, params = np.random.default_rng(8), array.params
    abandoned, complete = random_product(rng, 6, 16), random_product(rng, 4, 16)
    first, second = (beat_payloads(pack_projection(weight, params), acts, params)
                     for weight, acts in (abandoned, complete))
    # The first phase stops after two of three groups, one beat short of the third.
    phases = [(first[:-1], 2), (second, 2), (first[:1], 0), (second, 2)]
    runs = run_streams(array, array.beats, array.sums, phases, pauses=Pauses(0.2, 0.2, 8),
                       max_cycles=3000)
    for run in runs[1::2]:
        np.testing.assert_array_equal(
            sums_of(run, params).reshape(-1), reference(*complete))


@every_style
def test_every_combination_has_a_code_of_its_own_that_spells_it(style):
    codes, size = CODES[style], len(CODES[style][0])
    assert sorted(codes.values()) == sorted(product((-1, 0, 1), repeat=size))
    assert max(codes) < 1 << MacParams(1, 4, 4, style=style).code_bits
    for code, trits in codes.items():
        assert row_codes(np.array(trits), style).tolist() == [code]
    assert not any(codes[0])


@every_style
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 12, 128, 350])
def test_rows_of_any_length_survive_a_round_trip_filled_up_with_zeros(style, columns):
    size = len(CODES[style][0])
    weight = np.random.default_rng(columns).integers(-1, 2, (6, columns))
    codes = row_codes(weight, style)
    assert (codes.dtype, codes.shape) == (np.uint8, (6, -(-columns // size)))
    unpacked = row_trits(codes, columns, style)
    assert unpacked.dtype == np.int8
    np.testing.assert_array_equal(unpacked, weight)
    np.testing.assert_array_equal(
        row_trits(row_codes(weight[2], style), columns, style), weight[2])
    np.testing.assert_array_equal(
        codes, row_codes(np.pad(weight, ((0, 0), (0, -columns % size))), style))


EIGHT = MacParams(2, 4, 16)
WORDS = pack_projection(np.ones((3, 8), dtype=np.int8), EIGHT)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: pack_projection(np.zeros((2, 17), dtype=np.int8), EIGHT),
     "takes up to 16 columns, the matrix has 17"),
    (lambda: pack_projection(np.full((2, 3), 2), EIGHT), "weights must be -1, 0 or 1"),
    (lambda: pack_projection(np.zeros(4), EIGHT), "weight must be a matrix"),
    (lambda: pack_projection(np.zeros((0, 4)), EIGHT), "weight must be a matrix"),
    (lambda: beat_payloads(WORDS, np.array([0, 128]), EIGHT),
     "acts must be from -128 to 127, got 0 to 128"),
    (lambda: beat_payloads(WORDS[:-1], np.zeros(8), EIGHT), "are not whole groups"),
    *((lambda style=style, code=code, columns=columns: row_trits(
        np.array([0, code]), columns, style),
       f"code {code} is none of 0, 1")
      for style, columns, wrong in (
          (ArrayStyle.GENERIC, 2, (2, 4)), (ArrayStyle.XC7_PAIR, 4, (5, 8, 13, 16, 255)))
      for code in wrong),
    *((lambda style=style: row_codes(np.array([0, 2, 0]), style), "weights must be -1, 0 or 1")
      for style in ArrayStyle),
    (lambda: row_trits(np.array([1]), 3, ArrayStyle.XC7_PAIR),
     r"3 columns take 2 codes, got shape \(1,\)"),
    (lambda: row_trits(np.array([3]), 1, ArrayStyle.XC7_PAIR),
     "the filling after the last column is not zero"),
])
def test_what_does_not_fit_the_array_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@every_style
def test_a_wrong_start_value_is_noticed(style):
    array = TernaryMacArray(MacParams(1, 4, max_columns=8, style=style))
    params = array.params
    weight, acts = random_product(np.random.default_rng(3), 1, 8)
    payloads = beat_payloads(pack_projection(weight, params), acts, params)
    payloads[0] ^= 1 << params.beat_layout["minus_counts"].offset
    run = run_stream(array, array.beats, array.sums, payloads, 1, max_cycles=300)
    assert abs(sums_of(run, params)[0, 0] - reference(weight, acts)[0]) == 1


def test_array_has_no_multiplier():
    array = TernaryMacArray(MacParams(2, 8, max_columns=32))
    counts = cell_counts(array, "array")
    assert counts.multipliers == 0
    assert not [kind for kind in counts.cells if "mul" in kind or "macc" in kind]
    # Per row: 7 adders of the tree and the accumulator.
    assert counts.adders == 2 * 8
    assert counts.register_bits > 0
    assert counts.memory_bits == 0
