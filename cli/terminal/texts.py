"""The text that a command works on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sterna.model.files import read_text
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.bundled import BUNDLED_NETWORK, bundled_heldout, bundled_recordings
from sterna.model.quantized.recordings import Recordings
from sterna.model.tokenizer import check_bytes
from sterna.model.tokens.text import first_characters
from sterna.model.tokens.tokenizer import BYTES, NUMBERS, Tokenizer

__all__ = ["PROMPT", "beginning", "check_prompts", "frames_of", "recordings_of", "text_of",
           "tokens_of"]

PROMPT = "The for statement"
"""The default prompt."""

_HINTS = {"--check": ": skip the check with --check 0",
          "--calibrate": ": give another text with --calibrate"}
_HINT = ": give another text with --text"       # for all other options


def check_prompts(prompts: Sequence[str], tokenizer: Tokenizer) -> None:
    """Refuse prompts that have no tokens, with the first character that is unknown."""
    for prompt in prompts:
        try:
            tokenizer.encode(prompt)
        except ValueError as error:
            raise ValueError(f"--prompt {prompt!r}: {error}") from error


def text_of(
    path: Path | None, tokenizer: Tokenizer, limit: int | None = None, option: str = "--text",
) -> bytes:
    """The first bytes of a text file, or else of the bundled held-out text for a vocabulary; a
    text without tokens is refused."""
    if path is None and tokenizer.kind == NUMBERS.kind:
        raise ValueError(f"the model has no tokenizer: give {option} a file with numbers of tokens")
    text = bundled_heldout(tokenizer.vocab) if path is None else read_text(path)
    text, name = beginning(text, limit, tokenizer), str(path or "the bundled text")
    hint = _HINTS.get(option, _HINT)
    if tokenizer.kind == BYTES.kind:
        check_bytes(text, tokenizer.vocab, name, hint)
        return text
    try:
        tokenizer.encode(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}{hint}") from error
    return text


def beginning(text: bytes, limit: int | None, tokenizer: Tokenizer) -> bytes:
    """The first bytes of a text, cut between characters unless tokens are bytes."""
    if limit is None or tokenizer.kind == BYTES.kind:
        return text[:limit]
    return first_characters(text, limit)


def recordings_of(name: str, data: Path | None) -> Recordings:
    """The recordings of a file, or else the held-out ones of the bundled network, for that network
    only."""
    if data is not None:
        return Recordings.load(data)
    if name != BUNDLED_NETWORK:
        raise ValueError(f"{name} is a network, and needs recordings: give --data")
    return Recordings.load(bundled_recordings(), held_out=True)


def frames_of(
    name: str, model: QuantizedModel, data: Path | None, count: int,
) -> list[np.ndarray]:
    """The first ``count`` integer frames of the recordings from :func:`recordings_of`."""
    frames = [model.integers(each)[0] for each in recordings_of(name, data).frames]
    total = sum(map(len, frames))
    if not 1 <= count <= total:
        raise ValueError(f"--tokens must be from 1 to {total} (all frames), got {count}")
    ends = np.cumsum([0, *map(len, frames)])
    return [each[:count - begin] for each, begin in zip(frames, ends, strict=False)
            if begin < count]


def tokens_of(
    path: Path | None, count: int, model: QuantizedModel, option: str = "--tokens",
) -> np.ndarray:
    """The first ``count`` tokens of a text; a shorter text is refused."""
    of_bytes = model.tokenizer.kind == BYTES.kind
    # With bytes as tokens, only the wanted ones need to be read.
    text = text_of(path, model.tokenizer, max(0, count) if of_bytes else None, option)
    tokens = model.tokenizer.encode(text)
    if not 1 <= count <= len(tokens):
        longest = f" to {len(tokens)} (the length of the text)" if count > 0 else ""
        raise ValueError(f"{option} must be from 1{longest}, got {count}")
    return tokens[:count]
