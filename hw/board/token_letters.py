"""Tokens on a serial line: bytes, or where there are more tokens than bytes, three letters each.

A letter is one of the 64 signs from ``0`` to ``o`` (0x30 to 0x6f) and holds six bits, the highest
first. It is never a control character or a slash, so that lines of tokens are edited, ended and
stopped as lines of text are.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["FIRST_LETTER", "LETTERS", "LETTER_BITS", "MAX_BYTES_VOCAB", "MAX_VOCAB",
           "letters_per_token", "token_of", "typed"]

MAX_BYTES_VOCAB = 256
"""Values of a byte."""

MAX_VOCAB = 1 << 16
"""The largest vocabulary of a board."""

LETTERS = 3
"""Letters of a token of a larger vocabulary than bytes have."""

LETTER_BITS = 6
"""Bits of a letter."""

FIRST_LETTER = 0x30
"""The letter of six zeros."""


def letters_per_token(vocab: int) -> int:
    """Bytes that a token takes on the line."""
    return 1 if vocab <= MAX_BYTES_VOCAB else LETTERS


def typed(tokens: Sequence[int], vocab: int) -> bytes:
    """What is typed for tokens.

    >>> typed([72, 105], 256), typed([72, 1023], 1024)
    (b'Hi', b'0180?o')
    """
    if letters_per_token(vocab) == 1:
        return bytes(tokens)
    mask = (1 << LETTER_BITS) - 1
    return bytes(FIRST_LETTER + (token >> LETTER_BITS * place & mask)
                 for token in tokens for place in reversed(range(LETTERS)))


def token_of(letters: bytes) -> int | None:
    """The token that three letters stand for; None if they are none.

    >>> token_of(b"0?o"), token_of(b"0 o")
    (1023, None)
    """
    token = 0
    for letter in letters:
        value = letter - FIRST_LETTER
        if not 0 <= value < 1 << LETTER_BITS:
            return None
        token = token << LETTER_BITS | value
    return token
