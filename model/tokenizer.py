"""The byte tokenizer: a token is one byte of UTF-8 text.

NumPy only, so that quantised models can be evaluated without torch.
"""

from __future__ import annotations

import numpy as np

__all__ = ["ASCII_VOCAB", "VOCAB", "as_bytes", "check_bytes", "check_tokens",
           "contiguous_sequences", "decode", "encode", "known_bytes", "utf8"]

VOCAB = 256
"""Number of tokens: one per byte value."""

ASCII_VOCAB = 128
"""Number of tokens of a model that reads and writes ASCII."""


def encode(text: str | bytes) -> np.ndarray:
    """Return the tokens of ``text``: its UTF-8 bytes as int64 ``[length]``.

    Raises ValueError if ``text`` is neither text nor bytes, or contains a lone surrogate.

    >>> encode("aß").tolist()
    [97, 195, 159]
    """
    return np.frombuffer(as_bytes(text), dtype=np.uint8).astype(np.int64)


def as_bytes(text: str | bytes, name: str = "the text") -> bytes:
    """A text as UTF-8, bytes unchanged. Raises ValueError for anything else, and for a text with a
    lone surrogate, which UTF-8 cannot encode; that message calls the text ``name``."""
    if not isinstance(text, (str, bytes, bytearray)):   # bytes(5) would be five NULs
        raise ValueError(f"text must be str or bytes, got {type(text).__name__} {text!r}")
    try:
        return text.encode() if isinstance(text, str) else bytes(text)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not UTF-8: character {error.start} of it is "
                         f"{text[error.start]!r}, half of a character") from None


def utf8(text: str | bytes) -> bytes:
    """As :func:`as_bytes`; raises ValueError also for bytes that are not UTF-8."""
    data = as_bytes(text)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the text is not UTF-8: it has the byte {data[error.start]} at offset "
                         f"{error.start}") from None
    return data


def check_tokens(tokens: np.ndarray | list[int], vocab: int) -> np.ndarray:
    """Tokens of a vocabulary as int64 ``[length]``.

    Raises ValueError if one is not from 0 to ``vocab - 1``.
    """
    values = np.asarray(tokens, dtype=np.int64).reshape(-1)
    if values.size and not 0 <= values.min() <= values.max() < vocab:
        raise ValueError(
            f"tokens must be from 0 to {vocab - 1}, got {values.min()} to {values.max()}")
    return values


def decode(tokens: np.ndarray | list[int]) -> str:
    """Return the text of ``tokens``; bytes that are not UTF-8 become U+FFFD.

    Raises ValueError if a token is not from 0 to 255.

    >>> decode([97, 195, 159])
    'aß'
    """
    values = check_tokens(tokens, VOCAB)
    return values.astype(np.uint8).tobytes().decode("utf-8", errors="replace")


def known_bytes(vocab: int) -> str:
    """The input that a model with such a vocabulary knows, as the object of a sentence.

    >>> known_bytes(128), known_bytes(65)
    ('only ASCII characters', 'only the bytes 0 to 64')
    """
    return ("only ASCII characters" if vocab == ASCII_VOCAB
            else f"only the bytes 0 to {vocab - 1}")


def check_bytes(text: bytes, vocab: int, source: str = "the text", hint: str = "") -> None:
    """Refuse a text with a byte that a model of this vocabulary does not know. The message calls
    the text ``source`` and ends with ``hint``.

    >>> check_bytes("Ω".encode(), 128)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: the text has 'Ω', the byte 206 at offset 0, and this model knows only ASCII ...
    """
    strange = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) >= vocab)
    if strange.size:
        at = start = int(strange[0])
        while start and text[start] & 0xC0 == 0x80:     # inside a character
            start -= 1
        raise ValueError(
            f"{source} has {text[start:start + 4].decode(errors='replace')[0]!r}, the byte "
            f"{text[at]} at offset {at}, and this model knows {known_bytes(vocab)}{hint}")


def contiguous_sequences(tokens: np.ndarray, sequences: int) -> np.ndarray:
    """Split tokens ``[length]`` into contiguous pieces ``[sequences, length // sequences]``.

    Held-out text is evaluated this way: every piece is read from start to end with its state
    carried along, and all pieces run in parallel. Up to ``sequences - 1`` tokens at the end are
    left out. Raises ValueError if ``sequences`` is below 1 or a piece would be shorter than 2
    tokens, which leaves nothing to predict.

    >>> contiguous_sequences(np.arange(7), 3).tolist()
    [[0, 1], [2, 3], [4, 5]]
    """
    tokens = np.asarray(tokens).reshape(-1)
    if sequences < 1:
        raise ValueError(f"sequences must be at least 1, got {sequences}")
    length = tokens.size // sequences
    if length < 2:
        raise ValueError(
            f"{sequences} sequences need at least {2 * sequences} tokens of text, "
            f"got {tokens.size}")
    return tokens[: sequences * length].reshape(sequences, length)
