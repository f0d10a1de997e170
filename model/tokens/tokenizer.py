"""What a tokenizer is, and the one whose tokens are bytes."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from sterna.model.checks import check_whole
from sterna.model.tokenizer import VOCAB, check_bytes, encode

__all__ = ["ByteTokenizer", "Tokenizer"]


class Tokenizer(Protocol):
    """Between UTF-8 text and tokens. A token always spells the same bytes, so that
    ``b"".join(spellings[token] for token in encode(text))`` is the text."""

    @property
    def kind(self) -> str:
        """The name of its kind in files: ``bytes``, ``bpe``."""

    @property
    def vocab(self) -> int:
        """Number of tokens."""

    @property
    def spellings(self) -> tuple[bytes, ...]:
        """The bytes of every token."""

    def encode(self, text: str | bytes) -> np.ndarray:
        """The tokens of a text, int64 ``[tokens]``.

        Raises
        ------
        ValueError
            If the text has a byte that no token spells; which one and where is said.
        """

    def decode(self, tokens: np.ndarray | list[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD.

        Raises
        ------
        ValueError
            If a token is not of the vocabulary.
        """

    def to_json(self) -> Any:
        """What files hold of it; the same tokenizer gives the same."""


class ByteTokenizer:
    """A token is a byte of UTF-8 text, one below ``vocab``: 256 for any text, 128 for ASCII.

    >>> ByteTokenizer(128).encode("Hi").tolist()
    [72, 105]
    """

    kind = "bytes"

    def __init__(self, vocab: int = VOCAB) -> None:
        check_whole("vocab", vocab, 2, VOCAB)
        self.vocab = vocab
        self.spellings = tuple(bytes([value]) for value in range(vocab))

    def encode(self, text: str | bytes) -> np.ndarray:
        """The bytes of a text, int64 ``[length]``."""
        data = text.encode() if isinstance(text, str) else text
        check_bytes(data, self.vocab)
        return encode(data)

    def decode(self, tokens: np.ndarray | list[int]) -> str:
        """The text of bytes; what is not UTF-8 becomes U+FFFD."""
        values = np.asarray(tokens, dtype=np.int64).reshape(-1)
        if values.size and not 0 <= values.min() <= values.max() < self.vocab:
            raise ValueError(
                f"tokens must be from 0 to {self.vocab - 1}, got {values.min()} to {values.max()}")
        return values.astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def to_json(self) -> str:
        """``bytes``, as files have always said; the model's shape has the vocabulary."""
        return self.kind
