"""Words of a text: the pieces that a merge never crosses, and where a long text may be cut.

A word is a row of letters, digits or other signs with at most one space before it, or a row of
blanks, less its last one if a word follows. Only ASCII is told apart, and every byte from 128 on
counts as a letter: so bytes have words whether they are UTF-8 or not, and one pattern gives the
same words in Python and in JavaScript.
"""

from __future__ import annotations

import re

import numpy as np

__all__ = ["WORD_PATTERN", "last_cut", "words_of"]

WORD_PATTERN = (
    r" ?[A-Za-z\x80-\xff]+"
    r"| ?[0-9]+"
    r"| ?[^\t-\r 0-9A-Za-z\x80-\xff]+"
    r"|[\t-\r ]+(?![^\t-\r ])"
    r"|[\t-\r ]+")
r"""A word, as a regular expression on bytes, or on characters U+0000 to U+00FF in their place.

The idea, with Unicode's classes in place of ASCII's, is that of GPT-2. ``\t-\r`` are tab, line
feed, vertical tab, form feed and carriage return.
"""

_WORD = re.compile(WORD_PATTERN.encode())
_BLANK, _LETTER, _DIGIT, _OTHER = range(4)
_KINDS = np.full(256, _OTHER, dtype=np.uint8)
_KINDS[list(b"\t\n\v\f\r ")] = _BLANK
_KINDS[list(b"0123456789")] = _DIGIT
_KINDS[[byte for byte in range(256) if byte >= 128 or chr(byte).isalpha()]] = _LETTER


def words_of(text: bytes) -> list[bytes]:
    """The words of a text, which together are the text.

    >>> words_of(b"if x1 == 2:\\n    return")
    [b'if', b' x', b'1', b' ==', b' 2', b':', b'\\n   ', b' return']
    """
    return _WORD.findall(text)


def last_cut(text: bytes) -> int:
    """The last place inside of a text that is between two words, whatever stands after the text.

    That is where a sign that is no blank ends a row of its kind. 0 if there is no such place.

    >>> last_cut(b"some words"), last_cut(b"word"), last_cut(b"x = 1  ")
    (4, 0, 5)
    """
    kinds = _KINDS[np.frombuffer(text, dtype=np.uint8)]
    places = np.flatnonzero((kinds[:-1] != _BLANK) & (kinds[1:] != kinds[:-1]))
    return int(places[-1]) + 1 if places.size else 0
