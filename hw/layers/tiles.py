"""Two vectors of activations: one is multiplied while the next one comes in."""

from __future__ import annotations

from amaranth.hdl import Array, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.layers.engine_params import EngineParams
from sterna.hw.parts.memory_attributes import NEVER_COLLIDES

__all__ = ["ActivationTiles"]


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
