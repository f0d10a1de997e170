"""The protocol on a board's serial line: orders and answers of one or a few bytes.

A byte to the board either adds seven bits to an argument, highest first, or is an order, with the
top bit set, which takes the argument. Since an order ends any preceding argument, both ends
resynchronise after a disturbance. Each order is answered when it is done; before that, up to
:data:`QUEUE_BYTES` or :data:`LOAD_QUEUE_BYTES` may be in flight.

A token from the board ends with a byte of its lowest seven bits; bytes with the top two bits set
precede it with six further bits each, if needed. All other bytes are answers.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.compute.logit_weight import BETA_BITS, SEED_BITS
from sterna.hw.core.image.reader import ImageStatus

__all__ = ["BLOCK_BYTES", "COUNT_BITS", "LOAD_QUEUE_BYTES", "QUEUE_BYTES", "Answer", "Order",
           "OrderProtocol", "SerialProtocol", "check_core", "order_bytes"]

COUNT_BITS = 16
"""Bits of the number of tokens to write."""

QUEUE_BYTES = 32
"""Minimum input queue of a busy board: an iCE40 has no block RAM left for it."""

LOAD_QUEUE_BYTES = 256
"""Input queue of a board with a loaded model: it fits a block RAM."""

BLOCK_BYTES = 1024
"""Unit of WRITTEN, in bytes of an image."""

_ARGUMENT_BITS = 32
_LOW_BITS, _HIGH_BITS, _HIGH = 7, 6, 0b11
_MIN_VOCAB, _MAX_VOCAB = 128, 1 << 16


class Order(enum.IntEnum):
    """Orders to a board."""

    # Write no more tokens after the one in progress; discard the queue. Never waits.
    STOP = 0x80
    RESTART = 0x81  # the next token begins a sequence, with the seed
    FEED = 0x82  # run a token
    # Run a token and write COUNT tokens; all but the last are run as well.
    ASK = 0x83
    COUNT = 0x84  # number of tokens to write, at least 1
    # inverse temperature, :attr:`sterna.model.quantized.sampling.Sampler.beta`; 0 is greedy
    BETA = 0x85
    SEED = 0x86  # seed of the sampler
    # On a board with a loaded model: address of the next 16-bit word to write. The board runs no
    # tokens until BOOT.
    PLACE = 0x87
    WRITE = 0x88  # write two words, the first in the low bits
    BOOT = 0x89  # read the image; REFUSED if it is not for this board
    # Whole blocks of :data:`BLOCK_BYTES` of an image written so far, as a token. 0 after BOOT.
    WRITTEN = 0x8A


class Answer(enum.IntEnum):
    """Answers of a board other than tokens."""

    DONE = 0x80  # an order was obeyed
    # The board is idle: after a reset, and after STOP, instead of the answer to the stopped order.
    STOPPED = 0x81
    # The board does not know the order or the token, has no model, was asked for 0 tokens, or its
    # core cannot draw them.
    REFUSED = 0x82


def order_bytes(order: Order, argument: int = 0) -> bytes:
    """An order as it goes over the line.

    >>> order_bytes(Order.FEED, 300).hex(" ")
    '02 2c 82'
    """
    digits: list[int] = []
    while argument:
        digits.insert(0, argument & 0x7F)
        argument >>= _LOW_BITS
    return bytes((*digits, order))


def check_core(vocab: int, sequences: int) -> None:
    """Reject a core unless it has one sequence, at least ASCII, and tokens of up to 16 bits."""
    if not _MIN_VOCAB <= vocab <= _MAX_VOCAB:
        raise ValueError(
            f"over a serial line the vocabulary must be from {_MIN_VOCAB} (ASCII) to "
            f"{_MAX_VOCAB}, got {vocab}")
    if sequences != 1:
        raise ValueError(f"a serial line has one sequence, the core {sequences}")


class OrderProtocol(wiring.Component):
    """Listens for orders and answers them; a subclass adds the states that obey them.

    Members
    -------
    received : ``In(stream.Signature(8))``
        Bytes from the line, except STOP.
    stop : ``In(1)``
        STOP was received. Bytes received before it must not be delivered any more.
    sent : ``Out(stream.Signature(8))``
        Bytes to the line.
    """

    def __init__(self, argument_bits: int, members: Mapping[str, wiring.Member]) -> None:
        self.argument, self.order = Signal(argument_bits), Signal(8)
        self.stopping = Signal(init=1)
        self._answer = Signal(8)
        super().__init__({
            "received": In(stream.Signature(8)), "stop": In(1), "sent": Out(stream.Signature(8)),
            **members})

    def forget(self) -> list:
        """Assignments on STOP, besides returning to idle."""
        return []

    @abstractmethod
    def obey(self, m: Module) -> None:
        """Add the state "Obey" and its successors."""

    def say(self, m: Module, answer: Answer) -> None:
        """Answer, and listen again."""
        m.d.sync += self._answer.eq(answer)
        m.next = "Answer"

    def elaborate(self, platform):
        m = Module()
        byte = self.received.payload
        with m.FSM():
            with m.State("Listen"):
                m.d.comb += self.received.ready.eq(~self.stopping)
                with m.If(self.stopping):
                    m.d.sync += [self.stopping.eq(0), *self.forget()]
                    self.say(m, Answer.STOPPED)
                with m.Elif(self.received.valid):
                    m.d.sync += self.order.eq(byte)
                    with m.If(byte[-1]):
                        m.next = "Obey"
                    with m.Else():
                        m.d.sync += self.argument.eq(Cat(byte[:_LOW_BITS], self.argument))

            self.obey(m)

            with m.State("Answer"):
                m.d.comb += [self.sent.valid.eq(1), self.sent.payload.eq(self._answer)]
                with m.If(self.sent.ready):
                    m.d.sync += self.argument.eq(0)
                    m.next = "Listen"

        with m.If(self.stop):
            m.d.sync += self.stopping.eq(1)
        return m

    @contextmanager
    def send(self, m: Module, number: Value) -> Iterator[None]:
        """Add the states "Look" and "Write", which send a number of up to 16 bits as a token; the
        body of the ``with`` is executed after its last byte."""
        # Next byte: byte 0, with the lowest bits, is sent last.
        place = Signal(range(3))
        with m.State("Look"):
            m.d.sync += place.eq(Mux(
                number[_LOW_BITS + _HIGH_BITS:].any(), 2, number[_LOW_BITS:].any()))
            m.next = "Write"

        with m.State("Write"):
            byte = self.sent.payload
            m.d.comb += [self.sent.valid.eq(1), byte.eq(number[:_LOW_BITS])]
            for index in (1, 2):
                low = _LOW_BITS + _HIGH_BITS * (index - 1)
                with m.If(place == index):
                    m.d.comb += byte.eq(_HIGH << _HIGH_BITS | number[low:low + _HIGH_BITS])
            with m.If(self.sent.ready):
                m.d.sync += place.eq(place - 1)
                with m.If(place == 0):
                    yield


class SerialProtocol(OrderProtocol):
    """Obeys orders with a core, requesting one token at a time so that it can stop after any.

    Parameters
    ----------
    vocab
        Maximum vocabulary of the core.
    sampled
        Whether the core can sample tokens; otherwise BETA and SEED are refused.
    loads
        Whether the model is loaded; otherwise PLACE, WRITE, BOOT and WRITTEN are refused.

    Members
    -------
    prompts : ``Out(stream.Signature(StructLayout))``
        Tokens to the core: ``token``, ``start``, ``predict``. Set its limit to 1.
    tokens : ``In(stream.Signature(StructLayout))``
        Tokens of the core: ``token``, ``last``.
    beta, seed : ``Out``, with ``sampled``
        Controls of the core.
    loading : ``Out(1)``, with ``loads``
        An image is being written: keep the core in reset.
    idle : ``In(1)``, with ``loads``
        All outstanding reads of the memory have completed.
    status : ``In(ImageStatus)``, with ``loads``
        Status of the image.
    writes : ``Out(stream.Signature(StructLayout))``, with ``loads``
        Write ``word`` to ``address``.
    """

    def __init__(self, vocab: int, *, sampled: bool = True, loads: bool = False) -> None:
        check_core(vocab, 1)
        self.vocab, self.sampled, self.loads = vocab, sampled, loads
        self.token_bits = (vocab - 1).bit_length()
        super().__init__(_ARGUMENT_BITS, {
            "prompts": Out(stream.Signature(StructLayout(
                {"token": self.token_bits, "start": 1, "predict": 1}))),
            "tokens": In(stream.Signature(StructLayout({"token": self.token_bits, "last": 1}))),
            **({"beta": Out(BETA_BITS), "seed": Out(SEED_BITS, init=1)} if sampled else {}),
            **({"loading": Out(1), "idle": In(1), "status": In(ImageStatus),
                "writes": Out(stream.Signature(StructLayout(
                    {"address": _ARGUMENT_BITS, "word": 16})))} if loads else {}),
        })

    def obey(self, m):
        argument, order = self.argument, self.order
        count, left = Signal(COUNT_BITS, init=1), Signal(COUNT_BITS)
        token = Signal(16 if self.loads else self.token_bits)
        fresh, asked = Signal(init=1), Signal()
        with m.State("Obey"):
            self.say(m, Answer.DONE)
            with m.Switch(order):
                with m.Case(Order.RESTART):
                    m.d.sync += fresh.eq(1)
                with m.Case(Order.FEED, Order.ASK):
                    m.d.sync += [
                        token.eq(argument), asked.eq(order == Order.ASK), left.eq(count)]
                    can_run = argument < self.vocab
                    if self.loads:
                        can_run &= self.status == ImageStatus.RUNNING
                    with m.If(can_run):
                        m.next = "Feed"
                    with m.Else():
                        self.say(m, Answer.REFUSED)
                with m.Case(Order.COUNT):
                    with m.If(argument[:COUNT_BITS].any()):
                        m.d.sync += count.eq(argument)
                    with m.Else():
                        self.say(m, Answer.REFUSED)
                if self.sampled:
                    with m.Case(Order.BETA):
                        m.d.sync += self.beta.eq(argument)
                    with m.Case(Order.SEED):
                        m.d.sync += self.seed.eq(argument)
                if self.loads:
                    with m.Case(Order.PLACE):
                        m.d.sync += [self.writes.payload.address.eq(argument),
                                     self.loading.eq(1), fresh.eq(1)]
                    with m.Case(Order.WRITE):
                        with m.If(self.loading):
                            m.next = "Store"
                        with m.Else():
                            self.say(m, Answer.REFUSED)
                    with m.Case(Order.BOOT):
                        m.next = "Drain"
                    with m.Case(Order.WRITTEN):
                        words = self.writes.payload.address
                        m.d.sync += [token.eq(words // (BLOCK_BYTES // 2)), left.eq(0)]
                        m.next = "Look"
                with m.Default():
                    self.say(m, Answer.REFUSED)

        if self.loads:
            self._load(m)

        with m.State("Feed"):
            prompt = self.prompts.payload
            m.d.comb += [
                self.prompts.valid.eq(1), prompt.token.eq(token), prompt.start.eq(fresh),
                prompt.predict.eq(asked)]
            with m.If(self.prompts.ready):
                m.d.sync += fresh.eq(0)
                self.say(m, Answer.DONE)
                with m.If(asked):
                    m.next = "Await"

        with m.State("Await"):
            m.d.comb += self.tokens.ready.eq(1)
            with m.If(self.tokens.valid):
                m.d.sync += [token.eq(self.tokens.payload.token), left.eq(left - 1)]
                m.next = "Look"

        # A token is run as well, unless it is the last.
        with self.send(m, token):
            m.next = "Feed"
            with m.If(self.stopping):
                m.next = "Listen"
            with m.Elif(left == 0):
                self.say(m, Answer.DONE)

    def _load(self, m):
        """Write the two words of an argument; wait for the status of an image."""
        second = Signal()
        writes, argument = self.writes, self.argument
        m.d.comb += writes.payload.word.eq(Mux(second, argument[16:], argument[:16]))
        with m.State("Store"):
            m.d.comb += writes.valid.eq(1)
            with m.If(writes.ready):
                m.d.sync += [writes.payload.address.eq(writes.payload.address + 1),
                             second.eq(~second)]
                with m.If(second):
                    self.say(m, Answer.DONE)
        with m.State("Drain"), m.If(self.idle | ~self.loading):
            m.d.sync += [self.loading.eq(0), self.writes.payload.address.eq(0)]
            m.next = "Boot"
        with m.State("Boot"):
            with m.If(self.status == ImageStatus.RUNNING):
                self.say(m, Answer.DONE)
            with m.Elif(self.status != ImageStatus.LOADING):
                self.say(m, Answer.REFUSED)
