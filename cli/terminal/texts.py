"""Which text a command works on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sterna.model.files import read_text
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.tokenizer import encode

__all__ = ["check_prompts", "text_of", "tokens_of"]

_ASCII_VOCAB = 128


def check_prompts(prompts: Sequence[str], vocab: int) -> None:
    """Refuse prompts with a character that a model does not know.

    Raises
    ------
    ValueError
        Naming the prompt, the character and what the model knows.
    """
    for prompt in prompts:
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise ValueError(f"--prompt {prompt!r} is not UTF-8")
        for character in prompt:
            if max(character.encode()) >= vocab:
                known = ("ASCII characters alone" if vocab == _ASCII_VOCAB
                         else f"the bytes 0 to {vocab - 1} alone")
                raise ValueError(
                    f"--prompt {prompt!r} has the character {character!r}, and this model "
                    f"knows {known}")


def text_of(path: Path | None, vocab: int) -> bytes:
    """The bytes of a text file, or else the bundled held-out text for such a vocabulary."""
    return bundled_heldout(vocab) if path is None else read_text(path)


def tokens_of(
    path: Path | None, count: int, model: QuantizedModel, option: str = "--tokens",
) -> np.ndarray:
    """The first ``count`` tokens of a text.

    Raises
    ------
    ValueError
        If the text is shorter, or has a byte outside the model's vocabulary.
    """
    tokens = encode(text_of(path, model.config.vocab))
    if not 1 <= count <= tokens.size:
        raise ValueError(
            f"{option} must be from 1 to {tokens.size} (the length of the text), got {count}")
    tokens = tokens[:count]
    if tokens.max() >= model.config.vocab:
        raise ValueError(
            f"the text has the byte {tokens.max()}, and the model knows only the bytes 0 to "
            f"{model.config.vocab - 1}: give a text of those with --text")
    return tokens
