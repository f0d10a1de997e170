"""All pairs of values in few combinations, where all combinations would be many."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["pairwise"]


def pairwise(
    *factors: Sequence[Any], where: Callable[..., bool] = lambda *values: True,
) -> list[tuple[Any, ...]]:
    """Combinations in which any two values of any two factors come together at least once.

    Of all combinations the one with the most new pairs is taken, and of those the first whose
    values were taken least, until there is no new pair. The same call gives the same
    combinations each time.

    Parameters
    ----------
    factors
        The values of each factor.
    where
        Whether a combination is possible, given a value of each factor. Two values that come
        together in impossible combinations only are no pair.
    """
    rows = {
        places: {*itertools.combinations(enumerate(places), 2)}
        for places in itertools.product(*(range(len(values)) for values in factors))
        if where(*(values[place] for values, place in zip(factors, places, strict=True)))}
    missing = set().union(*rows.values())
    chosen: list[tuple[int, ...]] = []
    taken: Counter[tuple[int, int]] = Counter()

    def worth(places: tuple[int, ...]) -> tuple[int, int]:
        return len(rows[places] & missing), -sum(taken[each] for each in enumerate(places))

    while missing:
        best = max(rows, key=worth)
        missing -= rows[best]
        chosen.append(best)
        taken.update(enumerate(best))
    return [tuple(values[place] for values, place in zip(factors, places, strict=True))
            for places in sorted(chosen)]
