"""How good the float model is on held-out text."""

from __future__ import annotations

import math
from collections.abc import Callable

from sterna.model.shards.files import ShardError
from sterna.model.shards.text import ShardText
from sterna.model.stack.evaluate import heldout_bpb
from sterna.model.stack.language_model import LanguageModel
from sterna.model.tokens.tokenizer import BYTES, Tokenizer
from sterna.model.training.checkpoint import Checkpoint
from sterna.model.training.recipe import TrainRecipe

__all__ = ["HELDOUT_BYTES", "heldout_of_folder", "heldout_window", "measure_heldout"]

HELDOUT_BYTES = 1 << 16
"""Of the held-out text so much is measured, unless another number is asked for."""


def heldout_of_folder(checkpoint: Checkpoint) -> bytes:
    """The held-out text of the data folder that was trained on, as training measures it.

    Raises
    ------
    ValueError
        If the folder is gone, damaged or another one now, or holds nothing out.
    """
    wanted = f"the data folder of the run, {checkpoint.data_folder},"
    try:
        text = ShardText(str(checkpoint.data_folder))
        found = text.heldout(HELDOUT_BYTES)
    except (ShardError, OSError) as error:
        raise ValueError(f"{wanted} cannot be read: --text names a text to measure on "
                         f"({error})") from error
    if text.sha256 != checkpoint.corpus_sha256:
        raise ValueError(f"{wanted} holds something else now: --text names a text to measure on")
    if not found:
        raise ValueError(f"{wanted} holds out nothing: --text names a text to measure on")
    return found


def heldout_window(model: LanguageModel, recipe: TrainRecipe) -> int | None:
    """The window of the measure: the recipe's; else None, which carries the state through the
    text, or, if the state grows with the text, the window of training."""
    if recipe.eval_window is not None:
        return recipe.eval_window
    return None if model.state_is_bounded else recipe.window


def measure_heldout(
    model: LanguageModel, text: bytes, recipe: TrainRecipe, tokenizer: Tokenizer = BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> float:
    """Bits per byte of a text, which the tokenizer makes into the tokens of the model.

    ``progress`` is called now and then with the number of predictions so far, and of all.

    Raises
    ------
    FloatingPointError
        If they are not finite: a step spoiled the weights, which its own loss does not tell.
    """
    found = heldout_bpb(model, text, window=heldout_window(model, recipe), tokenizer=tokenizer,
                        progress=progress)
    if not math.isfinite(found):
        raise FloatingPointError("the held-out loss is not finite")
    return found
