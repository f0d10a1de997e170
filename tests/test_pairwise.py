"""The pairs that stand for full products of parameters elsewhere: none is missing."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from pairwise import pairwise


def pairs(rows: list[tuple]) -> set[tuple]:
    return {pair for row in rows for pair in itertools.combinations(enumerate(row), 2)}


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2, 3), (6, 3, 2, 2, 3), (4, 4, 4, 4, 4, 4)], ids=str)
def test_every_pair_is_there_in_few_rows(sizes):
    factors = [[f"{letter}{value}" for value in range(size)]
               for letter, size in zip("abcdef", sizes, strict=False)]
    full = list(itertools.product(*factors))
    rows = pairwise(*factors)
    assert pairs(rows) == pairs(full)
    assert set(rows) <= set(full)
    least = sorted(sizes)[-1] * sorted(sizes)[-2]
    assert least <= len(set(rows)) == len(rows) <= 2 * least
    assert pairwise(*factors) == rows
    # Where there is a choice, no value is taken much more often than another.
    for place, values in enumerate(factors):
        counts = Counter(row[place] for row in rows)
        assert min(counts.values()) >= 0.6 * len(rows) / len(values)


def test_an_impossible_combination_is_never_chosen_and_its_other_pairs_are():
    def possible(rows: int, words: int, sequences: int) -> bool:
        return rows * words <= 16 and (sequences, rows) != (2, 1)

    factors = ([1, 4, 8], [1, 2, 4], [1, 2])
    rows = pairwise(*factors, where=possible)
    assert pairs(rows) == pairs([row for row in itertools.product(*factors) if possible(*row)])
    assert all(possible(*row) for row in rows)
    assert ((0, 8), (1, 4)) not in pairs(rows)
    options = [{}, {"digits": 2}]       # which cannot be hashed, and are kept as they are
    assert len(pairwise(options, [1, 2])) == 4
    assert pairwise(options, [1, 2])[0][0] is options[0]
