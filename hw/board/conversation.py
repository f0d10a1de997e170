r"""The other end of the line protocol: what a program says to a board, and hears.

The board echoes what is typed, so the program knows every byte that must come back, up to
the text itself. A text of ``n`` tokens is as long as it takes to read ``n`` of them: the
board puts ``\r`` before each ``\n``, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn, Protocol

from sterna.hw.board.line_settings import COUNT_BITS
from sterna.hw.board.line_texts import LINE_BYTES, SIGN
from sterna.hw.board.token_letters import letters_per_token, token_of, typed

__all__ = ["Conversation", "ConversationError", "SerialPort", "check_line", "check_tokens"]

_LINE_LIMIT = LINE_BYTES - 1
_TYPED_AT_ONCE = 8
"""Bytes sent before their echo is read: fewer than the board keeps."""

_INTERRUPT = b"\x03"
_REFUSED = b"\r\n?" + SIGN


class ConversationError(RuntimeError):
    """The board did not answer, or not as the line protocol says."""


class SerialPort(Protocol):
    """A serial line, as pyserial has it."""

    def read(self, size: int = 1) -> bytes:
        """Return so many bytes, or what has come when the patience is at its end."""

    def write(self, data: bytes) -> object:
        """Send bytes."""


def check_line(text: bytes, vocab: int) -> None:
    """Check that a text can be typed in a line of bytes.

    Raises
    ------
    ValueError
        If it has a control character, or a byte outside the vocabulary.
    """
    for position, byte in enumerate(text):
        if (byte < 0x20 and byte != 0x09) or byte == 0x7F:
            raise ValueError(
                f"a line has no control characters, got 0x{byte:02x} at byte {position}")
        if byte >= vocab:
            raise ValueError(
                f"the model knows the bytes up to {vocab - 1}, got {byte} at byte {position}")


def check_tokens(tokens: int) -> None:
    """Check that so many tokens can be asked for; ValueError if not."""
    if not 1 <= tokens < 1 << COUNT_BITS:
        raise ValueError(f"tokens must be from 1 to {(1 << COUNT_BITS) - 1}, got {tokens}")


class Conversation:
    """A conversation with a board.

    Parameters
    ----------
    port
        The serial line to it.
    vocab
        Number of tokens of its core.

    Raises
    ------
    ConversationError
        From any method, if the board does not answer or answers something else.
    """

    def __init__(self, port: SerialPort, vocab: int = 256) -> None:
        self._port, self._vocab = port, vocab
        self._letters = letters_per_token(vocab)
        self._tokens: int | None = None
        self._ahead = b""
        self._line_ends = False

    def meet(self) -> None:
        """Stop whatever the board does, and wait until it listens."""
        self._tokens, self._ahead = None, b""
        # No command is "/": the answer to it ends all that may have been on its way. A board
        # may keep one byte only, so each is sent when the one before has had its effect.
        for is_last in (False, True):
            for said, answer in ((_INTERRUPT, SIGN), (b"/", b"/"), (b"\r", _REFUSED)):
                self._port.write(said)
                heard = self._until(answer)
                if not heard.endswith(answer):
                    break
            else:
                break
            if is_last:
                self._complain(heard)
        self.set_line_ends(False)

    def forget(self) -> None:
        """Begin a sequence with the next line."""
        self._command("r")

    def set_line_ends(self, are_fed: bool) -> None:
        """Choose whether each line is followed by a line end for the model."""
        self._command(f"l {int(are_fed)}")
        self._line_ends = are_fed

    def set_sampling(self, beta: int, seed: int) -> None:
        """Choose how tokens are drawn; the seed counts from the next sequence on.

        A core without sampling does not know of it, which is no error if ``beta`` is 0.
        """
        is_known = self._obeys(f"b {beta:x}") and self._obeys(f"s {seed:x}")
        if beta and not is_known:
            raise ConversationError("this core has no sampling: take temperature 0")

    def say(self, said: Sequence[int], tokens: int) -> Iterator[int]:
        """Type a line of tokens, and yield those that are written as they come.

        A longer text than fits in a line is given in several, which the model does not
        notice.
        """
        check_tokens(tokens)
        text = typed(said, self._vocab)
        # A slash at the beginning is doubled, so it takes two places.
        size = (_LINE_LIMIT - 1) // self._letters * self._letters
        line_ends = self._line_ends
        if len(text) > size and line_ends:
            self.set_line_ends(False)
        while len(text) > size:
            self._count(0)
            self._type(text[:size])
            self._expect(SIGN)
            text = text[size:]
        if line_ends != self._line_ends:
            self.set_line_ends(line_ends)
        self._count(tokens)
        self._type(text)
        for _ in range(tokens):
            yield self._token()
        self._expect(SIGN)

    def _count(self, tokens: int) -> None:
        if tokens != self._tokens:
            self._command(f"n {tokens:x}")
            self._tokens = tokens

    def _command(self, command: str) -> None:
        if not self._obeys(command):
            raise ConversationError(f"the board does not know the command /{command}")

    def _obeys(self, command: str) -> bool:
        self._type(command.encode(), slash=b"/")
        answer = self._read(len(SIGN))
        if answer == SIGN:
            return True
        self._expect(_REFUSED, answer)
        return False

    def _type(self, text: bytes, slash: bytes = b"") -> None:
        line = (slash or (b"/" if text.startswith(b"/") else b"")) + text
        for start in range(0, len(line), _TYPED_AT_ONCE):
            piece = line[start:start + _TYPED_AT_ONCE]
            self._port.write(piece)
            self._expect(piece)
        self._port.write(b"\r")

    def _token(self) -> int:
        if self._letters > 1:
            letters = self._read(self._letters)
            token = token_of(letters)
            if token is None or token >= self._vocab:
                raise ConversationError(
                    f"the board should have sent one of {self._vocab} tokens, it sent "
                    f"{letters!r}: has it another model?")
            return token
        byte = self._read(1)
        if byte == b"\r":
            follows = self._read(1)
            if follows == b"\n":
                return follows[0]
            self._ahead = follows
        return byte[0]

    def _until(self, end: bytes) -> bytes:
        """Return what comes up to some bytes, or until nothing comes."""
        heard = b""
        while not heard.endswith(end) and (byte := self._port.read(1)):
            heard += byte
        return heard

    def _expect(self, expected: bytes, before: bytes = b"") -> None:
        heard = before + self._read(len(expected) - len(before))
        if heard != expected:
            raise ConversationError(
                f"the board should have sent {expected!r}, it sent {heard!r}")

    def _read(self, size: int) -> bytes:
        heard = self._ahead[:size]
        self._ahead = self._ahead[size:]
        if len(heard) < size:
            heard += self._port.read(size - len(heard))
        if len(heard) < size:
            self._complain(heard)
        return heard

    def _complain(self, heard: bytes) -> NoReturn:
        raise ConversationError(
            f"the board does not answer (the last it sent is {heard[-40:]!r}): is it the right "
            f"port and speed, and is a Sterna bitstream loaded?")
