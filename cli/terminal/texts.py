"""Which text a command works on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sterna.model.files import read_text
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.tokenizer import check_bytes, known_bytes
from sterna.model.tokens.tokenizer import BYTES

__all__ = ["PROMPT", "check_prompts", "text_of", "tokens_of"]

PROMPT = "The for statement"
"""What is continued where no prompt is given."""

_HINTS = {"--check": ": skip the check with --check 0"}
_HINT = ": give another text with --text"       # for all other options


def check_prompts(prompts: Sequence[str], vocab: int) -> None:
    """Refuse prompts with a character that a model does not know, naming it."""
    for prompt in prompts:
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise ValueError(f"--prompt {prompt!r} is not UTF-8")
        for character in prompt:
            if max(character.encode()) >= vocab:
                raise ValueError(
                    f"--prompt {prompt!r} has the character {character!r}, and this model "
                    f"knows {known_bytes(vocab)}")


def text_of(
    path: Path | None, vocab: int, limit: int | None = None, option: str = "--text",
) -> bytes:
    """The first bytes of a text file, or else of the bundled held-out text for a vocabulary."""
    text = (bundled_heldout(vocab) if path is None else read_text(path))[:limit]
    check_bytes(text, vocab, str(path or "the bundled text"), _HINTS.get(option, _HINT))
    return text


def tokens_of(
    path: Path | None, count: int, model: QuantizedModel, option: str = "--tokens",
) -> np.ndarray:
    """The first ``count`` tokens of a text; a shorter text is refused."""
    of_bytes = model.tokenizer.kind == BYTES.kind
    # With bytes as tokens, nothing after the wanted ones has to be read.
    text = text_of(path, model.vocab, max(0, count) if of_bytes else None, option)
    tokens = model.tokenizer.encode(text)
    if not 1 <= count <= len(tokens):
        longest = f" to {len(tokens)} (the length of the text)" if count > 0 else ""
        raise ValueError(f"{option} must be from 1{longest}, got {count}")
    return tokens[:count]
