"""The registers of the line protocol."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Signal

from sterna.hw.board.line_settings import COUNT_BITS, LineDefaults
from sterna.hw.board.line_texts import LINE_BYTES
from sterna.hw.board.token_letters import LETTER_BITS, LETTERS, MAX_BYTES_VOCAB
from sterna.hw.units.sampler_params import BETA_BITS, SEED_BITS

__all__ = ["LineState"]

_BACKSPACE, _TAB, _LINE_FEED, _RETURN, _DELETE = 0x08, 0x09, 0x0A, 0x0D, 0x7F

_SIGNS = "/ ?rnlbs"
"""What commands are made of, besides numbers."""

_STEPS = 3
"""Cycles from a new address to all that is known of it: memory, byte, what it is."""


class LineState:
    """What the line protocol keeps, besides the line.

    Parameters
    ----------
    token_bits
        Bits of a token of the core.
    defaults
        Settings after a reset.
    """

    def __init__(self, token_bits: int, defaults: LineDefaults) -> None:
        self.length = Signal(range(LINE_BYTES))
        self.address = Signal(range(2 * LINE_BYTES))
        # The byte there, and what it is. All of it is known once the address is settled.
        self.byte = Signal(8, reset_less=True)
        self.is_zero = Signal()
        self.is_figure = Signal()
        self.is_letter = Signal()
        self.is_sign = {sign: Signal(name=f"is_{ord(sign):02x}") for sign in _SIGNS}
        # Whether the address is at the end of the line, or at its last byte.
        self.at_end = Signal()
        self.at_last = Signal()
        self.settled = Signal()
        self.moves = Signal()
        self.stop = Signal()
        # A typed byte, and what it is, known two cycles after it was taken.
        self.key = Signal(8)
        self.has_key = Signal()
        self.is_known = Signal()
        self.ends_line = Signal()
        self.erases = Signal()
        self.is_text = Signal()
        self.is_empty = Signal()
        self.has_place = Signal()
        self.is_command = Signal()
        # The settings.
        self.count = Signal(COUNT_BITS, init=defaults.tokens)
        self.feeds_line_ends = Signal()
        self.beta = Signal(BETA_BITS, init=defaults.beta)
        self.seed = Signal(SEED_BITS, init=defaults.seed)
        # A command that sets one: which, whether its number has a digit and was checked.
        self.chosen = Signal(2)
        self.has_digit = Signal()
        self.is_checked = Signal()
        # What is to follow the line: a line end, and so many tokens.
        self.line_end = Signal()
        self.left = Signal(COUNT_BITS)
        self.none_left = Signal()
        self.one_left = Signal()
        self.is_final = Signal()
        # Of a token of several letters: which is next, and those before it.
        self.place = Signal(range(LETTERS))
        self.letters = Signal((LETTERS - 1) * LETTER_BITS)
        # The token written last, which the core has not run; whether a sequence begins.
        self.pending = Signal(token_bits)
        self.has_pending = Signal()
        self.fresh = Signal(init=1)

    def look(self, m, data):
        """Take what is read from the memory, a step in each cycle, for the sake of the clock."""
        steps = Signal(_STEPS)
        byte = self.byte
        m.d.sync += [
            steps.eq(Mux(self.moves, 0, Cat(1, steps[:-1]))),
            byte.eq(data),
            self.is_zero.eq(byte == 0),
            *(found.eq(byte == ord(sign)) for sign, found in self.is_sign.items()),
            self.is_figure.eq((byte[4:] == 3) & (byte[:4] < 10)),
            # A to F and a to f are 0x41 to 0x46 and 0x61 to 0x66.
            self.is_letter.eq((byte[6:] == 1) & (byte[3:5] == 0) & byte[:3].any()
                              & (byte[:3] != 7)),
            self.at_end.eq(self.address == self.length),
            self.at_last.eq(self.address + 1 == self.length),
            self.none_left.eq(self.left == 0),
            self.one_left.eq(self.left == 1),
        ]
        m.d.comb += self.settled.eq(steps[-1])

    def classify(self, m, vocab: int):
        """Find out what the typed byte is."""
        key = self.key
        after_return = Signal()
        is_line_feed, is_return = key == _LINE_FEED, key == _RETURN
        is_control = (key[5:] == 0) & (key != _TAB)
        is_foreign = key >= vocab if vocab < MAX_BYTES_VOCAB else Const(0)
        erases = (key == _BACKSPACE) | (key == _DELETE)
        m.d.sync += [
            self.is_known.eq(self.has_key),
            self.ends_line.eq(is_return | (is_line_feed & ~after_return)),
            self.erases.eq(erases),
            self.is_text.eq(~is_control & ~erases & ~is_foreign),
            self.is_empty.eq(self.length == 0),
            self.has_place.eq(self.length != LINE_BYTES - 1),
        ]
        with m.If(self.is_known & ~self.has_key):
            m.d.sync += after_return.eq(is_return)

    def go_to(self, m, place):
        """Read another byte."""
        m.d.comb += self.moves.eq(1)
        m.d.sync += self.address.eq(place)

    def show(self, m, text):
        """Send a text; then a line is awaited."""
        self.go_to(m, text)
        m.next = "Show"
