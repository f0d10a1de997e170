"""The host side of a board's serial line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from sterna.hw.board.frame_protocol import NUMBER_BITS
from sterna.hw.board.serial_protocol import (
    BLOCK_BYTES,
    COUNT_BITS,
    LOAD_QUEUE_BYTES,
    QUEUE_BYTES,
    Answer,
    Order,
    order_bytes,
)

__all__ = ["Conversation", "ConversationError", "FrameConversation", "SerialPort", "check_tokens"]

_LINE_END = 10
_NUMBER = (1 << NUMBER_BITS) - 1
_SIGN = 1 << (NUMBER_BITS - 1)
_WINDOW = QUEUE_BYTES // 4
"""Tokens sent before their answers are read: each takes up to four bytes."""


_WRITE_BYTES = 4    # of the image per order, which takes at most six bytes
_HALF_WINDOW = LOAD_QUEUE_BYTES // 6 // 2
"""Half of the writes in flight: one half is answered while the other is sent."""


class ConversationError(RuntimeError):
    """The board did not answer, or violated the protocol."""


class SerialPort(Protocol):
    """A serial line, as in pyserial."""

    def read(self, size: int = 1) -> bytes:
        """Return ``size`` bytes, or fewer after a timeout."""

    def write(self, data: bytes) -> object:
        """Send bytes."""


def check_tokens(tokens: int) -> None:
    """Raise ValueError if the number of tokens is outside the range of a board."""
    if not 1 <= tokens < 1 << COUNT_BITS:
        raise ValueError(f"tokens must be from 1 to {(1 << COUNT_BITS) - 1}, got {tokens}")


class _Line:
    """Orders and answers over a serial line."""

    def __init__(self, port: SerialPort) -> None:
        self._port = port

    def meet(self) -> None:
        """Stop the board, wait until it listens, and begin a sequence."""
        # Twice, since noise may have corrupted the first attempt. Data in flight and answers after
        # a reset precede the two consecutive answers.
        for _ in range(2):
            self._port.write(order_bytes(Order.STOP) + order_bytes(Order.RESTART))
            before = b""
            while heard := self._port.read(1):
                if before[:1] + heard == bytes((Answer.STOPPED, Answer.DONE)):
                    return
                before = heard
        raise ConversationError(
            "the board does not answer: is it the right port and speed, and is a Sterna "
            "bitstream loaded?")

    def _obey(self, order: Order, argument: int = 0) -> None:
        self._port.write(order_bytes(order, argument))
        _check(order, argument, self._read())

    def _read(self) -> Answer | int:
        token = 0
        while (byte := self._byte()) >= 0xC0:
            token = token << 6 | byte & 0x3F
        if byte < 0x80:
            return token << 7 | byte
        try:
            return Answer(byte)
        except ValueError:
            raise ConversationError(f"the board should not have sent 0x{byte:02x}") from None

    def _byte(self) -> int:
        if not (heard := self._port.read(1)):
            raise ConversationError("the board stopped answering")
        return heard[0]


class FrameConversation(_Line):
    """Frames to the network on a board, and its results.

    Any method raises ConversationError if the board does not answer or answers something else.
    """

    def forget(self) -> None:
        """Begin a sequence with the next frame."""
        self._obey(Order.RESTART)

    def run(self, frame: Sequence[int], results: int) -> list[int]:
        """Send a frame; return its results, as many integers as ``results``."""
        # A board takes a number faster than the line delivers the next one.
        values = [int(value) & _NUMBER for value in frame]
        self._port.write(b"".join(order_bytes(Order.FEED, value) for value in values))
        for value in values[:-1]:
            _check(Order.FEED, value, self._read())
        found: list[int] = []
        for _ in range(results):
            said = self._read()
            if isinstance(said, Answer):
                raise ConversationError(
                    f"the board should have sent {results} results, it says {said.name} after "
                    f"{len(found)}: is its network of this model?")
            found.append((said ^ _SIGN) - _SIGN)
        _check(Order.FEED, values[-1], self._read())
        return found


class Conversation(_Line):
    """A conversation with a board at the other end of a serial line.

    Any method raises ConversationError if the board does not answer or answers something else.
    """

    def __init__(self, port: SerialPort) -> None:
        super().__init__(port)
        # The last token from the board, which it has not run yet.
        self._pending: list[int] = []
        self._line_ends = False

    def meet(self) -> None:
        super().meet()
        self._pending = []

    def stop(self) -> list[int]:
        """Stop a text; return the tokens written until then.

        The next line continues after them.
        """
        self._port.write(order_bytes(Order.STOP))
        rest: list[int] = []
        while (said := self._read()) is not Answer.STOPPED:
            if not isinstance(said, Answer):
                rest.append(said)
        self._pending = rest[-1:] or self._pending
        return rest

    def forget(self) -> None:
        """Begin a sequence with the next line."""
        self._obey(Order.RESTART)
        self._pending = []

    def load(self, image: bytes, progress: Callable[[int], None] | None = None) -> None:
        """Write an image to the memory of the board and boot from it.

        Resumes an interrupted load. ``progress`` is called with the number of bytes written.
        ConversationError if the board has no memory for an image or refuses this one.
        """
        self.meet()
        self._port.write(order_bytes(Order.WRITTEN))
        blocks = self._read()
        if isinstance(blocks, Answer):
            raise ConversationError(f"the board takes no image: it says {blocks.name}")
        _check(Order.WRITTEN, 0, self._read())
        begin = blocks * BLOCK_BYTES if blocks * BLOCK_BYTES < len(image) else 0
        if begin:       # includes the checksum: the existing data may be of another image
            self._put(image[:BLOCK_BYTES], 0, None)
        self._put(image, begin, progress)
        try:
            self.boot()
        except ConversationError:
            if not begin:
                raise
            self._put(image, 0, progress)
            self.boot()

    def _put(self, image: bytes, begin: int, progress: Callable[[int], None] | None) -> None:
        """Write an image, starting at byte ``begin``."""
        self._obey(Order.PLACE, begin // 2)
        before: list[int] = []
        step = _HALF_WINDOW * _WRITE_BYTES
        for start in range(begin, len(image) + step, step):
            some = [int.from_bytes(image[at:at + _WRITE_BYTES], "little")
                    for at in range(start, min(start + step, len(image)), _WRITE_BYTES)]
            self._port.write(b"".join(order_bytes(Order.WRITE, value) for value in some))
            for value in before:
                _check(Order.WRITE, value, self._read())
            before = some
            if progress is not None:
                progress(min(start, len(image)))

    def boot(self) -> None:
        """Wait until the board has read the image in its memory.

        ConversationError if it has no memory or refuses the image.
        """
        self._port.write(order_bytes(Order.BOOT))
        said = self._read()
        if said is Answer.REFUSED:
            raise ConversationError(
                "the board has no image: none was loaded, or it is damaged, or for other limits")
        _check(Order.BOOT, 0, said)
        self._pending = []

    def set_line_ends(self, are_fed: bool) -> None:
        """Choose whether a line end is fed to the model after each line."""
        self._line_ends = are_fed

    def set_sampling(self, beta: int, seed: int) -> None:
        """Set the sampling parameters; the seed applies from the next sequence on.

        A core without sampling refuses, which is not an error if ``beta`` is 0.
        """
        for order, value in ((Order.BETA, beta), (Order.SEED, seed)):
            self._port.write(order_bytes(order, value))
            said = self._read()
            if said is not Answer.REFUSED:
                _check(order, value, said)
            elif beta:
                raise ConversationError("this core has no sampling: take temperature 0")

    def say(self, said: Sequence[int], tokens: int) -> Iterator[int]:
        """Send a line of tokens and yield the answer token by token.

        The last token from the board is run first, since the text continues from it. An empty line
        continues the text; at its beginning it stands for a line end.
        """
        check_tokens(tokens)
        given = [*self._pending, *said]
        if self._line_ends or not given:
            given.append(_LINE_END)
        *fed, last = given
        self._obey(Order.COUNT, tokens)
        for start in range(0, len(fed), _WINDOW):
            some = fed[start:start + _WINDOW]
            self._port.write(b"".join(order_bytes(Order.FEED, token) for token in some))
            for token in some:
                _check(Order.FEED, token, self._read())
        self._port.write(order_bytes(Order.ASK, last))
        for _ in range(tokens):
            token = self._read()
            if isinstance(token, Answer):
                raise ConversationError(
                    f"the board should have written a token, it says {token.name}")
            self._pending = [token]
            yield token
        _check(Order.ASK, last, self._read())


def _check(order: Order, argument: int, said: Answer | int) -> None:
    """Raise ConversationError unless the answer to an order is DONE."""
    if said is not Answer.DONE:
        raise ConversationError(
            f"the board does not do {order.name} {argument}: it says "
            f"{said.name if isinstance(said, Answer) else f'token {said}'}")
