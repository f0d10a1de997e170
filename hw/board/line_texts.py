"""What the line protocol says to a person, and where it keeps that."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ERASE", "LINE_BYTES", "SIGN", "LineTexts"]

LINE_BYTES = 256
"""Bytes of the memory that a line may take; the texts follow in the same memory."""

SIGN = b"\r\n> "
"""Shown when a line is awaited."""

ERASE = b"\b \b"
"""Takes a character off the screen."""

_REFUSAL = b"\r\n?"
_TEXT_HELP = (
    b"\r\nEnter a text: the model goes on.",
    b"^C stops it. // is a /. In hex:",
)
_TOKENS_HELP = (
    b"\r\nEnter tokens, 3 of 0 to o each.",
    b"^C stops the answer. In hex:",
)
_HELP = (
    b"/r forgets",
    b"/n 40 tokens to write",
    b"/l 1 feeds line ends",
)
_SAMPLING_HELP = (
    b"/b 5c5 beta: 400*log2(e)/T, or 0",
    b"/s 1 seed, as of /r",
)


@dataclass(frozen=True, slots=True)
class LineTexts:
    """The texts of the line protocol, each ended by a zero, and their places.

    Parameters
    ----------
    sampled
        Whether tokens can be drawn by temperature; otherwise the help does not say how.
    are_letters
        Whether a token is more than a byte (:mod:`sterna.hw.board.token_letters`).

    >>> LineTexts(sampled=False).memory[:6]
    b'\\r\\n> \\x00\\r'
    """

    sampled: bool
    are_letters: bool = False

    @property
    def help_text(self) -> bytes:
        """The answer to ``/?``, without the sign that follows."""
        return b"\r\n".join((
            *(_TOKENS_HELP if self.are_letters else _TEXT_HELP), *_HELP,
            *(_SAMPLING_HELP if self.sampled else ())))

    @property
    def memory(self) -> bytes:
        """All of them; at most 256 bytes."""
        texts = (SIGN, _REFUSAL + SIGN, ERASE, self.help_text + SIGN)
        content = b"".join(text + b"\0" for text in texts)
        assert len(content) <= LINE_BYTES
        return content

    def place(self, text: bytes) -> int:
        """Number of the first byte of a text that is in the memory."""
        return LINE_BYTES + self.memory.index(text)

    @property
    def sign(self) -> int:
        """Where the sign is."""
        return self.place(SIGN)

    @property
    def refusal(self) -> int:
        """Where the answer to a line that is not understood is."""
        return self.place(_REFUSAL)

    @property
    def erasure(self) -> int:
        """Where the text is that takes a character off the screen."""
        return self.place(ERASE)

    @property
    def help(self) -> int:
        """Where the help is."""
        return self.place(self.help_text)
