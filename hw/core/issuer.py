"""Issuing beats to the array: weights, activations and row headers, joined."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.image import CoreImage
from sterna.hw.core.tasks import task_layout
from sterna.hw.memory_attributes import BLOCK_ROM

__all__ = ["BeatIssuer"]


class BeatIssuer(wiring.Component):
    """Turns tasks into beats: for each group of rows, the tiles of its columns.

    One beat per cycle, from one task to the next as well. It waits for a tile that is not
    ready yet, for a weight word, and for the array.

    Parameters
    ----------
    image
        Contents of the memories; the numbers of -1 weights are kept here.

    Members
    -------
    tasks : ``In(stream.Signature(task_layout(image)))``
    weights : ``In(stream.Signature(unsigned(weight_bits)))``
    ready_tiles : ``In``, for each sequence
        Tiles that can be read.
    sequence, tile : ``Out``; acts : ``In``
        Reading of a tile, in the same cycle.
    beats : ``Out(stream.Signature(mac.beat_layout))``
    """

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        params = image.params
        super().__init__({
            "tasks": In(stream.Signature(task_layout(image))),
            "weights": In(stream.Signature(unsigned(params.weight_bits))),
            "ready_tiles": In(range(params.tiles + 1)).array(params.streams),
            "sequence": Out(params.index_bits),
            "tile": Out(range(max(params.tiles, 2))),
            "acts": In(ArrayLayout(signed(params.profile.act_bits), params.cols)),
            "beats": Out(stream.Signature(params.mac.beat_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params, beat = self.image.params, self.beats.payload
        task = Signal(self.tasks.payload.shape())
        active = Signal()
        tile = Signal(range(max(params.tiles, 2)))
        headers_left = Signal(task.headers.shape())

        available = Signal()
        last_tile = Signal()
        sent = Signal()
        m.d.comb += [
            self.sequence.eq(task.sequence),
            self.tile.eq(tile),
            available.eq(tile < Array(self.ready_tiles)[task.sequence]),
            last_tile.eq(tile == task.tiles - 1),
            self.beats.valid.eq(active & available & self.weights.valid),
            sent.eq(self.beats.valid & self.beats.ready),
            self.weights.ready.eq(active & available & self.beats.ready),
            self.tasks.ready.eq(~active | (sent & last_tile & (headers_left == 1))),
            Value.cast(beat.weights).eq(self.weights.payload),
            beat.acts.eq(self.acts),
            beat.last.eq(last_tile),
        ]
        with m.If(sent):
            m.d.sync += tile.eq(Mux(last_tile, 0, tile + 1))
            with m.If(last_tile):
                m.d.sync += headers_left.eq(headers_left - 1)
        with m.If(self.tasks.ready):
            m.d.sync += [
                active.eq(self.tasks.valid), task.eq(self.tasks.payload),
                headers_left.eq(self.tasks.payload.headers)]

        # The header of the group in progress stands at the memory's output.
        m.submodules.minus_counts = counts = memory.Memory(
            shape=beat.minus_counts.shape(), depth=max(len(self.image.minus_counts), 2),
            init=[beat.minus_counts.shape().from_bits(word)
                  for word in self.image.minus_counts], attrs=BLOCK_ROM)
        read = counts.read_port()
        header = Signal(range(max(len(self.image.minus_counts), 2)))
        m.d.comb += [
            read.addr.eq(header + (sent & last_tile)),
            beat.minus_counts.eq(read.data),
        ]
        with m.If(self.tasks.valid & self.tasks.ready):
            m.d.comb += read.addr.eq(self.tasks.payload.first_header)
        m.d.sync += header.eq(read.addr)
        return m
