"""The residual stream: the vector x of one sequence, and what each block adds to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from amaranth.hdl import Array, Module, Mux, Signal, Value, signed
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import saturate
from sterna.hw.parts.memory_attributes import NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline, advance_of
from sterna.model.profile import NumericProfile

__all__ = ["ResidualAdd", "ResidualParams"]


@dataclass(frozen=True, slots=True)
class ResidualParams:
    """Geometry and formats of a residual adder.

    >>> from sterna.model.profile import C12
    >>> params = ResidualParams(C12, rows=8, channels=130)
    >>> params.words, params.latency, params.update_bits
    (17, 2, 13)
    """

    profile: NumericProfile  # formats; `profile.x` is that of the vector
    rows: int  # channels taken per word
    channels: int  # length of the vector
    # Whether the unit keeps the updates of a vector of one or two words apart. A core, whose
    # vectors come at long intervals, does not need it.
    spaced: bool = True
    stalls: bool = True  # whether words may have to wait to be taken

    latency: ClassVar[int] = 2  # steps from ``updates`` to ``words``: sum and saturation

    @property
    def words(self) -> int:
        """Words of a vector; the last is filled up with zeros."""
        return -(-self.channels // self.rows)

    @property
    def update_spacing(self) -> int:
        """Steps from one update taken to the next: an update needs what the one of its word in
        the vector before has left, three steps after it was taken.
        """
        return 3 if self.spaced and self.words < 3 else 1

    @property
    def memory_words(self) -> int:
        """Depth of the memory of x; none if the vector is so short that registers keep it."""
        return self.words if self.words > 5 else 0

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
        return StructLayout({
            "y": ArrayLayout(signed(self.update_bits), self.rows),
            "load": 1,
        })

    @property
    def word_layout(self) -> StructLayout:
        return StructLayout({
            "x": ArrayLayout(signed(self.profile.x.bits), self.rows),
            "last": 1,
        })


class ResidualAdd(wiring.Component):
    """``x = sat(x + y)``, or ``x = y`` to begin with; it keeps x.

    Updates come word by word, from the first word of the vector to the last, again and again,
    one per cycle (one in ``params.update_spacing`` cycles if the vector is shorter than the
    pipeline). Each gives the new word ``params.latency`` steps later. The pipeline moves as a
    whole and stops only while a word waits to be taken, or never without ``stalls``. Padded
    channels stay zero as long as their updates are. The sum has a bit more than an update, and
    cannot overflow.

    A reset makes the next update the first of a vector. It does not clear x, so that vector must
    be one to load, as the first of every sequence is.
    """

    def __init__(self, params: ResidualParams) -> None:
        self.params = params
        super().__init__({
            # With load, y is x itself; last is high on the last word of the vector.
            "updates": In(stream.Signature(params.update_layout)),
            "words": Out(stream.Signature(
                params.word_layout, always_ready=not params.stalls)),
        })

    def elaborate(self, platform):
        m = Module()
        params, update, words = self.params, self.updates.payload, self.words
        position = Signal(range(max(params.words, 2)))    # a bit at least
        taken = Signal()
        is_last = Signal()
        rested = Signal()
        advance = advance_of(words, stalls=params.stalls)
        steps = Pipeline(m, advance)
        added, filled = steps.flags(taken, params.latency, "filled")[1:]
        m.d.comb += [
            self.updates.ready.eq(advance & rested),
            taken.eq(self.updates.valid & rested),
            is_last.eq(position == params.words - 1),
            words.valid.eq(filled),
            words.payload.last.eq(steps.delay(is_last, params.latency, "last")),
        ]
        written = Signal()
        m.d.sync += written.eq(added & advance)
        # The words of a short vector come again before they are kept: they go one by one.
        m.d.comb += rested.eq(~(added | filled | written) if params.update_spacing > 1 else 1)
        with m.If(taken & advance):
            m.d.sync += position.eq(Mux(is_last, 0, position + 1))

        new = Signal(ArrayLayout(signed(params.profile.x.bits), params.rows), reset_less=True)
        written_position = steps.delay(position, params.latency, "written_position")
        old = self._keep(m, new, taken & advance, position, written, written_position)
        for row in range(params.rows):
            total = steps.register(
                Mux(update.load, 0, old[row]) + update.y[row], f"total{row}")
            with m.If(advance):
                m.d.sync += new[row].eq(saturate(total, params.profile.x))
        m.d.comb += words.payload.x.eq(new)
        return m

    def _keep(self, m, new, taken, position, written, written_position):
        """Keep ``new`` where it was written; return the word at ``position``.

        ``written`` is high in the cycle after the one that wrote it.
        """
        params = self.params
        if not params.memory_words:
            kept = Array(Signal(new.shape(), reset_less=True, name=f"word{i}")
                         for i in range(params.words))
            with m.If(written):
                m.d.sync += kept[written_position].eq(new)
            return new.shape()(Value.cast(kept[position]))

        # A word is read three updates ahead of its own, so that it comes through the output
        # register of the memory and one more. It was kept three cycles after its last update
        # at the latest: with six words or more, that is in time. What is read ahead of the
        # first vector means nothing and is not used, as that vector is one to load.
        m.submodules.x = x = memory.Memory(
            shape=new.shape(), depth=params.memory_words, init=[], attrs=NEVER_COLLIDES)
        read = x.read_port()
        write = x.write_port()
        ahead = Signal.like(position, init=3 % params.words)
        steps = Pipeline(m, taken)
        with m.If(taken):
            m.d.sync += ahead.eq(Mux(ahead == params.words - 1, 0, ahead + 1))
        m.d.comb += [
            read.addr.eq(ahead),
            read.en.eq(taken),
            write.addr.eq(written_position),
            write.data.eq(new),
            write.en.eq(written),
        ]
        return new.shape()(steps.delay(read.data, 2, "old"))
