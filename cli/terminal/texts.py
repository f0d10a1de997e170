"""Which text a command works on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sterna.model.files import read_text
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.tokenizer import encode

__all__ = ["text_of", "tokens_of"]


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
            f"the text has the byte {tokens.max()}, the model a vocabulary of "
            f"{model.config.vocab}")
    return tokens
