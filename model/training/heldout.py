"""How good the float model is on held-out text."""

from __future__ import annotations

import math

from sterna.model.stack.evaluate import heldout_bpb
from sterna.model.stack.language_model import LanguageModel
from sterna.model.tokens.tokenizer import BYTES, Tokenizer
from sterna.model.training.recipe import TrainRecipe

__all__ = ["heldout_window", "measure_heldout"]


def heldout_window(model: LanguageModel, recipe: TrainRecipe) -> int | None:
    """The window of the measure: the recipe's; else None, which carries the state through the
    text, or, if the state grows with the text, the window of training."""
    if recipe.eval_window is not None:
        return recipe.eval_window
    return None if model.state_is_bounded else recipe.window


def measure_heldout(
    model: LanguageModel, text: bytes, recipe: TrainRecipe, tokenizer: Tokenizer = BYTES,
) -> float:
    """Bits per byte of a text, which the tokenizer makes into the tokens of the model.

    Raises
    ------
    FloatingPointError
        If they are not finite: a step spoiled the weights, which its own loss does not tell.
    """
    found = heldout_bpb(model, text, window=heldout_window(model, recipe), tokenizer=tokenizer)
    if not math.isfinite(found):
        raise FloatingPointError("the held-out loss is not finite")
    return found
