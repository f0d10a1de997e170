"""What a person at a serial terminal talks to: lines in, text out."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.board.line_settings import LineDefaults, check_core
from sterna.hw.board.line_state import LineState
from sterna.hw.board.line_texts import LINE_BYTES, LineTexts
from sterna.hw.board.token_letters import (
    FIRST_LETTER,
    LETTER_BITS,
    LETTERS,
    letters_per_token,
)
from sterna.hw.core.control import prompt_layout, token_layout
from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.parts.memory_attributes import BLOCK_RAM, NEVER_COLLIDES
from sterna.hw.units.sampler_params import BETA_BITS, SEED_BITS

__all__ = ["LineProtocol"]

_NUMBER_PLACE = 2
_BELL, _LINE_FEED, _RETURN = 0x07, 0x0A, 0x0D

_DEFAULTS = LineDefaults()


class LineProtocol(wiring.Component):
    r"""Runs a core from a serial terminal.

    Typed characters are echoed and kept; Enter gives them to the core as tokens, and what it
    writes is sent as it comes, with ``\r`` before each ``\n``. Then ``"\r\n> "`` says that
    a line is awaited. ``docs/board.md`` has the commands. The core is asked for one token at
    a time, so Ctrl-C can stop it after any.

    A line has up to 255 bytes; a bell answers those that have no place. Bytes outside the
    vocabulary and control characters are ignored.

    With more tokens than bytes have values, a line is of tokens, and so is what is sent
    (:mod:`sterna.hw.board.token_letters`), without the ``\r``. What is no whole token of the
    vocabulary counts as a line end.

    Parameters
    ----------
    params
        Geometry of the core, of one sequence.
    defaults
        Settings after a reset.
    sampled
        Whether the core can draw tokens; otherwise there are no commands for it.

    Members
    -------
    typed : ``In(stream.Signature(8))``
        Bytes received.
    interrupt : ``In(1)``
        Ctrl-C was received. What was typed before it should not come any more.
    shown : ``Out(stream.Signature(8))``
        Bytes to send.
    prompts : ``Out(stream.Signature(prompt_layout(params)))``
        Tokens to the core. Set its limit to 1.
    tokens : ``In(stream.Signature(token_layout(params)))``
        Tokens of the core.
    beta, seed : ``Out``, with ``sampled``
        Control of the core.

    Raises
    ------
    ValueError
        If there are several sequences, or the vocabulary is too small or too large.
    """

    def __init__(
        self, params: CoreParams, *, defaults: LineDefaults = _DEFAULTS,
        sampled: bool = True,
    ) -> None:
        check_core(params)
        self.params, self.defaults, self.sampled = params, defaults, sampled
        self._are_letters = letters_per_token(params.config.vocab) > 1
        self._texts = LineTexts(sampled, self._are_letters)
        super().__init__({
            "typed": In(stream.Signature(8)),
            "interrupt": In(1),
            "shown": Out(stream.Signature(8)),
            "prompts": Out(stream.Signature(prompt_layout(params))),
            "tokens": In(stream.Signature(token_layout(params))),
            **({"beta": Out(BETA_BITS), "seed": Out(SEED_BITS)} if sampled else {}),
        })

    def elaborate(self, platform):
        m = Module()
        state = LineState(self.params.token_bits, self.defaults)
        # The line, and behind it the texts.
        m.submodules.memory = store = memory.Memory(
            shape=8, depth=2 * LINE_BYTES, init=[*bytes(LINE_BYTES), *self._texts.memory],
            attrs=BLOCK_RAM | NEVER_COLLIDES)
        read = store.read_port()
        write = store.write_port()
        m.d.comb += [
            read.addr.eq(state.address), read.en.eq(1),
            write.addr.eq(state.length), write.data.eq(state.key),
        ]
        state.look(m, read.data)
        state.classify(m, self.params.config.vocab)
        with m.If(self.interrupt):
            m.d.sync += state.stop.eq(1)
        if self.sampled:
            m.d.comb += [self.beta.eq(state.beta), self.seed.eq(state.seed)]

        with m.FSM():
            with m.State("Start"):
                state.show(m, self._texts.sign)
            self._show(m, state)
            self._edit(m, state, write.en)
            self._obey(m, state)
            clears, shifts, digit = self._set(m, state)
            self._feed(m, state)
            self._write(m, state)

        for index, setting in enumerate(self._settings(state).values()):
            with m.If((state.chosen == index) & (clears | shifts)):
                m.d.sync += setting.eq(Mux(clears, 0, Cat(digit, setting)[:len(setting)]))
        return m

    def _show(self, m, state):
        """Send a text of the memory, up to its zero."""
        with m.State("Show"):
            m.d.comb += [
                self.shown.payload.eq(state.byte),
                self.shown.valid.eq(state.settled & ~state.is_zero)]
            with m.If(state.settled & state.is_zero):
                m.next = "Edit"
            with m.Elif(self.shown.valid & self.shown.ready):
                state.go_to(m, state.address + 1)

    def _edit(self, m, state, write):
        """Take typed bytes, up to the end of a line."""
        is_order = state.is_command & ~state.is_empty
        with m.State("Edit"):
            m.d.comb += self.typed.ready.eq(~state.has_key & ~state.is_known & ~state.stop)
            with m.If(self.typed.valid & self.typed.ready):
                m.d.sync += [state.key.eq(self.typed.payload), state.has_key.eq(1)]

            with m.If(state.stop):
                m.d.sync += [state.stop.eq(0), state.has_key.eq(0), state.length.eq(0)]
                state.show(m, self._texts.sign)
            with m.Elif(state.has_key & state.is_known):
                m.d.sync += state.has_key.eq(0)
                with m.If(state.ends_line):
                    m.d.sync += [
                        state.left.eq(state.count),
                        state.line_end.eq(
                            state.feeds_line_ends | (state.is_empty & ~state.has_pending))]
                    state.go_to(m, is_order)
                    m.next = "Feed"
                    with m.If(is_order):
                        m.next = "Obey"
                with m.Elif(state.erases & ~state.is_empty):
                    m.d.sync += state.length.eq(state.length - 1)
                    state.show(m, self._texts.erasure)
                with m.Elif(state.is_text):
                    m.d.comb += [
                        self.shown.valid.eq(1),
                        self.shown.payload.eq(Mux(state.has_place, state.key, _BELL))]
                    m.d.sync += state.has_key.eq(~self.shown.ready)
                    with m.If(self.shown.ready & state.has_place):
                        m.d.comb += write.eq(1)
                        m.d.sync += state.length.eq(state.length + 1)
                        with m.If(state.is_empty):
                            m.d.sync += state.is_command.eq(state.key == ord("/"))

    def _answer(self, m, state, text):
        """Show a text that answers a line."""
        m.d.sync += state.length.eq(0)
        state.show(m, text)

    def _settings(self, state):
        """Letters of the commands that have a number, and what they set."""
        settings = {"n": state.count, "l": state.feeds_line_ends}
        return settings | ({"b": state.beta, "s": state.seed} if self.sampled else {})

    def _obey(self, m, state):
        """Obey a line that begins with a slash; the address is that of its second byte."""
        with m.State("Obey"):
            m.d.sync += [state.is_checked.eq(0), state.has_digit.eq(0)]
            with m.If(state.settled & state.at_end):
                self._answer(m, state, self._texts.refusal)
            with m.Elif(state.settled):
                with m.If(state.is_sign["/"]):
                    m.next = "Feed"
                with m.Elif(state.is_sign["r"]):
                    m.d.sync += [state.fresh.eq(1), state.has_pending.eq(0)]
                    self._answer(m, state, self._texts.sign)
                with m.Elif(state.is_sign["?"]):
                    self._answer(m, state, self._texts.help)
                for index, name in enumerate(self._settings(state)):
                    with m.Elif(state.is_sign[name]):
                        m.d.sync += state.chosen.eq(index)
                        state.go_to(m, state.address + 1)
                        m.next = "Set"
                with m.Else():
                    self._answer(m, state, self._texts.refusal)

    def _set(self, m, state):
        """Set what a command sets; the address is that of its number.

        The number is read twice, for what is no number must change nothing. Return whether
        the setting is to be cleared, whether a digit is to be shifted in, and the digit.
        """
        byte, is_digit = state.byte, state.is_figure | state.is_letter
        digit = Signal(4)
        clears = Signal()
        shifts = Signal()
        m.d.comb += digit.eq(Mux(state.is_letter, byte[:3] + 9, byte[:4]))

        with m.State("Set"), m.If(state.settled):
            with m.If(state.at_end & (state.is_checked | ~state.has_digit)):
                self._answer(
                    m, state, Mux(state.is_checked, self._texts.sign, self._texts.refusal))
            with m.Elif(state.at_end):
                m.d.comb += clears.eq(1)
                m.d.sync += state.is_checked.eq(1)
                state.go_to(m, _NUMBER_PLACE)
            with m.Else():
                state.go_to(m, state.address + 1)
                with m.If(is_digit):
                    m.d.comb += shifts.eq(state.is_checked)
                    m.d.sync += state.has_digit.eq(1)
                with m.Elif(~state.is_sign[" "]):
                    self._answer(m, state, self._texts.refusal)

        return clears, shifts, digit

    def _feed(self, m, state):
        """Give tokens to the core: the last one it wrote, those of the line, a line end."""
        prompt = self.prompts.payload
        is_last = Mux(
            state.at_end, ~(state.has_pending & state.line_end),
            ~state.has_pending & ~state.line_end & state.at_last)
        with m.State("Feed"):
            token, is_whole = (
                self._gather(m, state) if self._are_letters else (state.byte, None))
            m.d.comb += [
                self.prompts.valid.eq(
                    state.settled if is_whole is None else state.settled & is_whole),
                prompt.start.eq(state.fresh),
                prompt.predict.eq(is_last & ~state.none_left),
                prompt.token.eq(Mux(
                    state.has_pending, state.pending,
                    Mux(state.at_end, _LINE_FEED, token))),
            ]
            with m.If(self.prompts.valid & self.prompts.ready):
                if self._are_letters:
                    m.d.sync += state.place.eq(0)
                m.d.sync += [state.fresh.eq(0), state.has_pending.eq(0)]
                with m.If(~state.has_pending & ~state.at_end):
                    state.go_to(m, state.address + 1)
                with m.If(is_last):
                    m.d.sync += [state.length.eq(0), state.line_end.eq(0)]
                    state.go_to(m, 0)
                    m.next = "Await"
                    with m.If(state.none_left):
                        state.show(m, self._texts.sign)

    def _gather(self, m, state):
        """Read the letters of a token; return it, and whether there is one to be given."""
        is_whole = state.has_pending | state.at_end | (state.place == LETTERS - 1)
        letters = Cat((state.byte - FIRST_LETTER)[:LETTER_BITS], state.letters)
        with m.If(state.settled & ~is_whole):
            m.d.sync += [state.letters.eq(letters), state.place.eq(state.place + 1)]
            state.go_to(m, state.address + 1)
        return Mux(letters < self.params.config.vocab, letters, _LINE_FEED), is_whole

    def _write(self, m, state):
        """Take a token of the core and send it."""
        with m.State("Await"):
            m.d.comb += self.tokens.ready.eq(1)
            with m.If(self.tokens.valid):
                m.d.sync += [
                    state.pending.eq(self.tokens.payload.token), state.has_pending.eq(1),
                    state.left.eq(state.left - 1), state.is_final.eq(state.one_left)]
                m.next = "Write"
                if not self._are_letters:
                    with m.If(self.tokens.payload.token == _LINE_FEED):
                        m.next = "Return"

        if not self._are_letters:
            with m.State("Return"):
                m.d.comb += [self.shown.valid.eq(1), self.shown.payload.eq(_RETURN)]
                with m.If(self.shown.ready):
                    m.next = "Write"

        with m.State("Write"):
            m.d.comb += [
                self.shown.valid.eq(1),
                self.shown.payload.eq(self._letter(state) if self._are_letters
                                      else state.pending)]
            is_sent = self.shown.ready
            if self._are_letters:
                is_last = state.place == LETTERS - 1
                with m.If(self.shown.ready):
                    m.d.sync += state.place.eq(Mux(is_last, 0, state.place + 1))
                is_sent = self.shown.ready & is_last
            with m.If(is_sent):
                m.next = "Feed"
                with m.If(state.stop | state.is_final):
                    m.d.sync += state.stop.eq(0)
                    state.show(m, self._texts.sign)

    def _letter(self, state):
        """The letter of the token written last that is next."""
        bits = Cat(state.pending, Const(0, LETTERS * LETTER_BITS - len(state.pending)))
        letters = [bits.word_select(LETTERS - 1 - place, LETTER_BITS) for place in range(LETTERS)]
        return FIRST_LETTER + Mux(
            state.place == 0, letters[0], Mux(state.place == 1, letters[1], letters[2]))
