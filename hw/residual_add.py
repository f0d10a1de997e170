"""The residual stream: the vector x of one sequence, and what each block adds to it."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.fixed_point import saturate
from sterna.hw.memory_attributes import BLOCK_RAM
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["ResidualAdd", "ResidualParams"]


@dataclass(frozen=True, slots=True)
class ResidualParams:
    """Geometry and formats of a residual adder.

    Parameters
    ----------
    profile
        Formats; ``profile.x`` is that of the vector.
    rows
        Channels taken per word.
    channels
        Length of the vector.

    Raises
    ------
    ValueError
        If a number is out of its range.

    >>> from sterna.model.profile import C12
    >>> params = ResidualParams(C12, rows=8, channels=130)
    >>> params.words, params.latency, params.update_bits
    (17, 1, 13)
    """

    profile: NumericProfile
    rows: int
    channels: int

    def __post_init__(self) -> None:
        check_whole("rows", self.rows, 1, 4096)
        check_whole("channels", self.channels, 1, 1 << 20)

    @property
    def words(self) -> int:
        """Words of a vector; the last is filled up with zeros."""
        return -(-self.channels // self.rows)

    @property
    def latency(self) -> int:
        """Steps from ``updates`` to ``words``: sum and saturation."""
        return 1

    @property
    def memory_words(self) -> int:
        """Depth of the memory of x; none if the whole vector fits in two registers."""
        return self.words if self.words > 2 else 0

    @property
    def update_bits(self) -> int:
        """Signed bits of an update: one more than x has.

        An update that is clamped to them before the sum changes no result. Let x have b
        bits, so ``-2^(b-1) <= x < 2^(b-1)``. An update of ``2^b - 1`` or more gives a sum
        of at least ``2^(b-1) - 1``, and one of ``-2^b`` or less a sum below ``-2^(b-1)``:
        both saturate to the same end of x as the clamped update, ``2^b - 1`` or ``-2^b``.
        """
        return self.profile.x.bits + 1

    @property
    def update_layout(self) -> StructLayout:
        """Payload of ``updates``."""
        return StructLayout({
            "y": ArrayLayout(signed(self.update_bits), self.rows),
            "load": 1,
        })

    @property
    def word_layout(self) -> StructLayout:
        """Payload of ``words``."""
        return StructLayout({
            "x": ArrayLayout(signed(self.profile.x.bits), self.rows),
            "last": 1,
        })


class ResidualAdd(wiring.Component):
    """``x = sat(x + y)``, or ``x = y`` to begin with; it keeps x.

    Updates come word by word, from the first word of the vector to the last, again and
    again; each gives the new word one step later, one per cycle, and stalls only while a
    word waits to be taken. Padded channels are sums like any other: they stay zero as long
    as their updates are.

    A reset makes the next update the first of a vector. It does not clear x, so that
    vector must be one to load, as the first of every sequence is.

    The sum has a bit more than an update, and cannot overflow before it saturates.

    Parameters
    ----------
    profile
        Formats; ``profile.x`` is that of the vector.
    rows
        Channels taken per word.
    channels
        Length of the vector.

    Members
    -------
    updates : ``In(stream.Signature(params.update_layout))``
        ``y`` of each channel of a word, and ``load``: y is x itself.
    words : ``Out(stream.Signature(params.word_layout))``
        ``x`` of each channel, and ``last`` on the last word of the vector.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    def __init__(self, profile: NumericProfile, *, rows: int, channels: int) -> None:
        self.params = ResidualParams(profile, rows, channels)
        super().__init__({
            "updates": In(stream.Signature(self.params.update_layout)),
            "words": Out(stream.Signature(self.params.word_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params, update, words = self.params, self.updates.payload, self.words
        taken = Signal()
        position = Signal(range(max(params.words, 2)))    # a bit at least
        is_last = Signal()

        m.d.comb += [
            self.updates.ready.eq(~words.valid | words.ready),
            taken.eq(self.updates.valid & self.updates.ready),
            is_last.eq(position == params.words - 1),
        ]
        with m.If(taken):
            m.d.sync += [
                position.eq(Mux(is_last, 0, position + 1)),
                words.valid.eq(1),
                words.payload.last.eq(is_last),
            ]
        with m.Elif(words.ready):
            m.d.sync += words.valid.eq(0)

        new = Signal(ArrayLayout(signed(params.profile.x.bits), params.rows), reset_less=True)
        m.d.comb += words.payload.x.eq(new)
        old = self._keep(m, new, taken, position, is_last)
        for row in range(params.rows):
            total = Mux(update.load, 0, old[row]) + update.y[row]
            with m.If(taken):
                m.d.sync += new[row].eq(saturate(total, params.profile.x))
        return m

    def _keep(self, m, new, taken, position, is_last):
        """Keep what ``new`` holds after each update; return the word at ``position``."""
        params = self.params
        if not params.memory_words:
            # The last word written is still in ``new``, the one before it in ``older``.
            if params.words == 1:
                return new
            older = Signal(new.shape(), reset_less=True)
            with m.If(taken):
                m.d.sync += older.eq(new)
            return older

        # A word is written in the cycle after its update, out of ``new``, and read for the
        # first time a vector later. With three words or more, its read begins two cycles
        # after the update at the earliest: never in the cycle that writes it.
        m.submodules.x = x = memory.Memory(
            shape=new.shape(), depth=params.memory_words, init=[],
            attrs=BLOCK_RAM)
        read, write = x.read_port(), x.write_port()
        written = Signal()
        written_position = Signal.like(position, reset_less=True)
        following = Mux(is_last, 0, position + 1)
        m.d.sync += [written.eq(taken), written_position.eq(position)]
        m.d.comb += [
            read.addr.eq(Mux(taken, following, position)),
            read.en.eq(1),
            write.addr.eq(written_position),
            write.data.eq(new),
            write.en.eq(written),
        ]
        return read.data
