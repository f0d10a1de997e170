"""Two trits in four bits, three in five."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sterna.hw.units.mac.weight_codes import (
    PAIR_BITS,
    PAIRS,
    TRIPLE_BITS,
    TRIPLES,
    pack_pairs,
    pack_triples,
    unpack_pairs,
    unpack_triples,
)

KINDS = {2: (pack_pairs, unpack_pairs, PAIR_BITS), 3: (pack_triples, unpack_triples, TRIPLE_BITS)}
every_kind = pytest.mark.parametrize("size", KINDS)


def test_table_has_zero_and_one_of_each_triple_and_its_negative():
    assert len(set(TRIPLES)) == len(TRIPLES) == 14
    assert TRIPLES[0] == (0, 0, 0)
    for triple in product((-1, 0, 1), repeat=3):
        negative = tuple(-trit for trit in triple)
        assert (triple in TRIPLES) != (negative in TRIPLES) or not any(triple)


@every_kind
def test_every_combination_has_a_code_of_its_own_that_spells_it(size):
    pack, _, bits = KINDS[size]
    every = np.array(list(product((-1, 0, 1), repeat=size)), dtype=np.int8)
    codes = pack(every)
    assert codes.dtype == np.uint8
    assert len(set(codes.reshape(-1).tolist())) == len(every)
    assert codes.max() < 1 << bits
    assert pack(np.zeros((1, size), int)).item() == 0
    for trits, code in zip(every.tolist(), codes[:, 0].tolist(), strict=True):
        sign = -1 if size == 3 and code >> 4 else 1
        assert trits == [sign * trit for trit in (PAIRS[code] if size == 2 else TRIPLES[code & 15])]


@every_kind
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 12, 128, 350])
def test_rows_of_any_length_survive_a_round_trip_filled_up_with_zeros(size, columns):
    pack, unpack, _ = KINDS[size]
    weight = np.random.default_rng(columns).integers(-1, 2, (6, columns))
    codes = pack(weight)
    assert codes.shape == (6, -(-columns // size))
    unpacked = unpack(codes, columns)
    assert unpacked.dtype == np.int8
    np.testing.assert_array_equal(unpacked, weight)
    np.testing.assert_array_equal(unpack(pack(weight[2]), columns), weight[2])
    np.testing.assert_array_equal(codes, pack(np.pad(weight, ((0, 0), (0, -columns % size)))))


@pytest.mark.parametrize(("call", "message"), [
    *((lambda code=code: unpack_pairs(np.array([0, code]), 4), f"code {code} is no pair")
      for code in (5, 8, 13, 16, 255)),
    *((lambda code=code: unpack_triples(np.array([0, code]), 4), f"code {code} is no triple")
      for code in (14, 15, 16, 30, 31, 32, 255)),
    *((lambda pack=pack: pack(np.array([0, 2, 0])), "weights must be -1, 0 or 1")
      for pack in (pack_pairs, pack_triples)),
    (lambda: unpack_pairs(np.array([1]), 3), r"3 columns take 2 codes, got shape \(1,\)"),
    (lambda: unpack_triples(np.zeros(2, int), 7), r"7 columns take 3 codes, got shape \(2,\)"),
    (lambda: unpack_pairs(np.array([3]), 1), "the filling after the last column is not zero"),
    (lambda: unpack_triples(pack_triples(np.array([1, 1, 1])), 2), "filling after the last column"),
])
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
