"""The line protocol, with a core that a test plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from sterna.hw.board.line_protocol import LineProtocol
from sterna.hw.board.line_settings import LineDefaults, check_core
from sterna.hw.board.line_texts import SIGN, LineTexts
from sterna.hw.board.token_letters import typed as letters
from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.testbench.amaranth import run_bench
from sterna.model.config import ModelConfig
from sterna.model.profile import C12

REFUSED = b"\r\n?" + SIGN
DEADLINE = 60_000
THREE = LineDefaults(tokens=3)


def core_params(vocab: int = 256, sequences: int = 1) -> CoreParams:
    return CoreParams(
        ModelConfig(d=8, layers=1, dff=8, vocab=vocab), C12, rows=1, cols=8, sequences=sequences)


@dataclass
class Session:
    """What came out: bytes shown, and tokens given to the core as (token, start, predict)."""

    shown: bytes = b""
    prompts: list[tuple[int, int, int]] = field(default_factory=list)
    settings: list[tuple[int, int]] = field(default_factory=list)   # beta, seed of each start

    @property
    def fed(self) -> bytes:
        """The tokens alone, which are bytes."""
        return bytes(self.tokens)

    @property
    def tokens(self) -> list[int]:
        """The tokens alone."""
        return [token for token, _, _ in self.prompts]


def play(
    typed: bytes, text: Sequence[int] = b"", *, vocab: int = 256, sampled: bool = True,
    defaults: LineDefaults = THREE, interrupt_after: int | None = None,
) -> Session:
    """Type, and let the core write ``text``; return when nothing has moved for a while.

    ``interrupt_after``: Ctrl-C comes after so many bytes shown.
    """
    dut = LineProtocol(core_params(vocab), defaults=defaults, sampled=sampled)
    session = Session()

    async def bench(ctx):
        to_type, answers, quiet, cycle = list(typed), list(text), 0, 0
        writes = False
        ctx.set(dut.prompts.ready, 1)
        while quiet < 300:
            cycle += 1
            assert cycle < DEADLINE
            quiet += 1
            # The terminal takes a byte now and then, as a serial line does.
            ctx.set(dut.shown.ready, cycle % 3 == 0)
            ctx.set(dut.typed.valid, bool(to_type))
            ctx.set(dut.typed.payload, to_type[0] if to_type else 0)
            ctx.set(dut.tokens.valid, writes)
            ctx.set(dut.tokens.payload.token, answers[0] if writes else 0)
            now = interrupt_after is not None and len(session.shown) >= interrupt_after
            ctx.set(dut.interrupt, now)
            if now:
                interrupt_after_done()
            shown = ctx.get(dut.shown.valid) and ctx.get(dut.shown.ready)
            if shown:
                session.shown += bytes([ctx.get(dut.shown.payload)])
            if to_type and ctx.get(dut.typed.ready):
                to_type.pop(0)
                quiet = 0
            if writes and ctx.get(dut.tokens.ready):
                answers.pop(0)
                writes, quiet = False, 0
            if ctx.get(dut.prompts.valid):
                quiet = 0
                prompt = dut.prompts.payload
                session.prompts.append(tuple(
                    ctx.get(each) for each in (prompt.token, prompt.start, prompt.predict)))
                if sampled and ctx.get(prompt.start):
                    session.settings.append((ctx.get(dut.beta), ctx.get(dut.seed)))
                if ctx.get(prompt.predict):
                    writes = True
            if shown:
                quiet = 0
            await ctx.tick()

    def interrupt_after_done():
        nonlocal interrupt_after
        interrupt_after = None

    run_bench(dut, bench)
    return session


def test_a_line_is_echoed_fed_and_answered():
    session = play(b"ab\r", b"xyz")
    assert session.shown == SIGN + b"abxyz" + SIGN
    # The second token the core wrote goes back as the first did; the third one is not run.
    assert session.prompts == [
        (ord("a"), 1, 0), (ord("b"), 0, 1), (ord("x"), 0, 1), (ord("y"), 0, 1)]


def test_the_next_line_begins_with_the_token_that_was_not_run():
    session = play(b"ab\rc\r", b"xyzuvw")
    assert session.fed == b"abxyzcuv"
    assert [start for _, start, _ in session.prompts] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert [predict for _, _, predict in session.prompts] == [0, 1, 1, 1, 0, 1, 1, 1]


def test_an_empty_line_goes_on_with_the_text():
    session = play(b"a\r\r", b"xyzuvw")
    assert session.shown == SIGN + b"axyz" + SIGN + b"uvw" + SIGN
    assert session.fed == b"axyzuv"


def test_an_empty_line_at_the_start_is_a_line_end():
    session = play(b"\r", b"xyz")
    assert session.prompts[0] == (10, 1, 1)
    assert session.shown == SIGN + b"xyz" + SIGN


def test_line_ends_are_fed_if_asked_for():
    session = play(b"/l 1\ra\r\r/l 0\rb\r", b"xyzuvwrst")
    assert session.fed == b"a\nxyz\nuvwbrs"


def test_a_line_end_of_the_text_returns_the_carriage():
    session = play(b"a\r", b"\nx\r")
    assert session.shown == SIGN + b"a\r\nx\r" + SIGN
    assert session.fed == b"a\nx"


def test_forgetting_starts_a_sequence():
    session = play(b"a\r/r\rb\r", b"xyzuvw")
    assert session.fed == b"axybuv"
    assert [start for _, start, _ in session.prompts] == [1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(("line", "shown"), [
    (b"abc\x08\x7fd\r", b"abc\b \b\b \bd"),
    (b"\x08ad\r", b"ad"),
    (b"/\x08ad\r", b"/\b \bad"),
])
def test_backspace_takes_a_byte_back(line, shown):
    session = play(line, b"xyz")
    assert session.shown == SIGN + shown + b"xyz" + SIGN
    assert session.fed == b"adxy"


@pytest.mark.parametrize("ends", [b"\r", b"\n", b"\r\n"])
def test_enter_is_return_line_feed_or_both(ends):
    session = play(b"a" + ends + b"b" + ends, b"xyzuvw")
    assert session.fed == b"axyzbuv"


def test_number_of_tokens_is_set_in_hex():
    session = play(b"/n 1A\ra\r", bytes(range(65, 65 + 26)))
    assert session.fed == b"a" + bytes(range(65, 65 + 25))
    assert session.shown.endswith(bytes([65 + 25]) + SIGN)


def test_no_tokens_are_written_with_a_limit_of_zero():
    session = play(b"/n 0\rab\r/n1\rc\r", b"x")
    assert session.prompts == [
        (ord("a"), 1, 0), (ord("b"), 0, 0), (ord("c"), 0, 1)]
    assert session.shown.count(b"x") == 1


def test_beta_and_seed_go_to_the_core():
    session = play(b"a\r/b 2AbCd\r/s deadBEEF\r/r\rb\r", b"xyzuvw",
                   defaults=LineDefaults(tokens=3, beta=1477, seed=5))
    assert session.settings == [(1477, 5), (0x2ABCD, 0xDEADBEEF)]


@pytest.mark.parametrize("line", [
    b"/", b"/x", b"/n", b"/n ", b"/n g", b"/n 1 2:", b"/n 12@", b"/n 1`", b"/n 1G", b"/ r",
    b"/n \xb1", b"/n 1\xe1"])
def test_what_is_no_command_is_refused_and_changes_nothing(line):
    session = play(line + b"\ra\r", b"xyz")
    assert session.shown == SIGN + line + REFUSED + b"axyz" + SIGN
    assert session.fed == b"axy"


def test_commands_of_the_sampler_are_refused_without_one():
    session = play(b"/b 1\r/s 1\r", sampled=False)
    assert session.shown == SIGN + b"/b 1" + REFUSED + b"/s 1" + REFUSED


def test_two_slashes_begin_a_text_with_one():
    session = play(b"//r\r", b"xyz")
    assert session.fed == b"/rxy"


@pytest.mark.parametrize("sampled", [True, False])
def test_help_names_every_command(sampled):
    text = LineTexts(sampled).help_text
    assert play(b"/?\r", sampled=sampled).shown == SIGN + b"/?" + text + SIGN
    names = b"rnlbs" if sampled else b"rnl"
    assert all(b"/" + bytes([name]) in text for name in names)
    assert text.count(b"/") >= len(names)


def test_a_full_line_rings_and_keeps_what_it_has():
    line = bytes(65 + i % 26 for i in range(255))
    session = play(line + b"!?\r", b"xyz")
    assert session.shown == SIGN + line + b"\a\axyz" + SIGN
    assert session.fed == line + b"xy"


def test_bytes_that_are_no_tokens_are_ignored():
    session = play(b"\x00a\x1b\xc3\x9f\tb\r", b"xyz", vocab=128)
    assert session.shown == SIGN + b"a\tbxyz" + SIGN
    assert session.fed == b"a\tbxy"
    assert play("ß\r".encode(), b"xyz").fed == "ßxy".encode()
    assert play("ß\r".encode(), b"xyz", vocab=0xC3).fed == b"\x9fxy"


def test_ctrl_c_stops_the_text_after_a_token():
    session = play(b"/n 10\rab\rc\r", b"xyzuvwrstabcdefg" * 2,
                   interrupt_after=len(SIGN + b"/n 10" + SIGN + b"abxyz"))
    assert session.shown.startswith(SIGN + b"/n 10" + SIGN + b"abxyz" + b"u" + SIGN + b"c")
    # The text goes on from there.
    assert session.fed.startswith(b"abxyzuc")


def test_ctrl_c_drops_a_line():
    session = play(b"abc", interrupt_after=len(SIGN) + 3)
    assert session.shown == SIGN + b"abc" + SIGN
    assert session.fed == b""


@pytest.mark.parametrize("vocab", [127, 65537])
def test_vocabulary_must_be_ascii_at_least_and_have_letters(vocab):
    with pytest.raises(ValueError, match=f"from 128 .ASCII. to 65536, got {vocab}"):
        check_core(core_params(vocab))


def test_two_sequences_are_refused():
    with pytest.raises(ValueError, match="has one sequence, the core 2"):
        check_core(core_params(sequences=2))


@pytest.mark.parametrize(("settings", "name"), [
    ({"tokens": 1 << 16}, "tokens"), ({"beta": 1 << 18}, "beta"), ({"seed": -1}, "seed")])
def test_defaults_must_fit(settings, name):
    with pytest.raises(ValueError, match=name):
        LineDefaults(**settings)


# More tokens than bytes -----------------------------------------------------------------


@pytest.mark.parametrize("vocab", [257, 300, 1024, 65536])
def test_tokens_above_bytes_are_typed_and_shown_as_letters(vocab):
    said, written = [vocab - 1, 0, 10, 256], [10, vocab - 1, 255]
    session = play(letters(said, vocab) + b"\r", written, vocab=vocab)
    assert session.shown == SIGN + letters(said, vocab) + letters(written, vocab) + SIGN
    assert session.prompts == [
        (vocab - 1, 1, 0), (0, 0, 0), (10, 0, 0), (256, 0, 1), (10, 0, 1), (vocab - 1, 0, 1)]


def test_lines_of_letters_go_on_and_are_edited_as_lines_of_bytes():
    typed = letters([299], 300) + b"0\x7f\r\r/l 1\r" + letters([5], 300) + b"\r/r\r\r"
    session = play(typed, [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13], vocab=300)
    # Lines of token 299; of nothing; with line ends token 5; and of nothing at a start.
    assert session.tokens == [299, 1, 2, 3, 4, 5, 6, 5, 10, 7, 8, 10, 11, 12]
    assert [start for _, start, _ in session.prompts] == [1] + [0] * 10 + [1, 0, 0]


@pytest.mark.parametrize(("line", "fed"), [
    (letters([300], 300), [10]), (letters([5], 300) + b"0", [5, 10]), (b"oo", [10]),
    (letters([511, 7], 300), [10, 7])])
def test_what_is_no_whole_token_counts_as_a_line_end(line, fed):
    assert play(line + b"\r" + letters([9], 300) + b"\r", [1, 2, 3] * 2, vocab=300).tokens == [
        *fed, 1, 2, 3, 9, 1, 2]


def test_help_of_letters_fits_the_memory():
    for sampled in (True, False):
        text = LineTexts(sampled, are_letters=True).help_text
        assert play(b"/?\r", sampled=sampled, vocab=300).shown == SIGN + b"/?" + text + SIGN


def test_ctrl_c_stops_letters_after_a_whole_token():
    session = play(letters([7], 300) + b"\r", [260, 261, 262], vocab=300,
                   interrupt_after=len(SIGN) + 3 + 4)
    assert session.shown == SIGN + letters([7, 260, 261], 300) + SIGN
