"""Tokenized training text with its held-out text."""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np

from sterna.model.corpus import Corpus
from sterna.model.tokenizer import check_bytes
from sterna.model.tokens.tokenizer import ByteTokenizer, Tokenizer

__all__ = ["GeneralText", "MemoryText", "TokenText", "first_characters"]


class TokenText(Protocol):
    """The input of training: tokens by position, wherever they are stored."""

    @property
    def name(self) -> str:
        """Display name."""

    @property
    def sha256(self) -> str:
        """Hash of the tokens and the held-out text, in hexadecimal."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of these tokens."""

    @property
    def general(self) -> GeneralText | None:
        """More general text that training begins with, or None."""

    def __len__(self) -> int:
        """Number of tokens to train on."""

    def piece(self, start: int, count: int) -> np.ndarray:
        """Tokens ``start`` to ``start + count``, int64 ``[count]``, wrapping around at the end.

        ``start`` is from 0 to below the length, ``count`` at most the length.
        """

    def heldout(self, most_bytes: int | None = None) -> bytes:
        """The held-out text, UTF-8; at most its first ``most_bytes`` bytes, cut between
        characters."""


class _Tokens:
    """A text in memory as tokens; ValueError if the tokenizer cannot encode it."""

    def __init__(self, text: bytes, tokenizer: Tokenizer, name: str) -> None:
        self.tokenizer = tokenizer
        if isinstance(tokenizer, ByteTokenizer):    # its bytes already are the tokens
            check_bytes(text, tokenizer.vocab, name)
            self._tokens = np.frombuffer(text, dtype=np.uint8)
        else:
            tokens = tokenizer.encode(text)
            self._tokens = tokens.astype(np.min_scalar_type(tokenizer.vocab - 1))

    def __len__(self) -> int:
        """Number of tokens to train on."""
        return len(self._tokens)

    def piece(self, start: int, count: int) -> np.ndarray:
        """Tokens from ``start`` on, int64 ``[count]``, wrapping around at the end."""
        there = self._tokens[start:start + count]
        round_the_end = self._tokens[:count - len(there)]
        return np.concatenate([there, round_the_end]).astype(np.int64)


class GeneralText(_Tokens):
    """More general text that training begins with, in memory; the tokenizer must be able to encode
    all of it."""

    def __init__(self, text: bytes, tokenizer: Tokenizer) -> None:
        super().__init__(text, tokenizer, "the general text")
        self.sha256 = hashlib.sha256(text).hexdigest()


class MemoryText(_Tokens):
    """A corpus in memory as tokens; the tokenizer must be able to encode all of it."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer) -> None:
        super().__init__(corpus.train, tokenizer, corpus.name)
        self.name, self.sha256, self.file = corpus.name, corpus.sha256, corpus.file
        self.general = GeneralText(corpus.general, tokenizer) if corpus.general else None
        self._heldout = corpus.heldout

    def heldout(self, most_bytes: int | None = None) -> bytes:
        """The held-out text, or its beginning."""
        return self._heldout if most_bytes is None else first_characters(self._heldout, most_bytes)


def first_characters(text: bytes, most_bytes: int) -> bytes:
    """The beginning of a UTF-8 text: at most ``most_bytes`` bytes, cut between characters.

    >>> first_characters("aß".encode(), 2)
    b'a'
    """
    if len(text) <= most_bytes:
        return text
    while most_bytes and text[most_bytes] & 0xC0 == 0x80:     # inside a character
        most_bytes -= 1
    return text[:most_bytes]
