"""The unit made of ternary matrices alone: activations in, sums or requantised results out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from amaranth.hdl import Array, Module, Signal, signed, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.layers.engine import EngineParams, MatrixEngine
from sterna.hw.layers.post import Post, PostParams

__all__ = ["Contents", "MatrixUnit", "MatrixUnitParams"]


@dataclass(frozen=True, slots=True)
class Contents:
    """What the memories of a unit hold: weight words, and biases of each group of rows."""

    words: Sequence[int] = field(default_factory=list)
    biases: Sequence[Sequence[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MatrixUnitParams:
    """Geometry of a :class:`MatrixUnit`: its engine and, unless sums come out, what follows."""

    engine: EngineParams
    post: PostParams | None = None

    @property
    def rows(self) -> int:
        """Results in each word."""
        return self.engine.mac.rows

    @property
    def lanes(self) -> int:
        """Activations in each word."""
        return self.engine.lanes

    @property
    def result_layout(self) -> StructLayout:
        """Payload of ``results``."""
        assert self.post is not None
        return StructLayout({
            "y": ArrayLayout(signed(self.post.requantize.out_bits), self.rows), "last": 1,
            **self.engine.matrix_field})

    # Cycles ------------------------------------------------------------------------

    @property
    def first_beat_steps(self) -> int:
        """Cycles from the last word of a vector taken to its first beat: it is noticed, the
        weight memory is asked, or the port looked at."""
        return 1 + (self.engine.weights.latency if self.engine.rom else 1)

    @property
    def latencies(self) -> tuple[int, ...]:
        """For each matrix, cycles from the first word of a vector taken to its last word of
        results offered.

        Of an idle unit, whose words come one per cycle and, without a memory, whose weights
        wait.
        """
        after = 0 if self.post is None else self.post.requantize.latency
        return tuple(words - 1 + way + after for words, way in self._words_and_way)

    @property
    def periods(self) -> tuple[int, ...]:
        """For each matrix, cycles from one vector to the next of it, when nothing waits.

        A vector comes in while the one before it is multiplied, and sums of two may be on their
        way. The longest of the three counts: words, beats, or half the way of a vector from
        its first beat to its last sums. It is half a cycle less if that is odd.
        """
        return tuple(
            max(words, self.engine.beat_cycles(matrix) + self.first_beat_steps - 1, -(-way // 2))
            for matrix, (words, way) in enumerate(self._words_and_way))

    @property
    def _words_and_way(self) -> list[tuple[int, int]]:
        """For each matrix, words of a vector, and cycles from the last of them to the last sums."""
        engine = self.engine
        return [(engine.act_words(matrix),
                 self.first_beat_steps + engine.beat_cycles(matrix) - 1 + engine.mac.latency)
                for matrix in range(len(engine.shapes))]


class MatrixUnit(wiring.Component):
    """Ternary matrices with vectors of 8-bit activations: an engine and, maybe, a requantiser.

    Members
    -------
    acts : ``In(stream.Signature(engine.act_layout))``
        ``q`` of each lane, and ``matrix`` if there are several.
    weights : ``In(stream.Signature(unsigned(word_bits)))``
        Without a memory: the weight words of the matrix, for each vector anew.
    sums : ``Out(stream.Signature(engine.sum_layout))``
        Without ``params.post``: ``sum`` of each row, ``last``, and ``matrix`` if there are
        several.
    results : ``Out(stream.Signature(params.result_layout))``
        With it: ``y`` of each row, ``last`` and ``matrix``.
    """

    def __init__(self, params: MatrixUnitParams, contents: Contents) -> None:
        self.params = params
        self._contents = contents
        engine = params.engine
        members = {"acts": In(stream.Signature(engine.act_layout))}
        if not engine.rom:
            members["weights"] = In(stream.Signature(unsigned(engine.mac.word_bits)))
        if params.post is None:
            members["sums"] = Out(stream.Signature(engine.sum_layout))
        else:
            members["results"] = Out(stream.Signature(params.result_layout))
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        params = self.params
        m.submodules.engine = engine = MatrixEngine(params.engine, self._contents.words)
        wiring.connect(m, wiring.flipped(self.acts), engine.acts)
        if not params.engine.rom:
            wiring.connect(m, wiring.flipped(self.weights), engine.weights)
        if params.post is None:
            wiring.connect(m, engine.sums, wiring.flipped(self.sums))
            return m

        m.submodules.post = post = Post(params.post, self._contents.biases)
        wiring.connect(m, engine.sums, post.sums)
        if params.engine.index_bits:
            m.d.comb += post.coming.eq(engine.coming)
        matrix = engine.sums.payload.matrix if params.engine.index_bits else 0
        tag = Signal(params.post.tag_layout)
        m.d.comb += [
            post.known.eq(1),
            post.scales[0].eq(Array(slots[0].k for slots in params.post.slots)[matrix]),
            tag.eq(post.results.payload.tag),
            self.results.valid.eq(post.results.valid),
            post.results.ready.eq(self.results.ready),
            self.results.payload.y.eq(post.results.payload.value),
            self.results.payload.last.eq(tag.last),
        ]
        if params.engine.index_bits:
            m.d.comb += self.results.payload.matrix.eq(tag.matrix)
        return m
