"""The host's end of the line protocol: whatever a board answers, it is told."""

from __future__ import annotations

import pytest

from sterna.hw.board.conversation import Conversation, ConversationError, check_line
from sterna.hw.board.line_texts import SIGN
from sterna.hw.board.token_letters import token_of, typed


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


def test_a_board_that_is_silent_is_told():
    port = Script(b"")
    with pytest.raises(ConversationError, match=r"does not answer .*right port and speed"):
        Conversation(port).meet()
    assert port.written.count(b"\x03") == 2


def test_meeting_skips_what_was_on_its_way():
    refused = b"\r\n?" + SIGN
    port = Script(b"old text" + SIGN + SIGN + b"/" + refused + b"/l 0" + SIGN)
    Conversation(port).meet()
    assert port.answers == b""
    assert port.written == b"\x03/\r/l 0\r"


def test_a_wrong_echo_is_told():
    with pytest.raises(ConversationError, match=r"should have sent b'/r', it sent b'/x'"):
        Conversation(Script(b"/x" + SIGN)).forget()


def test_a_core_without_sampling_is_no_error_if_greedy():
    answers = b"/b 0\r\n?" + SIGN
    Conversation(Script(answers)).set_sampling(0, 1)
    with pytest.raises(ConversationError, match="has no sampling"):
        Conversation(Script(answers.replace(b"0", b"5"))).set_sampling(5, 1)


def test_a_refused_command_is_told():
    with pytest.raises(ConversationError, match="does not know the command /r"):
        Conversation(Script(b"/r\r\n?" + SIGN)).forget()


@pytest.mark.parametrize("text", [b"a\rb", b"\r", b"\n", b"\r\r\n\n", b"a\n", b"plain"])
def test_carriage_returns_of_the_text_are_told_from_those_of_the_line_ends(text):
    shown = b"".join(b"\r\n" if byte == 10 else bytes([byte]) for byte in text)
    echo = f"/n {len(text):x}".encode() + SIGN + b"x"
    port = Script(echo + shown + SIGN)
    assert bytes(Conversation(port).say(b"x", len(text))) == text
    assert port.answers == b""


@pytest.mark.parametrize(("text", "vocab", "message"), [
    (b"ab\nc", 256, "no control characters, got 0x0a at byte 2"),
    (b"\x7f", 256, "got 0x7f at byte 0"),
    ("aß".encode(), 128, "knows the bytes up to 127, got 195 at byte 1"),
])
def test_lines_that_cannot_be_typed_are_refused(text, vocab, message):
    with pytest.raises(ValueError, match=message):
        check_line(text, vocab)
    check_line("tab\t and ß".encode(), 256)


@pytest.mark.parametrize("vocab", [300, 65536])
def test_tokens_of_letters_are_typed_and_read(vocab):
    tokens = [0, 10, 255, 256, vocab - 1]
    shown = typed(tokens, vocab)
    assert [token_of(shown[at:at + 3]) for at in range(0, len(shown), 3)] == tokens
    assert all(0x30 <= letter < 0x70 for letter in shown)
    echo = b"/n 5" + SIGN + typed([1, 2], vocab)[:6]
    port = Script(echo + shown + SIGN)
    assert list(Conversation(port, vocab).say([1, 2], 5)) == tokens
    assert port.answers == b""


def test_a_token_that_the_model_has_not_is_told():
    port = Script(b"/n 1" + SIGN + b"001" + b"o00" + SIGN)
    with pytest.raises(ConversationError, match="one of 300 tokens, it sent b'o00'"):
        list(Conversation(port, 300).say([1], 1))


def test_a_long_line_of_tokens_is_typed_in_parts_of_whole_tokens():
    echo = typed([257] * 84, 300)
    parts = [echo[at:at + 8] for at in range(0, len(echo), 8)]
    port = Script(b"/n 0" + SIGN + b"".join(parts) + SIGN + b"/n 1" + SIGN
                  + typed([257] * 6, 300) + typed([299], 300) + SIGN)
    assert list(Conversation(port, 300).say([257] * 90, 1)) == [299]
    assert port.answers == b""
