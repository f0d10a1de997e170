"""Which pieces of the train text a step sees: a function of (seed, step), nothing else."""

from __future__ import annotations

import numpy as np

from sterna.model.training.recipe import TrainRecipe

__all__ = ["WindowSampler"]


class WindowSampler:
    """Cuts windows from a text; any step can be asked for, in any order.

    That is what makes a resumed run see exactly what an uninterrupted one would.

    Parameters
    ----------
    text
        The train text.
    recipe
        Gives batch, window and whether the state is carried.
    seed
        Seed of the order.

    Raises
    ------
    ValueError
        If the text is too short for one window.
    """

    def __init__(self, text: bytes, recipe: TrainRecipe, seed: int) -> None:
        if len(text) < recipe.window + 1:
            raise ValueError(
                f"a window of {recipe.window} bytes needs a train text of at least "
                f"{recipe.window + 1} bytes, got {len(text)}")
        self._text = np.frombuffer(text, dtype=np.uint8)
        self._recipe = recipe
        self._seed = seed
        self._columns = np.arange(recipe.window + 1)[:, None]
        # With the state carried, every sequence reads its share of the text once an epoch.
        self._epoch_steps = max(1, len(text) // recipe.tokens_per_step)

    def starts_afresh(self, step: int) -> bool:
        """Whether the windows of ``step`` start from the zero state."""
        return not self._recipe.carry_state or step % self._epoch_steps == 0

    def windows(self, step: int) -> np.ndarray:
        """Return bytes as int64 ``[window + 1, batch]``: every row is followed by the next."""
        recipe, length = self._recipe, len(self._text)
        if recipe.carry_state:
            epoch, position = divmod(step, self._epoch_steps)
            shift = np.random.default_rng([self._seed, epoch]).integers(length)
            share = self._epoch_steps * recipe.window
            starts = shift + np.arange(recipe.batch) * share + position * recipe.window
            return self._text[(starts + self._columns) % length].astype(np.int64)
        generator = np.random.default_rng([self._seed, step])
        starts = generator.integers(0, length - recipe.window, recipe.batch)
        return self._text[starts + self._columns].astype(np.int64)
