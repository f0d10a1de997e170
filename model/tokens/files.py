"""Tokenizers as JSON, in separate files and inside other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sterna.model.files import write_atomically
from sterna.model.tokenizer import VOCAB
from sterna.model.tokens.bpe import BytePairTokenizer
from sterna.model.tokens.hub import HubTokenizer
from sterna.model.tokens.tokenizer import BYTES, NUMBERS, ByteTokenizer, Tokenizer, TokenNumbers

__all__ = ["fitted", "load_tokenizer", "save_tokenizer", "tokenizer_from_json"]


def tokenizer_from_json(content: Any, vocab: int | None = None) -> Tokenizer:
    """Undo :meth:`Tokenizer.to_json` and, with ``vocab``, fit the tokenizer to that vocabulary as
    :func:`fitted` does. Raises ValueError if the content is invalid or does not fit."""
    tokenizer: Tokenizer
    if content in (BYTES.kind, NUMBERS.kind):
        tokenizer = BYTES if content == BYTES.kind else NUMBERS
    elif isinstance(content, dict) and content.get("kind") == HubTokenizer.kind:
        tokenizer = HubTokenizer.from_json(content)
    else:
        tokenizer = BytePairTokenizer.from_json(content)
    return tokenizer if vocab is None else fitted(tokenizer, vocab)


def fitted(tokenizer: Tokenizer, vocab: int) -> Tokenizer:
    """The tokenizer of a model with such a vocabulary.

    With bytes a model may have fewer than 256 tokens, and with a hub's tokenizer more than it; any
    other must have exactly as many as the model. Raises ValueError otherwise.
    """
    if isinstance(tokenizer, ByteTokenizer) and vocab < VOCAB:
        return ByteTokenizer(vocab)
    if isinstance(tokenizer, TokenNumbers):
        return TokenNumbers(vocab)
    if isinstance(tokenizer, HubTokenizer) and tokenizer.vocab != vocab:
        return HubTokenizer(tokenizer.text, tokenizer.end_of_text, vocab)
    if tokenizer.vocab != vocab:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab:,} tokens, and the model {vocab:,}")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: str | Path) -> Path:
    """Write a tokenizer file; the same tokenizer gives the same bytes."""
    text = json.dumps(tokenizer.to_json(), sort_keys=True, separators=(",", ":"))
    return write_atomically(Path(path), text + "\n")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer file.

    Raises ValueError if it cannot be read or is something else; the message names the file.
    """
    try:
        return tokenizer_from_json(json.loads(Path(path).read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise ValueError(
            f"{path}: cannot read the tokenizer ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        what = "not a Sterna tokenizer" if isinstance(
            error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)) else error
        raise ValueError(f"{path}: {what}") from error
