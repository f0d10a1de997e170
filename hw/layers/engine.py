"""Ternary matrices times vectors of activations: the array, its weights, and tiles of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth.hdl import Array, Cat, Const, Module, Mux, Shape, Signal, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.memory_attributes import NEVER_COLLIDES
from sterna.hw.units.mac.mac_array import TernaryMacArray
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.weight_rom import WeightRom, WeightRomParams
from sterna.model.checks import check_whole

__all__ = ["ActivationTiles", "EngineParams", "MatrixEngine"]


@dataclass(frozen=True, slots=True)
class EngineParams:
    """Geometry of a :class:`~sterna.hw.layers.engine.MatrixEngine`.

    Parameters
    ----------
    mac
        The array.
    lanes
        Activations in each word of ``acts``; it divides the columns of the array.
    shapes
        Rows and columns of each matrix.
    rom
        Whether the weights are in a memory; if not, they come through a port.

    >>> params = EngineParams(MacParams(8, 32, 100), 8, ((20, 100), (5, 10)))
    >>> params.words, params.first_word(1), params.act_words(0)
    (13, 12, 13)
    """

    mac: MacParams
    lanes: int
    shapes: tuple[tuple[int, int], ...]
    rom: bool = True

    def __post_init__(self) -> None:
        check_whole("lanes", self.lanes, 1, 4096)
        if self.mac.cols % self.lanes:
            raise ValueError(
                f"cols ({self.mac.cols}) must be a multiple of lanes ({self.lanes})")
        if not 1 <= len(self.shapes) <= 4096:
            raise ValueError(f"there must be 1 to 4096 matrices, got {len(self.shapes)}")
        for rows, columns in self.shapes:
            check_whole("rows of a matrix", rows, 1, 1 << 20)
            check_whole("columns of a matrix", columns, 1, self.mac.max_columns)

    # Matrices ----------------------------------------------------------------------

    def groups(self, matrix: int) -> int:
        """Groups of rows of a matrix: words of ``sums``."""
        return self.mac.groups(self.shapes[matrix][0])

    def beats(self, matrix: int) -> int:
        """Beats of a group of a matrix: tiles of activations."""
        return self.mac.beats_per_group(self.shapes[matrix][1])

    def act_words(self, matrix: int) -> int:
        """Words of ``acts`` that bring the vector for a matrix."""
        return -(-self.shapes[matrix][1] // self.lanes)

    def matrix_words(self, matrix: int) -> int:
        """Weight words of a matrix: one for each beat."""
        return self.groups(matrix) * self.beats(matrix)

    def first_word(self, matrix: int) -> int:
        """Where the weight words of a matrix begin in the memory."""
        return sum(self.matrix_words(index) for index in range(matrix))

    @property
    def words(self) -> int:
        """Weight words of all matrices."""
        return self.first_word(len(self.shapes))

    @property
    def tiles(self) -> int:
        """Tiles of the longest vector."""
        return max(map(self.beats, range(len(self.shapes))))

    @property
    def chunks_per_tile(self) -> int:
        """Words of ``acts`` in a tile."""
        return self.mac.cols // self.lanes

    @property
    def index_bits(self) -> int:
        """Bits of the index of a matrix; none if there is one only."""
        return (len(self.shapes) - 1).bit_length()

    @property
    def weights(self) -> WeightRomParams:
        """The memory of the weights."""
        return WeightRomParams(self.words, self.mac.word_bits)

    # Cycles ------------------------------------------------------------------------

    def beat_cycles(self, matrix: int) -> int:
        """Cycles in which the beats of a matrix are taken, if nothing makes them wait.

        In a style with tables a beat of fresh activations waits until these are filled: a
        vector of one tile once, a longer one in every beat.
        """
        beats = self.beats(matrix)
        fresh = 1 if beats == 1 else self.matrix_words(matrix)
        return self.matrix_words(matrix) + fresh * self.mac.fill_steps

    # Payloads ----------------------------------------------------------------------

    @property
    def matrix_field(self) -> dict[str, Shape]:
        """The field with the index of a matrix, if there are several."""
        return {"matrix": unsigned(self.index_bits)} if self.index_bits else {}

    @property
    def act_layout(self) -> StructLayout:
        """Payload of ``acts``."""
        return StructLayout({
            "q": ArrayLayout(signed(self.mac.act_bits), self.lanes), **self.matrix_field})

    @property
    def sum_layout(self) -> StructLayout:
        """Payload of ``sums``."""
        return StructLayout({
            "sum": ArrayLayout(signed(self.mac.sum_bits), self.mac.rows), "last": 1,
            **self.matrix_field})


class ActivationTiles(wiring.Component):
    """Gathers words of ``lanes`` activations into tiles of ``cols``, and keeps two vectors.

    Where a vector ends inside a tile the rest of the tile keeps old values: there the weights
    are zero. How many words a vector has follows from its matrix.

    Members
    -------
    acts : ``In(stream.Signature(params.act_layout))``
        ``q``; and, read with the first word of a vector, ``matrix``.
    waiting : ``Out(1)``
        There is a vector that can be read.
    matrix : ``Out(unsigned(params.index_bits))``
        Its matrix, if there are several.
    tile : ``In``
        Which tile of it to read.
    tile_acts : ``Out(ArrayLayout(signed(act_bits), cols))``
        That tile, a cycle later.
    release : ``In(1)``
        The vector is done with; its place is free from the next cycle on.
    """

    def __init__(self, params: EngineParams) -> None:
        self.params = params
        super().__init__({
            "acts": In(stream.Signature(params.act_layout)),
            "waiting": Out(1),
            **({"matrix": Out(unsigned(params.index_bits))} if params.index_bits else {}),
            "tile": In(range(max(params.tiles, 2))),
            "tile_acts": Out(ArrayLayout(signed(params.mac.act_bits), params.mac.cols)),
            "release": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        full = [Signal(name=f"full{half}") for half in range(2)]
        filling, serving = Signal(), Signal()
        first, last = Signal(init=1), Signal()
        taken = Signal()
        matrix = self._coming(m, filling, serving, first)
        word = Signal(range(max(map(params.act_words, range(len(params.shapes)))) + 1))
        m.d.comb += [
            self.acts.ready.eq(~Array(full)[filling]),
            taken.eq(self.acts.valid & self.acts.ready),
            last.eq(word == Array(
                params.act_words(i) - 1 for i in range(len(params.shapes)))[matrix]),
            self.waiting.eq(Array(full)[serving]),
        ]
        with m.If(taken):
            m.d.sync += [word.eq(Mux(last, 0, word + 1)), first.eq(last)]
        with m.If(taken & last):
            m.d.sync += [filling.eq(~filling), Array(full)[filling].eq(1)]
        with m.If(self.release):
            m.d.sync += [serving.eq(~serving), Array(full)[serving].eq(0)]
        self._store(m, taken, taken & last, filling, serving)
        return m

    def _coming(self, m, filling, serving, first):
        """Keep the matrix of the vector that comes in, and return it."""
        if not self.params.index_bits:
            return Const(0)
        matrices = Array(
            Signal(self.params.index_bits, name=f"matrix{half}", reset_less=True)
            for half in range(2))
        with m.If(self.acts.valid & self.acts.ready & first):
            m.d.sync += matrices[filling].eq(self.acts.payload.matrix)
        m.d.comb += self.matrix.eq(matrices[serving])
        return Mux(first, self.acts.payload.matrix, matrices[filling])

    def _store(self, m, taken, ended, filling, serving):
        """A memory whose words are tiles, written in parts."""
        params = self.params
        part, tile = Signal(range(max(params.chunks_per_tile, 2))), Signal.like(self.tile)
        tile_ends = part == params.chunks_per_tile - 1
        with m.If(taken):
            m.d.sync += part.eq(Mux(tile_ends, 0, part + 1))
            with m.If(tile_ends):
                m.d.sync += tile.eq(tile + 1)
        with m.If(ended):
            m.d.sync += [part.eq(0), tile.eq(0)]

        m.submodules.store = store = memory.Memory(
            shape=ArrayLayout(signed(params.mac.act_bits), params.mac.cols),
            depth=2 * params.tiles, init=[], attrs=NEVER_COLLIDES)
        write, read = store.write_port(granularity=params.lanes), store.read_port()
        m.d.comb += [
            write.addr.eq(tile + Mux(filling, params.tiles, 0)),
            write.en.eq(Mux(taken, 1 << part, 0)),
            read.addr.eq(self.tile + Mux(serving, params.tiles, 0)),
            read.en.eq(1),
            self.tile_acts.eq(read.data),
        ]
        for column in range(params.mac.cols):
            m.d.comb += write.data[column].eq(self.acts.payload.q[column % params.lanes])


class MatrixEngine(wiring.Component):
    """Multiplies vectors with ternary matrices, one after the other, on one array.

    A vector is gathered while the one before it is multiplied. Its beats begin when those of
    the vector before are done, and are taken one per cycle (see
    :meth:`~sterna.hw.layers.engine.EngineParams.beat_cycles`) unless sums wait to be
    taken or, without a memory, weights have not come.

    Members
    -------
    acts : ``In(stream.Signature(params.act_layout))``
        ``q`` of each lane and, if there are several matrices, ``matrix``, which is read with
        the first word of a vector.
    weights : ``In(stream.Signature(unsigned(word_bits)))``
        Without a memory: the weight words of the matrix, for each vector anew.
    sums : ``Out(stream.Signature(params.sum_layout))``
        ``sum`` of each row of a group, ``last`` with the last group and, if there are several
        matrices, ``matrix``.
    coming : ``Out(unsigned(params.index_bits))``
        ``matrix`` of the sums of the next cycle, should some come then; if there are several.
    """

    def __init__(self, params: EngineParams, words: Sequence[int]) -> None:
        self.params = params
        self._words = words
        members = {
            "acts": In(stream.Signature(params.act_layout)),
            "sums": Out(stream.Signature(params.sum_layout)),
            **({"coming": Out(unsigned(params.index_bits))} if params.index_bits else {}),
        }
        if not params.rom:
            members["weights"] = In(stream.Signature(unsigned(params.mac.word_bits)))
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        params = self.params
        m.submodules.tiles = tiles = ActivationTiles(params)
        m.submodules.array = array = TernaryMacArray(params.mac)
        wiring.connect(m, wiring.flipped(self.acts), tiles.acts)

        begin, issuing = Signal(), Signal()
        groups = Array(params.groups(i) for i in range(len(params.shapes)))
        groups_left = Signal(range(max(groups) + 1))
        matrix = tiles.matrix if params.index_bits else Const(0)
        room = self._collect(m, array.sums, begin, matrix, groups)

        # A vector begins when the beats of the one before it are done.
        weights = self._weights(m, matrix, begin)
        word_ends = Signal()
        taken = Signal()
        m.d.comb += [
            begin.eq(tiles.waiting & ~issuing & room),
            array.beats.valid.eq(weights.valid & issuing),
            array.beats.payload.eq(Cat(weights.payload, tiles.tile_acts)),
            weights.ready.eq(array.beats.ready & issuing),
            taken.eq(array.beats.valid & array.beats.ready),
            word_ends.eq(array.beats.payload.last),
            tiles.release.eq(taken & word_ends & (groups_left == 1)),
        ]
        with m.If(begin):
            m.d.sync += [issuing.eq(1), groups_left.eq(groups[matrix])]
        with m.If(taken & word_ends):
            m.d.sync += groups_left.eq(groups_left - 1)
        with m.If(tiles.release):
            m.d.sync += issuing.eq(0)

        # A tile is read in the cycle in which the one before it is taken.
        tile = Signal.like(tiles.tile)
        m.d.comb += tiles.tile.eq(
            Mux(taken, Mux(word_ends, 0, tile + 1), Mux(issuing, tile, 0)))
        m.d.sync += tile.eq(tiles.tile)
        return m

    def _weights(self, m, matrix, begin):
        """The stream of weight words: a memory's, asked for as a vector begins, or the port."""
        params = self.params
        if not params.rom:
            return self.weights
        m.submodules.weights = rom = WeightRom(params.weights, self._words)
        m.d.comb += [
            rom.requests.valid.eq(begin),
            rom.requests.payload.first.eq(Array(
                params.first_word(i) for i in range(len(params.shapes)))[matrix]),
            rom.requests.payload.count.eq(Array(
                params.matrix_words(i) for i in range(len(params.shapes)))[matrix]),
        ]
        return rom.beats

    def _collect(self, m, sums, begin, matrix, groups):
        """Count the groups that come out; return whether another vector may begin.

        Two may be on their way.
        """
        count = Signal(range(3))
        group = Signal(range(max(groups) + 1))
        ended = Signal()
        current = self._matrix_of_sums(m, begin, matrix, count, ended)
        m.d.comb += [
            self.sums.valid.eq(sums.valid),
            sums.ready.eq(self.sums.ready),
            self.sums.payload.sum.eq(sums.payload),
            self.sums.payload.last.eq(group + 1 == groups[current]),
            ended.eq(self.sums.valid & self.sums.ready & self.sums.payload.last),
        ]
        with m.If(self.sums.valid & self.sums.ready):
            m.d.sync += group.eq(Mux(self.sums.payload.last, 0, group + 1))
        m.d.sync += count.eq(count + begin - ended)
        return count != 2

    def _matrix_of_sums(self, m, begin, matrix, count, ended):
        """The matrix of the sums that come out: of the first of ``count`` vectors under way."""
        bits = self.params.index_bits
        if not bits:
            return Const(0)
        current = Signal(bits, reset_less=True)
        following = Signal(bits, reset_less=True)
        m.d.comb += [
            self.coming.eq(Mux(ended, following, current)),
            self.sums.payload.matrix.eq(current),
        ]
        m.d.sync += current.eq(self.coming)
        with m.If(begin):
            m.d.sync += following.eq(matrix)
            with m.If(count - ended == 0):
                m.d.comb += self.coming.eq(matrix)
        return current
