"""Ternary matrices times vectors of activations, with all that the array needs around it."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.layers.engine_params import EngineParams
from sterna.hw.layers.tiles import ActivationTiles
from sterna.hw.units.mac.mac_array import TernaryMacArray
from sterna.hw.units.weight_rom import WeightRom

__all__ = ["MatrixEngine"]


class MatrixEngine(wiring.Component):
    """Multiplies vectors with ternary matrices, one after the other, on one array.

    A vector is gathered while the one before it is multiplied. Its beats begin when those of
    the vector before are done, and are taken one per cycle (see
    :meth:`~sterna.hw.layers.engine_params.EngineParams.beat_cycles`) unless sums wait to be
    taken or, without a memory, weights have not come.

    Parameters
    ----------
    params
        Geometry.
    words
        Weight words of all matrices, of :func:`sterna.hw.units.mac.weight_packing.pack_projection`;
        empty without a memory.

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
