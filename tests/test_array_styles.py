"""Every style of the array against the integer reference, in Amaranth's simulator."""

from __future__ import annotations

import numpy as np
import pytest
from array_bench import (
    STEADY,
    check_products,
    check_reset_in_mid_group,
    extreme_products,
    random_product,
    reference,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from vendor_cells import simulated_cells

from sterna.hw.testbench.amaranth import Pauses, run_stream
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_array import TernaryMacArray
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_packing import (
    beat_payloads,
    pack_projection,
    sum_values,
    unpack_projection,
)

SHAPES = [(1, 1, 1), (1, 2, 5), (2, 3, 3), (1, 4, 9), (3, 5, 17), (2, 9, 18), (1, 13, 30)]
PAUSES = [STEADY, Pauses(0.4, 0.6, 3)]
every_style = pytest.mark.parametrize("style", list(ArrayStyle))


@every_style
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_extremes_give_exact_sums(style, shape):
    rows, cols, max_columns = shape
    params = MacParams(rows, cols, max_columns=max_columns, style=style)
    check_products(TernaryMacArray(params), extreme_products(rows, max_columns))


@every_style
@pytest.mark.parametrize("pauses", PAUSES, ids=str)
def test_random_products_are_exact_while_both_ends_pause(style, pauses):
    rng = np.random.default_rng(pauses.seed)
    products = [
        random_product(rng, int(rng.integers(1, 6)), int(rng.integers(1, 24)))
        for _ in range(6)]
    check_products(TernaryMacArray(MacParams(2, 7, max_columns=24, style=style)), products, pauses)


@pytest.mark.slow
@every_style
@settings(max_examples=4, deadline=None)
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


@pytest.mark.parametrize("style", [each for each in ArrayStyle if not each.has_tables])
def test_array_takes_a_beat_in_every_cycle(style):
    rng = np.random.default_rng(5)
    array = TernaryMacArray(MacParams(2, 5, max_columns=15, style=style))
    run = check_products(array, [random_product(rng, 12, 15)])
    assert run.sent_at == list(range(18))
    first = 2 + array.params.latency
    assert run.taken_at == list(range(first, first + 18, 3))


@pytest.mark.parametrize("style", [each for each in ArrayStyle if each.has_tables])
def test_tables_are_filled_for_fresh_activations_only(style):
    rng = np.random.default_rng(5)
    array = TernaryMacArray(MacParams(2, 5, max_columns=15, style=style))
    wait = array.params.fill_steps
    # Two vectors of one beat, six groups of rows each.
    run = check_products(array, [random_product(rng, 12, 5), random_product(rng, 12, 4)])
    assert run.sent_at == [*range(wait, wait + 6), *range(2 * wait + 6, 2 * wait + 12)]
    assert run.taken_at == [cycle + array.params.latency for cycle in run.sent_at]
    # A vector of three beats brings other activations with each.
    run = check_products(array, [random_product(rng, 3, 15)])
    assert run.sent_at == [wait + (wait + 1) * beat for beat in range(6)]


@every_style
def test_array_without_stalls_computes_the_same(style):
    rng = np.random.default_rng(7)
    products = [random_product(rng, 5, columns) for columns in (9, 3, 14)]
    array = TernaryMacArray(MacParams(2, 5, max_columns=15, style=style, stalls=False))
    check_products(array, products, Pauses(0.4, 0.0, 2))


@every_style
def test_reset_in_mid_group_starts_a_new_group(style):
    check_reset_in_mid_group(TernaryMacArray(MacParams(2, 4, max_columns=16, style=style)), seed=8)


@every_style
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_packing_round_trips(style, data):
    cols = data.draw(st.integers(1, 14), "cols")
    params = MacParams(
        data.draw(st.integers(1, 5), "rows"), cols,
        data.draw(st.integers(cols, 40), "max_columns"), style=style)
    shape = (data.draw(st.integers(1, 11)), data.draw(st.integers(1, params.max_columns)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30), "seed"))
    weight = rng.integers(-1, 2, shape, dtype=np.int8)
    words = pack_projection(weight, params)
    assert len(words) == params.groups(shape[0]) * params.beats_per_group(shape[1])
    assert max(words) < 1 << params.word_bits
    np.testing.assert_array_equal(unpack_projection(words, params, *shape), weight)


@pytest.mark.parametrize("style", [each for each in ArrayStyle if each is not
                                   ArrayStyle.XC7_TABLE])
def test_a_wrong_start_value_is_noticed(style):
    array = TernaryMacArray(MacParams(1, 4, max_columns=8, style=style))
    params = array.params
    weight, acts = random_product(np.random.default_rng(3), 1, 8)
    payloads = beat_payloads(pack_projection(weight, params), acts, params)
    payloads[0] ^= 1 << params.beat_layout[params.start_name].offset
    with simulated_cells():
        run = run_stream(array, array.beats, array.sums, payloads, 1, max_cycles=300)
    assert abs(sum_values(run.results, params)[0, 0] - reference(weight, acts)[0]) == 1


def test_an_unknown_style_is_refused():
    with pytest.raises(ValueError, match=r"style must be one of generic, .* got 'nexus'"):
        MacParams(1, 4, 8, style="nexus")
