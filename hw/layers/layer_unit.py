"""The unit made of a layer behind a norm: BitLinear, MLGRU or GLU, from vector to vector."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Const, Module, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.layers.engine import MatrixEngine
from sterna.hw.layers.matrix_unit import Contents
from sterna.hw.layers.post import LayerScales, Post, PostParams
from sterna.hw.units.glu import GluParams, GluUnit
from sterna.hw.units.mlgru import MlgruParams, MlgruUnit
from sterna.hw.units.norm_params import NormParams
from sterna.hw.units.norm_quant import NormQuant
from sterna.model.profile import FixedPoint

__all__ = ["Cell", "Gather", "LayerCell", "LayerUnit", "LayerUnitParams", "gathered_layout"]


def gathered_layout(params: PostParams, names: tuple[str, ...], bits: int) -> StructLayout:
    """Payload of :class:`Gather`: a field of ``rows`` values for each slot, and ``last``."""
    return StructLayout({
        **{name: ArrayLayout(signed(bits), params.engine.mac.rows) for name in names},
        "last": 1})


class Gather(wiring.Component):
    """Keeps the results of a slot until those of the last slot come, and passes all on.

    Members
    -------
    results : ``In(stream.Signature(requantize.result_layout))``
    words : ``Out(stream.Signature(gathered_layout(params, names, bits)))``
        In the same cycle as the results of the last slot.
    """

    def __init__(self, params: PostParams, names: tuple[str, ...], bits: int) -> None:
        self.params = params
        self._names, self._bits = names, bits
        super().__init__({
            "results": In(stream.Signature(params.requantize.result_layout)),
            "words": Out(stream.Signature(gathered_layout(params, names, bits))),
        })

    def elaborate(self, platform):
        m = Module()
        params, words, results = self.params, self.words, self.results
        tag = Signal(params.tag_layout)
        m.d.comb += tag.eq(results.payload.tag)
        is_last = tag.slot == len(self._names) - 1
        m.d.comb += [
            words.valid.eq(results.valid & is_last),
            results.ready.eq(words.ready | ~is_last),
            words.payload.last.eq(tag.last),
        ]
        *kept, last = self._names
        for lane in range(params.engine.mac.rows):
            value = params.requantize.narrowed(results.payload, lane, self._bits)
            m.d.comb += words.payload[last][lane].eq(value)
            for slot, name in enumerate(kept):
                register = Signal(signed(self._bits), name=f"{name}{lane}", reset_less=True)
                with m.If(results.valid & (tag.slot == slot)):
                    m.d.sync += register.eq(value)
                m.d.comb += words.payload[name][lane].eq(register)
        return m


Cell = MlgruParams | GluParams


class LayerCell(wiring.Component):
    """Takes pre-activations of the slots of a matrix; gives the words of a vector to normalise.

    Members
    -------
    results : ``In(stream.Signature(requantize.result_layout))``
    start : ``In(1)``, of an MLGRU
        The vector begins a sequence. Read with its first results.
    words : ``Out(stream.Signature(norm.word_layout))``
    """

    def __init__(self, params: PostParams, norm: NormParams, cell: Cell) -> None:
        self.params, self._norm, self._cell = params, norm, cell
        super().__init__({
            "results": In(stream.Signature(params.requantize.result_layout)),
            **({"start": In(1)} if isinstance(cell, MlgruParams) else {}),
            "words": Out(stream.Signature(norm.word_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        table = self._norm.profile.sigmoid_table()
        bits = self._norm.profile.z.bits
        if isinstance(self._cell, MlgruParams):
            m.submodules.gather = gather = Gather(self.params, ("f", "c", "g"), bits)
            m.submodules.mlgru = unit = MlgruUnit(self._cell, table)
            first = Signal(init=1)
            with m.If(gather.words.valid & gather.words.ready):
                m.d.sync += first.eq(gather.words.payload.last)
            m.d.comb += unit.preacts.payload.start.eq(self.start & first)
            names, made, value = ("f", "c", "g"), unit.states, unit.states.payload.o
        else:
            m.submodules.gather = gather = Gather(self.params, ("gate", "up"), bits)
            m.submodules.glu = unit = GluUnit(self._cell, table)
            m.d.comb += unit.preacts.payload.last.eq(gather.words.payload.last)
            names, made, value = ("gate", "up"), unit.products, unit.products.payload.p
        wiring.connect(m, wiring.flipped(self.results), gather.results)
        m.d.comb += [
            unit.preacts.valid.eq(gather.words.valid),
            gather.words.ready.eq(unit.preacts.ready),
            *(unit.preacts.payload[name].eq(gather.words.payload[name]) for name in names),
            self.words.valid.eq(made.valid),
            made.ready.eq(self.words.ready),
            self.words.payload.last.eq(made.payload.last),
            *(self.words.payload.y[lane].eq(value[lane]) for lane in range(self._norm.rows)),
        ]
        return m


@dataclass(frozen=True, slots=True)
class LayerUnitParams:
    """Geometry of a :class:`LayerUnit`.

    Parameters
    ----------
    norm
        The norm in front of every matrix.
    post
        Engine and requantiser. Its first matrix takes the vector that comes in; the second, if
        there is a cell, takes what that makes.
    output
        Format of the results.
    cell
        The MLGRU or GLU between the two matrices; None for a BitLinear.
    """

    norm: NormParams
    post: PostParams
    output: FixedPoint
    cell: Cell | None = None

    @property
    def rows(self) -> int:
        """Channels in each word of ``vectors`` and ``results``."""
        return self.post.engine.mac.rows

    @property
    def has_state(self) -> bool:
        """Whether a vector may be the first of a sequence."""
        return isinstance(self.cell, MlgruParams)

    @property
    def vector_layout(self) -> StructLayout:
        """Payload of ``vectors``."""
        return StructLayout({
            "x": ArrayLayout(signed(self.norm.y_bits), self.rows), "last": 1,
            **({"start": 1} if self.has_state else {})})

    @property
    def result_layout(self) -> StructLayout:
        """Payload of ``results``."""
        return StructLayout({
            "y": ArrayLayout(signed(self.output.bits), self.rows), "last": 1})

    @property
    def latency(self) -> int:
        """Cycles from the first word of a vector taken to its last word of results offered.

        Of an idle unit whose words come one per cycle. In a style with tables it may be a few
        cycles less: tables are filled while sums wait for their scales.
        """
        last_word = self.norm.words(self.post.engine.shapes[0][1]) - 1
        for matrix in range(len(self.post.slots)):
            last_sums = self._last_sums(matrix, last_word)
            # What comes out of the cell is a vector again.
            last_word = last_sums + self.post.requantize.latency + self._cell_steps
        return last_sums + self.post.requantize.latency

    @property
    def period(self) -> int:
        """Cycles from one vector to the next, when nothing waits; with tables as for the latency.

        The norm holds one vector: the next comes in when its chunks are out, and its scale is made
        when the one before is known. With a cell a vector from outside follows the one that the
        cell made of the vector before it, in the norm and in the array. The gateware was seen to
        take up to three cycles more with a cell whose array is the limit, and one without a cell.
        """
        beats = self.post.engine.beat_cycles(0) + (
            self.post.engine.weights.latency if self.post.engine.rom else 1)
        if self.cell is None:
            return max(beats, self._apart(0))
        second = self._last_sums(0, 0) + self.post.requantize.latency + self._cell_steps
        return max(second + self._apart(1),
                   self._last_sums(1, second) - self._last_sums(0, 0) + beats)

    def _apart(self, matrix: int) -> int:
        """Cycles from the last word of the vector of a matrix to that of the next from outside."""
        norm, shapes = self.norm, self.post.engine.shapes
        return norm.chunks(shapes[matrix][1]) + norm.first_chunk_steps + max(
            norm.words(shapes[0][1]), norm.scale_steps + 1)

    @property
    def _cell_steps(self) -> int:
        """Cycles from the last results of the first matrix to the last word of the cell."""
        if not isinstance(self.cell, MlgruParams):
            return 0 if self.cell is None else self.cell.latency
        # A tiny state makes the words of a vector keep apart.
        apart = max(0, self.cell.beat_spacing - len(self.post.slots[0]) * self.post.engine.beats(0))
        return self.cell.latency + (self.cell.words - 1) * apart

    def _last_sums(self, matrix: int, last_word: int) -> int:
        """The cycle that takes the last sums of a matrix, given that of its last word."""
        norm, engine = self.norm, self.post.engine
        chunks = norm.chunks(engine.shapes[matrix][1])
        last_chunk = last_word + norm.max_steps + norm.first_chunk_steps + chunks - 1
        known = last_chunk + norm.scale_steps + len(self.post.slots[matrix]) + 1
        first_beats = engine.beats(matrix)
        first_beats += engine.mac.fill_steps * first_beats
        first_sums = (last_chunk + 1 + (engine.weights.latency if engine.rom else 1)
                      + first_beats - 1 + engine.mac.latency)
        return max(first_sums, known) + engine.beat_cycles(matrix) - first_beats


class LayerUnit(wiring.Component):
    """A layer of :mod:`sterna.model.layers`, bit for bit.

    Every vector goes through norm, engine and requantiser; with a cell its products come back
    as a second vector. A vector may come in while the one before it is still worked on.

    Members
    -------
    vectors : ``In(stream.Signature(params.vector_layout))``
        ``x`` of each row, ``last`` with the last word of a vector and, with an MLGRU,
        ``start``, read with the first word: the vector begins a sequence. Rows beyond the
        vector's end are 0.
    results : ``Out(stream.Signature(params.result_layout))``
        ``y`` of each row, ``last`` with the last word. Rows beyond the end are 0.
    """

    def __init__(self, params: LayerUnitParams, contents: Contents) -> None:
        self.params = params
        self._contents = contents
        super().__init__({
            "vectors": In(stream.Signature(params.vector_layout)),
            "results": Out(stream.Signature(params.result_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        m.submodules.norm = norm = NormQuant(params.norm)
        m.submodules.engine = engine = MatrixEngine(params.post.engine, self._contents.words)
        m.submodules.scales = scales = LayerScales(params.post, params.norm)
        m.submodules.post = post = Post(params.post, self._contents.biases)
        wiring.connect(m, engine.sums, post.sums)
        if params.post.engine.index_bits:
            m.d.comb += post.coming.eq(engine.coming)
        wiring.connect(m, norm.scales, scales.norms)
        m.d.comb += [
            scales.done.eq(post.done),
            post.scales.eq(scales.scales),
            post.known.eq(scales.known),
            engine.acts.valid.eq(norm.acts.valid),
            engine.acts.payload.q.eq(norm.acts.payload.q),
            norm.acts.ready.eq(engine.acts.ready),
        ]
        words, outward = norm.words[0], Const(1)
        if params.cell is not None:
            # Vectors take turns: one from outside, then what the cell makes of it.
            m.submodules.cell = cell = LayerCell(params.post, params.norm, params.cell)
            m.d.comb += [
                engine.acts.payload.matrix.eq(self._turn(m, norm.acts, "multiplied")),
                cell.results.payload.eq(post.results.payload)]
            tag = Signal(params.post.tag_layout)
            m.d.comb += tag.eq(post.results.payload.tag)
            outward = tag.matrix
            with m.If(self._turn(m, words, "normalised")):
                wiring.connect(m, cell.words, words)
            with m.Else():
                self._take(m, words)
            with m.If(~outward):
                m.d.comb += [
                    cell.results.valid.eq(post.results.valid),
                    post.results.ready.eq(cell.results.ready)]
            if params.has_state:
                m.d.comb += cell.start.eq(self._start(m))
        else:
            self._take(m, words)
        with m.If(outward):
            self._give(m, post.results)
        return m

    def _turn(self, m, vectors, name):
        """Whether the vector of a stream is a second one."""
        second = Signal(name=f"second_{name}")
        with m.If(vectors.valid & vectors.ready & vectors.payload.last):
            m.d.sync += second.eq(~second)
        return second

    def _take(self, m, words):
        """Vectors from outside go to the norm."""
        m.d.comb += [
            words.valid.eq(self.vectors.valid),
            self.vectors.ready.eq(words.ready),
            words.payload.y.eq(self.vectors.payload.x),
            words.payload.last.eq(self.vectors.payload.last),
        ]

    def _start(self, m):
        """Whether the vector that came in last begins a sequence."""
        first, start = Signal(init=1), Signal()
        with m.If(self.vectors.valid & self.vectors.ready):
            m.d.sync += first.eq(self.vectors.payload.last)
            with m.If(first):
                m.d.sync += start.eq(self.vectors.payload.start)
        return start

    def _give(self, m, results):
        """Results leave."""
        params, numbers = self.params, self.params.post.requantize
        tag = Signal(params.post.tag_layout)
        m.d.comb += [
            tag.eq(results.payload.tag),
            self.results.valid.eq(results.valid),
            results.ready.eq(self.results.ready),
            self.results.payload.last.eq(tag.last),
            *(self.results.payload.y[row].eq(
                numbers.narrowed(results.payload, row, params.output.bits))
              for row in range(params.rows)),
        ]
