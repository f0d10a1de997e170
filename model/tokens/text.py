"""A text in tokens to train on, with the text to judge by."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sterna.model.corpus import Corpus
from sterna.model.tokenizer import check_bytes
from sterna.model.tokens.tokenizer import ByteTokenizer, Tokenizer

__all__ = ["MemoryText", "TokenText", "first_characters"]


class TokenText(Protocol):
    """What training reads: tokens by position, wherever they lie."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def sha256(self) -> str:
        """Hash of the tokens and of the held-out text, in hexadecimal."""

    @property
    def tokenizer(self) -> Tokenizer:
        """What the tokens were made with."""

    def __len__(self) -> int:
        """Number of tokens to train on."""

    def piece(self, start: int, count: int) -> np.ndarray:
        """Tokens ``start`` to ``start + count``, int64 ``[count]``; after the last comes the first.

        ``start`` is from 0 to below the length, ``count`` at most the length.
        """

    def heldout(self, most_bytes: int | None = None) -> bytes:
        """The text to judge by, UTF-8; at most so many bytes from its beginning, cut between
        characters."""


class MemoryText:
    """A corpus in memory, in the tokens of a tokenizer.

    Parameters
    ----------
    corpus
        The text.
    tokenizer
        Has tokens for all of it.

    Raises
    ------
    ValueError
        If it has not.
    """

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer) -> None:
        self.name, self.sha256, self.tokenizer = corpus.name, corpus.sha256, tokenizer
        self.file = corpus.file
        if isinstance(tokenizer, ByteTokenizer):    # which are tokens as they lie there
            check_bytes(corpus.train, tokenizer.vocab, corpus.name)
            self._tokens = np.frombuffer(corpus.train, dtype=np.uint8)
        else:
            tokens = tokenizer.encode(corpus.train)
            self._tokens = tokens.astype(np.min_scalar_type(tokenizer.vocab - 1))
        self._heldout = corpus.heldout

    def __len__(self) -> int:
        """Number of tokens to train on."""
        return len(self._tokens)

    def piece(self, start: int, count: int) -> np.ndarray:
        """Tokens from ``start`` on, int64 ``[count]``, going round at the end."""
        there = self._tokens[start:start + count]
        round_the_end = self._tokens[:count - len(there)]
        return np.concatenate([there, round_the_end]).astype(np.int64)

    def heldout(self, most_bytes: int | None = None) -> bytes:
        """The held-out text, or its beginning."""
        return self._heldout if most_bytes is None else first_characters(self._heldout, most_bytes)


def first_characters(text: bytes, most_bytes: int) -> bytes:
    """The beginning of a UTF-8 text: at most so many bytes, cut between characters.

    >>> first_characters("aß".encode(), 2)
    b'a'
    """
    if len(text) <= most_bytes:
        return text
    while most_bytes and text[most_bytes] & 0xC0 == 0x80:     # inside a character
        most_bytes -= 1
    return text[:most_bytes]
