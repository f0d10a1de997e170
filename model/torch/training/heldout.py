"""Evaluation of the float model on held-out text."""

from __future__ import annotations

import math
from collections.abc import Callable

from sterna.model.corpus import (
    BUILTIN_NAME,
    DOCSTRINGS_NAME,
    Corpus,
    builtin_corpus,
    corpus_from_file,
)
from sterna.model.quantized.evaluate import Evaluation
from sterna.model.shards.text import ShardText
from sterna.model.tokens.text import first_characters
from sterna.model.tokens.tokenizer import BYTES, Tokenizer
from sterna.model.torch.stack.evaluate import measured
from sterna.model.torch.stack.language_model import LanguageModel
from sterna.model.torch.training.checkpoint import Checkpoint
from sterna.model.torch.training.recipe import HELDOUT_BYTES, TrainRecipe

__all__ = ["heldout_of_run", "heldout_window", "measure_heldout"]


def heldout_of_run(checkpoint: Checkpoint) -> bytes | None:
    """The held-out part of the training text, as training measures it: of the data folder or file
    that the checkpoint names, or of the built-in text; None if its location is unknown.
    """
    if checkpoint.data_folder is not None:
        place, read = f"data folder of the run, {checkpoint.data_folder},", _of_folder
    elif checkpoint.text_file is not None:
        place, read = f"text of the run, {checkpoint.text_file},", _of_file
    elif checkpoint.corpus_name.startswith(BUILTIN_NAME):
        return _same_text(checkpoint, builtin_corpus(
            docstrings=checkpoint.corpus_name.startswith(DOCSTRINGS_NAME)))
    else:
        return None
    try:
        found = read(checkpoint)
    except (ValueError, OSError) as error:
        raise ValueError(f"the {place} cannot be read: --text names a text to measure on "
                         f"({error})") from error
    if not found:
        what = "is another one now" if found is None else "holds out nothing"
        raise ValueError(f"the {place} {what}: --text names a text to measure on")
    return found


def _of_file(checkpoint: Checkpoint) -> bytes | None:
    return _same_text(checkpoint, corpus_from_file(str(checkpoint.text_file)))


def _of_folder(checkpoint: Checkpoint) -> bytes | None:
    text = ShardText(str(checkpoint.data_folder))
    same = text.sha256 == checkpoint.corpus_sha256
    return text.heldout(HELDOUT_BYTES) if same else None


def _same_text(checkpoint: Checkpoint, corpus: Corpus) -> bytes | None:
    """The held-out part of a corpus, as it is or in ASCII, if it was trained on; else None."""
    for each in (corpus, corpus.as_ascii()):
        if each.sha256 == checkpoint.corpus_sha256:
            return first_characters(each.heldout, HELDOUT_BYTES)
    return None


def heldout_window(model: LanguageModel, recipe: TrainRecipe) -> int | None:
    """The evaluation window: the recipe's; by default None, which carries the state through the
    text, or the training window if the state grows with the text."""
    if recipe.eval_window is not None:
        return recipe.eval_window
    return None if model.state_is_bounded else recipe.window


def measure_heldout(
    model: LanguageModel, text: bytes, recipe: TrainRecipe, tokenizer: Tokenizer = BYTES, *,
    sequences: int = 16, progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Bits per byte of a text; ``progress`` gets the numbers of predictions so far and in total."""
    found = measured(model, text, sequences=sequences, window=heldout_window(model, recipe),
                     tokenizer=tokenizer, progress=progress)
    if not math.isfinite(found.bits_per_byte):
        raise FloatingPointError("the held-out loss is not finite")
    return found
