"""Windows of the training text for a step: a function of seed, step and used share of the budget.

An epoch is a shuffle of any size that needs no memory: any place can be computed independently.
"""

from __future__ import annotations

import numpy as np

from sterna.model.checks import check_whole
from sterna.model.tokens.text import TokenText
from sterna.model.torch.training.recipe import TrainRecipe

__all__ = ["WindowSampler", "shuffled"]

_ROUNDS = 4
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def shuffled(places: np.ndarray, size: int, key: tuple[int, ...]) -> np.ndarray:
    """The entries at ``places``, int64 of any shape, of a shuffle of the numbers from 0 to
    ``size - 1``, at most 2^62, selected by ``key``; the cost per place is independent of the size.

    A Feistel network of four rounds (Luby and Rackoff, SIAM J. Comput. 17, 1988) over the next even
    number of bits, reapplied to results out of range ("cycle walking"), with the finaliser of
    SplitMix64 as its round function.

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


_EPOCH, _GENERAL = 1, 2
"""Key parts that keep the random numbers of a shuffle and of a draw independent."""


class WindowSampler:
    """Cuts windows from a text, for any step: a resumed run sees the same windows as an
    uninterrupted one, and a process reads only its columns. If there is general text, a window is
    drawn from it with a probability that falls linearly from ``recipe.general_share`` to zero."""

    def __init__(self, text: TokenText, recipe: TrainRecipe, seed: int) -> None:
        if len(text) < recipe.window + 1:
            unit = "bytes" if text.tokenizer.kind == "bytes" else "tokens"
            raise ValueError(
                f"a window of {recipe.window} {unit} needs a train text of at least "
                f"{recipe.window + 1} {unit}, got {len(text)}")
        self._text = text
        self._general = text.general if recipe.general_share else None
        if self._general is not None:
            if recipe.carry_state or recipe.order != "random":
                raise ValueError("general text is read in windows that lie anywhere: it does not "
                                 "go with carry_state or another order than random")
            if len(self._general) < recipe.window + 1:
                raise ValueError(f"a window of {recipe.window} needs a general text of at least "
                                 f"{recipe.window + 1} tokens, got {len(self._general)}")
        self._recipe = recipe
        self._seed = seed
        # With carried state, every sequence reads its share of the text once per epoch.
        self._epoch_steps = max(1, len(text) // recipe.tokens_per_step)

    def starts_afresh(self, step: int) -> bool:
        """Whether the windows of ``step`` start from the zero state."""
        return not self._recipe.carry_state or step % self._epoch_steps == 0

    def windows(
        self, step: int, columns: slice = slice(None), fraction: float = 1.0,
    ) -> np.ndarray:
        """Tokens int64 ``[window + 1, columns]`` of these windows of the batch, when ``fraction``
        of the budget is used; time runs along the rows."""
        length = self._recipe.window + 1
        starts = self._starts(step, np.arange(self._recipe.batch)[columns])
        general = self._general_starts(step, fraction)[columns]
        pieces = [
            self._text.piece(int(start), length) if other < 0 or self._general is None else
            self._general.piece(int(other), length)
            for start, other in zip(starts, general, strict=True)]
        if not pieces:
            return np.empty((self._recipe.window + 1, 0), dtype=np.int64)
        return np.stack(pieces, axis=1)

    def _general_starts(self, step: int, fraction: float) -> np.ndarray:
        """Starts of a step's windows in the general text; -1 for windows not from it."""
        recipe, none = self._recipe, np.full(self._recipe.batch, -1)
        if self._general is None:
            return none
        generator = np.random.default_rng([self._seed, step, _GENERAL])
        starts = generator.integers(0, len(self._general) - recipe.window, recipe.batch)
        share = recipe.general_share * (1.0 - fraction)
        return np.where(generator.random(recipe.batch) < share, starts, none)

    def _starts(self, step: int, columns: np.ndarray) -> np.ndarray:
        """Starts of the windows of these columns."""
        recipe, length = self._recipe, len(self._text)
        if recipe.carry_state:
            epoch, position = divmod(step, self._epoch_steps)
            shift = np.random.default_rng([self._seed, epoch]).integers(length)
            share = self._epoch_steps * recipe.window
            return np.asarray((shift + columns * share + position * recipe.window) % length)
        if recipe.order == "epoch":
            return self._starts_of_epochs(step * recipe.batch + columns)
        generator = np.random.default_rng([self._seed, step])
        return np.asarray(generator.integers(0, length - recipe.window, recipe.batch)[columns])

    def _starts_of_epochs(self, numbers: np.ndarray) -> np.ndarray:
        """Starts of windows, numbered from the beginning of the run. A random shift per epoch
        splits the tokens beyond whole windows between the beginning and the end of the text."""
        window = self._recipe.window
        count, rest = divmod(len(self._text) - 1, window)
        epochs, places = np.divmod(numbers, count)
        starts = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            there = epochs == epoch
            shift = np.random.default_rng([self._seed, epoch, _EPOCH]).integers(rest + 1)
            starts[there] = shift + window * shuffled(places[there], count, (self._seed, epoch))
        return starts
