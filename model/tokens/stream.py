"""Text from tokens as they are written."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from sterna.model.tokens.tokenizer import Tokenizer

__all__ = ["TextStream"]


class TextStream:
    """Turns tokens into text, of which each piece is certain when it is given out.

    A character of several bytes may be spread over tokens; it is held back until its last byte is
    there. What cannot become UTF-8 is U+FFFD.

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
        """What is left of a character that was cut off."""
        return self._decoder.decode(b"", final=True)
