"""The quantised vectors that the array multiplies, one for each sequence."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.plan.core_units import CoreUnits
from sterna.hw.parts.memory_attributes import BLOCK_RAM, NEVER_COLLIDES

__all__ = ["ActivationBuffer"]


class ActivationBuffer(wiring.Component):
    """Gathers chunks of a quantised vector into tiles of ``cols`` elements.

    A tile can be read in the cycle after its last chunk came, as ``ready_tiles`` says in the
    cycle in which it does. Where a vector ends
    inside a tile the rest of the tile keeps old values: there the weights are zero.

    Members
    -------
    chunks : ``In(stream.Signature(norm.act_layout))``
        Always ready.
    clear, clear_sequence : ``In``
        Forget the vector of a sequence: a new one follows.
    ready_tiles : ``Out``, for each sequence
        How many tiles of its vector can be read.
    arriving : ``Out(1)``, for each sequence
        One tile more can be read from the next cycle on.
    sequence, tile : ``In``
        What to read.
    advance : ``In(1)``, with ``params.block_activations``
        Step in this cycle.
    acts : ``Out(ArrayLayout(signed(8), cols))``
        The tile, ``params.read_steps`` steps later.
    """

    def __init__(self, params: CoreParams) -> None:
        self.params = params
        self._element = signed(params.profile.act_bits)
        super().__init__({
            "chunks": In(stream.Signature(CoreUnits(params).norm.act_layout)),
            "clear": In(1),
            "clear_sequence": In(params.index_bits),
            "ready_tiles": Out(range(params.tiles + 1)).array(params.sequences),
            "arriving": Out(1).array(params.sequences),
            "sequence": In(params.index_bits),
            "tile": In(range(max(params.tiles, 2))),
            **({"advance": In(1)} if params.block_activations else {}),
            "acts": Out(ArrayLayout(self._element, params.cols)),
        })

    def elaborate(self, platform):
        m = Module()
        params, chunk = self.params, self.chunks.payload
        sequence = chunk.sequence if params.sequence_bits else 0
        bank = Signal(range(max(params.chunks_per_tile, 2)))
        written = Signal(range(max(params.tiles, 2)))
        tile_ends = chunk.last | (bank == params.chunks_per_tile - 1)

        for index, (ready, arriving) in enumerate(
                zip(self.ready_tiles, self.arriving, strict=True)):
            m.d.comb += arriving.eq(self.chunks.valid & tile_ends & (sequence == index))
            with m.If(self.clear & (self.clear_sequence == index)):
                m.d.sync += ready.eq(0)
            with m.Elif(arriving):
                m.d.sync += ready.eq(written + 1)
        m.d.comb += self.chunks.ready.eq(1)
        with m.If(self.chunks.valid):
            m.d.sync += bank.eq(bank + 1)
            with m.If(tile_ends):
                m.d.sync += [bank.eq(0), written.eq(written + 1)]
            with m.If(chunk.last):
                m.d.sync += written.eq(0)

        write_address = self._address(sequence, written)
        read_address = self._address(self.sequence, self.tile)
        store = self._in_blocks if params.block_activations else self._in_luts
        store(m, bank, write_address, read_address)
        return m

    def _in_luts(self, m, bank, write_address, read_address):
        """Small and wide, read without a clock: made for LUT memory."""
        params, chunk = self.params, self.chunks.payload
        for index in range(params.chunks_per_tile):
            m.submodules[f"bank{index}"] = store = memory.Memory(
                shape=ArrayLayout(self._element, params.quant_lanes), depth=self._depth, init=[])
            write = store.write_port()
            read = store.read_port(domain="comb")
            m.d.comb += [
                write.addr.eq(write_address),
                write.data.eq(chunk.q),
                write.en.eq(self.chunks.valid & (bank == index)),
                read.addr.eq(read_address),
                Cat(self.acts[index * params.quant_lanes + lane]
                    for lane in range(params.quant_lanes)).eq(Cat(read.data)),
            ]

    def _in_blocks(self, m, bank, write_address, read_address):
        """One memory for all banks, for a block is wide and each of its bits can be kept.

        A tile is read when it is complete, never while it is written.
        """
        params = self.params
        m.submodules.banks = store = memory.Memory(
            shape=ArrayLayout(self._element, params.cols), depth=self._depth, init=[],
            attrs=BLOCK_RAM | NEVER_COLLIDES)
        write = store.write_port(granularity=params.quant_lanes)
        read = store.read_port()
        m.d.comb += [
            write.addr.eq(write_address),
            write.en.eq(Mux(self.chunks.valid, 1 << bank, 0)),
            read.addr.eq(read_address),
            read.en.eq(self.advance),
            self.acts.eq(read.data),
        ]
        for column in range(params.cols):
            m.d.comb += write.data[column].eq(self.chunks.payload.q[column % params.quant_lanes])

    @property
    def _depth(self):
        return max(self.params.tiles * self.params.sequences, 2)

    def _address(self, sequence, tile):
        return tile + Array(i * self.params.tiles for i in range(self.params.sequences))[sequence]
