"""A shuffle of any size that needs no memory: any place of it can be asked for by itself."""

from __future__ import annotations

import numpy as np

from sterna.model.checks import check_whole

__all__ = ["shuffled"]

_ROUNDS = 4
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def shuffled(places: np.ndarray, size: int, key: tuple[int, ...]) -> np.ndarray:
    """What stands at these places of a shuffle of the numbers from 0 to ``size - 1``.

    It is a Feistel network of four rounds (Luby and Rackoff, "How to construct pseudorandom
    permutations", SIAM J. Comput. 17, 1988) over the next even number of bits, applied again to
    what falls outside ("cycle walking"), with the finaliser of SplitMix64 as its function. So a
    place costs the same in a shuffle of ten numbers and of a billion.

    Parameters
    ----------
    places
        Whole numbers from 0 to ``size - 1``, of any shape.
    size
        How many numbers are shuffled, at most 2^62.
    key
        Numbers from 0 on that choose the shuffle, such as a seed and an epoch.

    Returns
    -------
    int64 of the shape of ``places``.

    Raises
    ------
    ValueError
        If ``size`` or a place is out of its range.

    >>> sorted(shuffled(np.arange(5), 5, (0, 1)).tolist())
    [0, 1, 2, 3, 4]
    """
    check_whole("size", size, 1, 1 << 62)
    values = np.asarray(places, dtype=np.int64)
    if values.size and not 0 <= values.min() <= values.max() < size:
        raise ValueError(f"places must be from 0 to {size - 1}, got {values.min()} to "
                         f"{values.max()}")
    half_bits = max(1, (max(1, size - 1).bit_length() + 1) // 2)
    round_keys = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)
    result = _feistel(values.astype(np.uint64).reshape(-1), half_bits, round_keys)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], half_bits, round_keys)
    return result.astype(np.int64).reshape(values.shape)


def _feistel(values: np.ndarray, half_bits: int, round_keys: np.ndarray) -> np.ndarray:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for round_key in round_keys:
        left, right = right, left ^ (_mixed(right ^ round_key) & mask)
    return np.asarray((left << shift) | right)


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014); products wrap."""
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        values = (values ^ (values >> np.uint64(shift))) * multiplier
    return np.asarray(values ^ (values >> np.uint64(31)))
