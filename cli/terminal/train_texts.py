"""The texts that ``sterna train`` reads, with what is said about them."""

from __future__ import annotations

from pathlib import Path

from sterna.cli.terminal.console import say
from sterna.model.corpus import (
    Corpus,
    builtin_corpus,
    corpus_from_file,
    left_out,
    with_general,
)
from sterna.model.files import read_text
from sterna.model.shards.text import ShardText
from sterna.model.tokenizer import ASCII_VOCAB
from sterna.model.tokens.text import MemoryText
from sterna.model.tokens.tokenizer import BYTES, Tokenizer
from sterna.model.training.recipe import TrainRecipe

__all__ = ["corpus_of", "in_tokens", "said"]


def corpus_of(
    path: Path | None, docstrings: bool, general: Path | None, recipe: TrainRecipe,
) -> Corpus:
    """The text to train on: a file or the manual, with general text where that is asked for.

    The manual has the docstrings, unless they are part of it already or nothing would be read of
    them.
    """
    if path is None:
        begins = (not docstrings and general is None and recipe.general_share > 0.0
                  and not recipe.carry_state and recipe.order == "random")
        found = builtin_corpus(docstrings, general=begins)
    else:
        found = corpus_from_file(path)
    return found if general is None else with_general(found, read_text(general))


def in_tokens(whole: Corpus, tokenizer: Tokenizer, quiet: bool) -> Corpus | MemoryText:
    """The same as the model reads it, with what is said about it."""
    text = whole
    if tokenizer.vocab <= ASCII_VOCAB:
        text = whole.as_ascii()
        say(left_out(whole.train + whole.heldout), quiet)
    begins = f", {len(text.general):,} of general text to begin with" if text.general else ""
    sizes = f"{len(text.train):,} bytes to train on{begins}, {len(text.heldout):,} held out"
    if tokenizer.kind == BYTES.kind:
        say(f"{text.name}: {sizes}", quiet)
        return text
    found = MemoryText(text, tokenizer)
    say(f"{text.name}: {len(found):,} tokens of {sizes}", quiet)
    return found


def said(shards: ShardText, quiet: bool) -> ShardText:
    """The same, with what is said about it."""
    say(f"{shards.name}: {len(shards):,} tokens of {shards.index.train.bytes:,} bytes to train on, "
        f"{shards.index.heldout.bytes:,} bytes held out", quiet)
    return shards
