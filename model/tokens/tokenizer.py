"""The tokenizer protocol, and the byte tokenizer."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from sterna.model.checks import check_whole
from sterna.model.tokenizer import VOCAB, as_bytes, check_bytes, check_tokens, decode, encode

__all__ = ["BYTES", "NUMBERS", "ByteTokenizer", "TextStream", "TokenNumbers", "Tokenizer",
           "as_tokens", "check_tokens", "spelled_bytes"]


class Tokenizer(Protocol):
    """Conversion between UTF-8 text and tokens. A token always spells the same bytes, so
    ``b"".join(spellings[token] for token in encode(text))`` is the text."""

    begin: tuple[int, ...]
    """The tokens before a text; they spell nothing, and :meth:`encode` leaves them out."""

    end_of_text: int | None
    """The token that ends a document; it spells nothing, and :meth:`encode` never gives it."""

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

        Raises ValueError if no token spells a byte of the text; the message says which and where.
        """

    def decode(self, tokens: np.ndarray | list[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD.

        Raises ValueError if a token is outside the vocabulary.
        """

    def last_cut(self, text: bytes) -> int:
        """The last position where a text may be cut regardless of what follows; 0 if there is none.

        With ``cut = last_cut(text)``, the tokens of ``text[:cut]`` and those of ``text[cut:] +
        more`` are together the tokens of ``text + more``, so a text of any length can be encoded in
        pieces.
        """

    def to_json(self) -> Any:
        """Its form in files; the same tokenizer gives the same."""

    @property
    def sha256(self) -> str:
        """A hash that identifies the tokenizer, in hexadecimal."""


def as_tokens(text: str | bytes | Sequence[int] | np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """The tokens of a text, int64 ``[tokens]``; tokens are checked and passed through.

    Raises ValueError if the tokenizer cannot encode the text, or if tokens are not whole numbers of
    its vocabulary.
    """
    if isinstance(text, (str, bytes, bytearray)):
        return tokenizer.encode(text if isinstance(text, str) else bytes(text))
    tokens = np.asarray(text)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ValueError(f"expected a text, or whole numbers [tokens], got {text!r}")
    return check_tokens(tokens, tokenizer.vocab)


def spelled_bytes(tokenizer: Tokenizer, tokens: np.ndarray) -> int:
    """The number of bytes that tokens spell, the divisor for bits per byte. Without a tokenizer
    each token counts as one."""
    if tokenizer.kind == NUMBERS.kind:
        return tokens.size
    lengths = np.array([len(spelling) for spelling in tokenizer.spellings])
    return int(lengths[tokens].sum())


class ByteTokenizer:
    """A token is a byte of UTF-8 text, one below ``vocab``: 256 for any text, 128 for ASCII.

    >>> ByteTokenizer(128).encode("Hi").tolist()
    [72, 105]
    """

    kind = "bytes"
    begin: tuple[int, ...] = ()
    end_of_text: int | None = None

    def __init__(self, vocab: int = VOCAB) -> None:
        check_whole("vocab", vocab, 2, VOCAB)
        self.vocab = vocab
        self.spellings = tuple(bytes([value]) for value in range(vocab))

    def encode(self, text: str | bytes) -> np.ndarray:
        """The bytes of a text, int64 ``[length]``."""
        data = as_bytes(text)
        check_bytes(data, self.vocab)
        return encode(data)

    def decode(self, tokens: np.ndarray | list[int]) -> str:
        """The text of bytes; those that are not UTF-8 become U+FFFD."""
        return decode(check_tokens(tokens, self.vocab))

    def to_json(self) -> str:
        """``bytes``; the shape of the model gives their number."""
        return self.kind

    def last_cut(self, text: bytes) -> int:
        """Bytes may be cut anywhere: the end."""
        return len(text)

    @property
    def sha256(self) -> str:
        """SHA-256 of the kind and the size of the vocabulary."""
        return hashlib.sha256(f"{self.kind} {self.vocab}".encode()).hexdigest()


BYTES = ByteTokenizer()
"""Tokens for any text, one per byte."""


_DIGITS = 9     # more than any token number has


class TokenNumbers:
    """The stand-in for a missing tokenizer: tokens are written as their numbers.

    >>> TokenNumbers(20).encode(" 3 17").tolist(), TokenNumbers(20).decode([3, 17])
    ([3, 17], ' 3 17')
    """

    kind = "numbers"
    begin: tuple[int, ...] = ()
    end_of_text: int | None = None

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    @cached_property
    def spellings(self) -> tuple[bytes, ...]:
        """The number of every token, after a space."""
        return tuple(f" {token}".encode() for token in range(self.vocab))

    def encode(self, text: str | bytes) -> np.ndarray:
        """The tokens written in the text, int64 ``[tokens]``."""
        words = as_bytes(text).split()
        for word in words:
            if not word.isdigit() or len(word) > _DIGITS:
                raise ValueError(
                    f"the model has no tokenizer: expected numbers of tokens, such as '3 17', got "
                    f"{word.decode(errors='replace')!r}")
        return check_tokens([int(word) for word in words], self.vocab)

    def decode(self, tokens: np.ndarray | list[int]) -> str:
        """The numbers, each after a space."""
        return "".join(f" {token}" for token in check_tokens(tokens, self.vocab))

    def last_cut(self, text: bytes) -> int:
        """The last space."""
        return text.rfind(b" ") + 1

    def to_json(self) -> str:
        """``numbers``; the shape of the model gives their number."""
        return self.kind

    @property
    def sha256(self) -> str:
        """SHA-256 of the kind and the size of the vocabulary."""
        return hashlib.sha256(f"{self.kind} {self.vocab}".encode()).hexdigest()


NUMBERS = TokenNumbers(2)
"""For a model without a tokenizer; :func:`sterna.model.tokens.files.fitted` gives it the size."""


class TextStream:
    """Turns tokens into text piece by piece; a piece is final once returned.

    A character of several bytes may span tokens; it is held back until its last byte arrives.
    Invalid UTF-8 becomes U+FFFD.

    >>> from sterna.model.tokens.tokenizer import ByteTokenizer
    >>> stream = TextStream(ByteTokenizer())
    >>> stream.add([97, 195]), stream.add([159]), stream.add([195]), stream.end()
    ('a', 'ß', '', '\\ufffd')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spellings = tokenizer.spellings
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete."""
        return self._decoder.decode(b"".join(self._spellings[token] for token in tokens))

    def end(self) -> str:
        """The remainder of an incomplete character."""
        return self._decoder.decode(b"", final=True)
