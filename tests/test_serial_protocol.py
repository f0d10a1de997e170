"""The protocol of a board: its gateware, with a core that a test plays, and the host's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from sterna.hw.board.conversation import Conversation, ConversationError
from sterna.hw.board.serial_protocol import (
    QUEUE_BYTES,
    Answer,
    Order,
    SerialProtocol,
    check_core,
    order_bytes,
)
from sterna.hw.core.image.reader import ImageStatus
from sterna.hw.testbench.amaranth import run_bench

DONE, STOPPED, REFUSED = (bytes([each]) for each in Answer)
RESTART = order_bytes(Order.RESTART)
DEADLINE = 60_000


def fed(*tokens: int) -> bytes:
    return b"".join(order_bytes(Order.FEED, token) for token in tokens)


def asked(token: int, count: int = 3) -> bytes:
    return order_bytes(Order.COUNT, count) + order_bytes(Order.ASK, token)


@dataclass
class Session:
    """What came out: bytes sent, and tokens given to the core as (token, start, predict)."""

    sent: bytes = b""
    prompts: list[tuple[int, int, int]] = field(default_factory=list)
    settings: list[tuple[int, int]] = field(default_factory=list)   # beta, seed of each start

    @property
    def tokens(self) -> list[int]:
        """The tokens alone."""
        return [token for token, _, _ in self.prompts]


def play(
    orders: bytes, text: Sequence[int] = b"", *, vocab: int = 256, sampled: bool = True,
    stop_after: int | None = None,
) -> Session:
    """Send orders, and let the core write ``text``; return when nothing has moved for a while.

    ``stop_after``: STOP comes after so many bytes sent.
    """
    dut = SerialProtocol(vocab, sampled=sampled)
    session = Session()

    async def bench(ctx):
        to_send, answers, quiet, cycle, stop_at = list(orders), list(text), 0, 0, stop_after
        writes = False
        while quiet < 300:
            cycle += 1
            assert cycle < DEADLINE
            quiet += 1
            # The line takes a byte now and then, and the core a token.
            ctx.set(dut.sent.ready, cycle % 3 == 0)
            ctx.set(dut.prompts.ready, cycle % 5 != 0)
            ctx.set(dut.received.valid, bool(to_send))
            ctx.set(dut.received.payload, to_send[0] if to_send else 0)
            ctx.set(dut.tokens.valid, writes)
            ctx.set(dut.tokens.payload.token, answers[0] if writes else 0)
            stops = stop_at is not None and len(session.sent) >= stop_at
            ctx.set(dut.stop, stops)
            if stops:
                stop_at, to_send = None, []
            if ctx.get(dut.sent.valid) and ctx.get(dut.sent.ready):
                session.sent += bytes([ctx.get(dut.sent.payload)])
                quiet = 0
            if to_send and ctx.get(dut.received.ready) and not stops:
                to_send.pop(0)
                quiet = 0
            if writes and ctx.get(dut.tokens.ready):
                answers.pop(0)
                writes, quiet = False, 0
            if ctx.get(dut.prompts.valid) and ctx.get(dut.prompts.ready):
                quiet = 0
                prompt = dut.prompts.payload
                session.prompts.append(tuple(
                    ctx.get(each) for each in (prompt.token, prompt.start, prompt.predict)))
                if sampled and ctx.get(prompt.start):
                    session.settings.append((ctx.get(dut.beta), ctx.get(dut.seed)))
                writes = writes or bool(ctx.get(prompt.predict))
            await ctx.tick()

    run_bench(dut, bench)
    return session


@pytest.mark.parametrize(("orders", "text", "options", "sent", "tokens"), [
    pytest.param(orders, text, options, STOPPED + sent, tokens, id=name)
    for name, orders, text, options, sent, tokens in (
        ("tokens are fed and those written go back but for the last",
         fed(97) + asked(98), b"xyz", {}, 2 * DONE + b"xyz" + DONE, [97, 98, *b"xy"]),
        ("the number of tokens may have sixteen bits", asked(1, 300), [7] * 300, {},
         DONE + b"\x07" * 300 + DONE, [1] + [7] * 299),
        ("a count of no tokens is refused and changes nothing",
         asked(1, 2) + order_bytes(Order.COUNT, 0) + order_bytes(Order.ASK, 2), b"xyzu", {},
         DONE + b"xy" + DONE + REFUSED + b"zu" + DONE, [1, *b"x", 2, *b"z"]),
        *((f"{order.name} is refused without a sampler", order_bytes(order, 1), b"",
           {"sampled": False}, REFUSED, []) for order in (Order.BETA, Order.SEED)),
        ("what is no order is refused and drops its argument",
         b"\x01\xff" + fed(2), b"", {}, REFUSED + DONE, [2]),
        *((f"token {token} of {vocab} is refused", fed(token, vocab - 1), b"", {"vocab": vocab},
           REFUSED + DONE, [vocab - 1])
          for vocab, token in (
              (128, 128), (300, 300), (300, 65535), (300, 65541), (65536, 65536))),
        *((f"token {written} of {vocab} is written as {digits}", asked(vocab - 1, 1), [written],
           {"vocab": vocab}, DONE + bytes.fromhex(digits) + DONE, [vocab - 1])
          for vocab, written, digits in (
              (128, 127, "7f"), (256, 127, "7f"), (256, 128, "c1 00"), (300, 299, "c2 2b"),
              (65536, 5, "05"), (65536, 8191, "ff 7f"), (65536, 8192, "c1 c0 00"),
              (65536, 65535, "c7 ff 7f"))),
        ("stop ends a text after a whole token", asked(1, 100), [300, 301, 302, 303, 304],
         {"vocab": 1000, "stop_after": 2 + 3},
         DONE + bytes.fromhex("c2 2c c2 2d") + STOPPED, [1, 300]),
        ("stop is answered by an idle board", b"", b"", {"stop_after": 1}, STOPPED, []),
        ("stop drops half an order", b"\x01" * 3, b"", {"stop_after": 1}, STOPPED, []),
    )])
def test_orders_are_obeyed(orders, text, options, sent, tokens):
    session = play(orders, text, **options)
    assert (session.sent, session.tokens) == (sent, tokens)


def test_a_restart_begins_a_sequence_with_beta_and_seed():
    assert play(fed(97) + asked(98), b"xyz").prompts == [
        (97, 1, 0), (98, 0, 1), (ord("x"), 0, 1), (ord("y"), 0, 1)]
    orders = order_bytes(Order.BETA, 0x2ABCD) + order_bytes(Order.SEED, 0xDEADBEEF) + RESTART
    session = play(asked(1) + orders + asked(2), b"xyzuvw")
    assert session.tokens == [1, *b"xy", 2, *b"uv"]
    assert [start for _, start, _ in session.prompts] == [1, 0, 0, 1, 0, 0]
    assert session.settings == [(0, 1), (0x2ABCD, 0xDEADBEEF)]


def test_an_image_is_written_word_by_word_and_read_when_all_is_there():
    """Nothing is run meanwhile, and a refused image is told."""
    dut = SerialProtocol(256, loads=True)
    orders = [order_bytes(Order.WRITE, 1), order_bytes(Order.PLACE, 0x12345), *(
        order_bytes(Order.WRITE, word) for word in (0, 0xFEDC_BA98)), fed(5),
        order_bytes(Order.WRITTEN), order_bytes(Order.BOOT), fed(6), order_bytes(Order.WRITTEN),
        order_bytes(Order.BOOT)]
    answers, written = b"", []

    async def bench(ctx):
        nonlocal answers
        statuses = [ImageStatus.RUNNING, ImageStatus.DAMAGED]
        ctx.set(dut.sent.ready, 1)
        ctx.set(dut.prompts.ready, 1)
        to_send, cycle, boots = list(b"".join(orders)), 0, 0
        while cycle < 600:
            cycle += 1
            ctx.set(dut.idle, cycle % 50 == 0)
            ctx.set(dut.writes.ready, cycle % 3 == 0)
            if ctx.get(dut.loading):
                ctx.set(dut.status, ImageStatus.LOADING)
                boots = 0
            else:
                boots += 1
                if boots == 20 and statuses:
                    ctx.set(dut.status, statuses.pop(0))
            ctx.set(dut.received.valid, bool(to_send))
            ctx.set(dut.received.payload, to_send[0] if to_send else 0)
            if to_send and ctx.get(dut.received.ready):
                to_send.pop(0)
            if ctx.get(dut.sent.valid):
                answers += bytes([ctx.get(dut.sent.payload)])
            if ctx.get(dut.writes.valid) and ctx.get(dut.writes.ready):
                written.append((ctx.get(dut.writes.payload.address),
                                ctx.get(dut.writes.payload.word)))
            await ctx.tick()

    run_bench(dut, bench)
    assert written == [(0x12345, 0), (0x12346, 0), (0x12347, 0xBA98), (0x12348, 0xFEDC)]
    # The first write has no place yet, and the first token no model; blocks are of 512 words.
    assert answers == (STOPPED + REFUSED + 3 * DONE + REFUSED + b"\xc1\x11" + DONE + DONE + DONE
                       + b"\0" + DONE + DONE)
    assert 0x12349 >> 9 == 1 << 7 | 0x11


@pytest.mark.parametrize(("options", "message"), [
    ((127, 1), "from 128 .ASCII. to 65536, got 127"),
    ((65537, 1), "from 128 .ASCII. to 65536, got 65537"),
    ((256, 2), "has one sequence, the core 2")])
def test_a_core_that_one_cannot_talk_to_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        check_core(*options)


class Script:
    """A port that answers what a test says, whatever is written."""

    def __init__(self, answers: bytes) -> None:
        self.answers = answers
        self.written = b""

    def write(self, data: bytes) -> int:
        self.written += data
        return len(data)

    def read(self, size: int = 1) -> bytes:
        taken, self.answers = self.answers[:size], self.answers[size:]
        return taken


def test_meeting_skips_what_was_on_its_way_and_tells_of_silence():
    port = Script(b"old text" + DONE + STOPPED + STOPPED + DONE + b"left")
    Conversation(port).meet()
    assert port.answers == b"left"
    port = Script(b"")
    with pytest.raises(ConversationError, match=r"does not answer: .*right port and speed"):
        Conversation(port).meet()
    assert port.written == 2 * (order_bytes(Order.STOP) + RESTART)


def test_lines_go_on_with_the_token_that_was_not_run():
    port = Script(2 * DONE + b"xy" + DONE + 4 * DONE + b"zw" + DONE + DONE + b"uv" + DONE)
    conversation = Conversation(port)
    assert list(conversation.say(b"ab", 2)) == [*b"xy"]
    conversation.set_line_ends(True)
    assert list(conversation.say(b"cd", 2)) == [*b"zw"]
    conversation.set_line_ends(False)
    assert list(conversation.say(b"", 2)) == [*b"uv"]
    assert port.written == (
        order_bytes(Order.COUNT, 2) + fed(97) + order_bytes(Order.ASK, 98)
        + order_bytes(Order.COUNT, 2) + fed(*b"ycd") + order_bytes(Order.ASK, 10)
        + order_bytes(Order.COUNT, 2) + order_bytes(Order.ASK, ord("w")))


def test_a_line_of_nothing_at_the_start_is_a_line_end():
    port = Script(DONE + b"x" + DONE)
    assert list(Conversation(port).say(b"", 1)) == [ord("x")]
    assert port.written.endswith(order_bytes(Order.ASK, 10))


def test_a_text_that_was_stopped_goes_on_after_its_last_token():
    port = Script(DONE + bytes.fromhex("05 c2 2c 07") + STOPPED)
    conversation = Conversation(port)
    text = conversation.say([1], 100)
    assert next(text) == 5
    assert conversation.stop() == [300, 7]
    port.answers, port.written = DONE + DONE + b"\x08" + DONE, b""
    assert list(conversation.say([2], 1)) == [8]
    assert fed(7) in port.written


def test_a_long_line_never_overruns_the_queue_of_the_board():
    port = Script(DONE * 301 + b"\x01" + DONE)
    sizes = []
    port.write = lambda data: sizes.append(len(data))
    list(Conversation(port).say([60000] * 301, 1))
    assert max(sizes) <= QUEUE_BYTES
    assert port.answers == b""


def test_a_core_without_sampling_is_no_error_if_greedy():
    Conversation(Script(REFUSED * 2)).set_sampling(0, 1)
    with pytest.raises(ConversationError, match="has no sampling"):
        Conversation(Script(REFUSED * 2)).set_sampling(5, 1)
    with pytest.raises(ConversationError, match="does not do SEED 1: it says STOPPED"):
        Conversation(Script(DONE + STOPPED)).set_sampling(5, 1)


@pytest.mark.parametrize(("answers", "message"), [
    (REFUSED, "does not do COUNT 1: it says REFUSED"),
    (DONE + REFUSED, "does not do FEED 5: it says REFUSED"),
    (DONE + b"\x07", "does not do FEED 5: it says token 7"),
    (2 * DONE + REFUSED, "should have written a token, it says REFUSED"),
    (2 * DONE + b"\x07\x07", "does not do ASK 6: it says token 7"),
    (2 * DONE + b"\x9f", "should not have sent 0x9f"),
    (DONE, "stopped answering"),
])
def test_a_board_that_answers_something_else_is_told(answers, message):
    with pytest.raises(ConversationError, match=message):
        list(Conversation(Script(answers)).say([5, 6], 1))
