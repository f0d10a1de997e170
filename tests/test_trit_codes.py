"""Three trits in five bits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sterna.hw.units.mac.weight_codes import TRIPLE_BITS, TRIPLES, pack_triples, unpack_triples

ALL = np.array(list(product((-1, 0, 1), repeat=3)), dtype=np.int8)


def test_table_has_zero_and_one_of_each_combination_and_its_negative():
    assert len(TRIPLES) == 14
    assert TRIPLES[0] == (0, 0, 0)
    entries = set(TRIPLES)
    assert len(entries) == 14
    for triple in ALL.tolist():
        negative = tuple(-trit for trit in triple)
        assert (tuple(triple) in entries) != (negative in entries) or not any(triple)


def test_every_combination_survives_a_round_trip_with_a_code_of_its_own():
    codes = pack_triples(ALL)
    assert codes.shape == (27, 1)
    assert codes.dtype == np.uint8
    assert len(set(codes.reshape(-1).tolist())) == 27
    assert codes.max() < 1 << TRIPLE_BITS
    np.testing.assert_array_equal(unpack_triples(codes, 3), ALL)
    for triple, code in zip(ALL.tolist(), codes[:, 0].tolist(), strict=True):
        sign = -1 if code >> 4 else 1
        assert [sign * trit for trit in TRIPLES[code & 15]] == triple


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 12, 128, 350])
def test_rows_of_any_length_survive_a_round_trip(columns):
    weight = np.random.default_rng(columns).integers(-1, 2, (6, columns))
    codes = pack_triples(weight)
    assert codes.shape == (6, -(-columns // 3))
    unpacked = unpack_triples(codes, columns)
    assert unpacked.dtype == np.int8
    np.testing.assert_array_equal(unpacked, weight)
    np.testing.assert_array_equal(pack_triples(weight[2]), codes[2])
    np.testing.assert_array_equal(unpack_triples(codes[2], columns), weight[2])


def test_the_filling_is_zero():
    for columns in (1, 2):
        row = np.ones(columns, dtype=np.int8)
        whole = np.concatenate([row, np.zeros(3 - columns, dtype=np.int8)])
        np.testing.assert_array_equal(pack_triples(row), pack_triples(whole))


@pytest.mark.parametrize("bad", [14, 15, 16, 30, 31, 32, 255])
def test_a_code_of_no_triple_is_refused(bad):
    with pytest.raises(ValueError, match=f"code {bad} is no triple"):
        unpack_triples(np.array([0, bad], dtype=np.uint8), 6)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="weights must be -1, 0 or 1"):
        pack_triples(np.array([0, 2, 0]))
    with pytest.raises(ValueError, match="weights must be a row or a matrix"):
        pack_triples(np.array(1))
    with pytest.raises(ValueError, match=r"7 columns take 3 codes, got shape \(2,\)"):
        unpack_triples(np.zeros(2, dtype=np.uint8), 7)
    with pytest.raises(ValueError, match="the filling after the last column is not zero"):
        unpack_triples(pack_triples(np.array([1, 1, 1])), 2)
