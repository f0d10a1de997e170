"""Feeding the array: activations in tiles, weights and row headers, joined into beats."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.plan.core_units import CoreUnits
from sterna.hw.oldcore.plan.image import CoreImage, task_layout, weight_request_layout
from sterna.hw.parts.memory_attributes import BLOCK_RAM, BLOCK_ROM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline

__all__ = ["ActivationBuffer", "BeatIssuer", "WeightFeed", "WeightPort"]

class ActivationBuffer(wiring.Component):
    """The quantised vectors that the array multiplies, one for each sequence: gathers chunks
    into tiles of ``cols`` elements.

    A tile can be read in the cycle after its last chunk came, as ``ready_tiles`` says in the
    cycle in which it does. Where a vector ends inside a tile the rest of the tile keeps old
    values: there the weights are zero.
    """

    def __init__(self, params: CoreParams) -> None:
        self.params = params
        self._element = signed(params.profile.act_bits)
        super().__init__({
            "chunks": In(stream.Signature(CoreUnits(params).norm.act_layout)),
            # Forget the vector of a sequence: a new one follows.
            "clear": In(1),
            "clear_sequence": In(params.index_bits),
            "ready_tiles": Out(range(params.tiles + 1)).array(params.sequences),
            # One tile more can be read from the next cycle on.
            "arriving": Out(1).array(params.sequences),
            # What to read; acts are it, params.read_steps steps later.
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


_STEPS = 2
"""Steps from ``take`` to the word: what a block RAM with its output register needs."""


def _members(image: CoreImage) -> dict[str, In | Out]:
    return {
        "advance": In(1),
        "available": Out(1),    # there is a word
        "take": In(1),          # take it in this step; it comes WeightFeed.steps later
        "word": Out(unsigned(image.params.weight_bits)),
    }


class WeightFeed(wiring.Component):
    """The weights of a model in a block ROM, run by run as they are asked for.

    The word that is next is read in every step, so that nothing but a register stands between
    the address and the memory, and nothing at all between the memory and the register behind it.
    The next request is taken with the last word of a run, so that runs follow each other without
    a gap.
    """

    steps = _STEPS

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        super().__init__({
            "requests": In(stream.Signature(weight_request_layout(image))), **_members(image)})

    def elaborate(self, platform):
        m = Module()
        request = self.requests.payload
        m.submodules.rom = rom = memory.Memory(
            shape=unsigned(self.image.params.weight_bits),
            depth=max(len(self.image.weights), 2), init=self.image.weights, attrs=BLOCK_ROM)
        port = rom.read_port()
        steps = Pipeline(m, self.advance)

        address = Signal(request.first.shape(), reset_less=True)
        left = Signal(request.count.shape())
        last = Signal()
        taken = Signal()
        m.d.comb += [
            taken.eq(self.take & self.advance),
            self.requests.ready.eq(~self.available | (taken & last)),
            port.addr.eq(address),
            port.en.eq(self.advance),
            self.word.eq(steps.register(port.data, "word")),
        ]
        with m.If(self.requests.ready):
            m.d.sync += [
                self.available.eq(self.requests.valid), address.eq(request.first),
                left.eq(request.count), last.eq(request.count == 1)]
        with m.Elif(taken):
            m.d.sync += [
                address.eq(address + 1), left.eq(left - 1), last.eq(left == 2)]
        return m


class WeightPort(wiring.Component):
    """Weights that come in through a port, one word after the other."""

    steps = _STEPS

    def __init__(self, image: CoreImage) -> None:
        super().__init__({
            "words": In(stream.Signature(image.params.weight_bits)), **_members(image)})

    def elaborate(self, platform):
        m = Module()
        steps = Pipeline(m, self.advance)
        m.d.comb += [
            self.available.eq(self.words.valid),
            self.words.ready.eq(self.take & self.advance),
            self.word.eq(steps.delay(self.words.payload, self.steps, "word")),
        ]
        return m


class BeatIssuer(wiring.Component):
    """Turns tasks into beats: for each group of rows, the tiles of its columns.

    A beat is issued when its tile is ready, a weight word is available and its sum will find
    room; ``params.feed_steps`` steps later weights, activations and row header, each from a
    register of its own, are at the array. One beat per cycle, from one task to the next as well.
    Nothing behind it ever has to wait for room: who takes sums says so in ``taken``, and at most
    ``most_waiting`` groups of rows are between issuing and that.
    """

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        params = image.params
        self.most_waiting = CoreUnits(params).waiting_sums
        super().__init__({
            "tasks": In(stream.Signature(task_layout(image))),
            "advance": Out(1),
            "available": In(1),
            "take": Out(1),
            "word": In(unsigned(params.weight_bits)),
            "ready_tiles": In(range(params.tiles + 1)).array(params.sequences),
            "arriving": In(1).array(params.sequences),
            # Reading of a tile, a step after it was found ready; it takes params.read_steps.
            "sequence": Out(params.index_bits),
            "tile": Out(range(max(params.tiles, 2))),
            "acts": In(ArrayLayout(signed(params.profile.act_bits), params.cols)),
            "taken": In(1),     # the sums of a group have left the queue behind the array
            "beats": Out(stream.Signature(params.mac.beat_layout)),
            "beat_sequence": Out(params.index_bits),
        })

    def elaborate(self, platform):
        m = Module()
        params, beat = self.image.params, self.beats.payload
        task = Signal(self.tasks.payload.shape())
        active = Signal()
        tile = Signal(range(max(params.tiles, 2)))
        headers_left = Signal(task.headers.shape())
        # Known a cycle ahead, so that little stands between here and the memories.
        last_tile = Signal()
        last_header = Signal()
        room = Signal()

        # The array stops only to load its tables, if it has any.
        steps = Pipeline(m, self.advance)
        tile_ready = Signal()
        m.d.comb += [
            self.advance.eq(self.beats.ready),
            self.sequence.eq(steps.register(task.sequence, "sequence")),
            self.tile.eq(steps.register(tile, "tile")),
            # Tiles arrive in order: the one that does is the first that was not ready.
            tile_ready.eq((tile < Array(self.ready_tiles)[task.sequence]) | (
                (tile == Array(self.ready_tiles)[task.sequence])
                & Array(self.arriving)[task.sequence])),
            self.take.eq(active & tile_ready & room & self.available),
        ]
        issued = Signal()
        group_issued = Signal()
        m.d.comb += [
            issued.eq(self.take & self.advance),
            group_issued.eq(issued & last_tile),
            self.tasks.ready.eq(~active | (group_issued & last_header)),
        ]
        with m.If(issued):
            m.d.sync += [
                tile.eq(Mux(last_tile, 0, tile + 1)),
                last_tile.eq(Mux(last_tile, task.tiles == 1, tile + 2 == task.tiles)),
            ]
            with m.If(last_tile):
                m.d.sync += [
                    headers_left.eq(headers_left - 1), last_header.eq(headers_left == 2)]
        with m.If(self.tasks.ready):
            incoming = self.tasks.payload
            m.d.sync += [
                active.eq(self.tasks.valid), task.eq(incoming), last_tile.eq(incoming.tiles == 1),
                headers_left.eq(incoming.headers), last_header.eq(incoming.headers == 1)]

        self._count_groups(m, group_issued, room)

        # Whatever a beat is made of has a register of its own, and another one in front of
        # the array: what many rows share has a whole cycle to get there.
        last = params.feed_steps
        m.d.comb += [
            self.beats.valid.eq(steps.flags(self.take, last, "issued")[-1]),
            Value.cast(beat[params.mac.weight_name]).eq(
                steps.delay(self.word, last - WeightFeed.steps, "word")),
            Value.cast(beat.acts).eq(steps.delay(
                Value.cast(self.acts), last - 1 - params.read_steps, "acts")),
            beat.last.eq(steps.delay(last_tile, last, "last")),
            self.beat_sequence.eq(steps.delay(task.sequence, last, "beat_sequence")),
        ]
        if params.mac.start_name:
            m.d.comb += Value.cast(beat[params.mac.start_name]).eq(
                self._header(m, steps, group_issued))
        if params.style.has_tables:
            # An array that is not ready may only keep a beat from moving.
            m.d.comb += self.advance.eq(self.beats.ready | ~self.beats.valid)
            m.d.comb += beat.fresh.eq(steps.delay(self._is_fresh(m, task, issued), last, "fresh"))
        return m

    def _count_groups(self, m, group_issued, room):
        """Drive ``room``: whether one group more may be between here and the queue's end.

        Another may be issued before this is seen.
        """
        waiting = Signal(range(self.most_waiting + 1))
        with m.If(group_issued & ~self.taken):
            m.d.sync += waiting.eq(waiting + 1)
        with m.If(~group_issued & self.taken):
            m.d.sync += waiting.eq(waiting - 1)
        m.d.sync += room.eq((waiting < self.most_waiting - 1)
                            | ((waiting == self.most_waiting - 1) & ~group_issued))

    def _is_fresh(self, m, task, issued):
        """Return whether the beat's activations are not those of the beat before."""
        # Of a vector that fits into one tile only the first beat brings something new.
        begun = Signal()
        with m.If(self.tasks.ready):
            m.d.sync += begun.eq(0)
        with m.Elif(issued):
            m.d.sync += begun.eq(1)
        return ~begun | (task.tiles != 1)

    def _header(self, m, steps, group_issued):
        """Return the header of the group that was issued ``feed_steps`` steps ago.

        As for the weights, nothing stands before the memory's address and behind its data.
        """
        headers = self.image.starts
        shape = self.beats.payload[self.image.params.mac.start_name].shape()
        m.submodules.starts = starts = memory.Memory(
            shape=shape, depth=max(len(headers), 2),
            init=[shape.from_bits(word) for word in headers], attrs=BLOCK_ROM)
        read = starts.read_port()
        header = Signal(range(max(len(headers), 2)))
        with m.If(self.tasks.ready):
            m.d.sync += header.eq(self.tasks.payload.first_header)
        with m.Elif(group_issued):
            m.d.sync += header.eq(header + 1)
        m.d.comb += [read.addr.eq(header), read.en.eq(self.advance)]
        return steps.delay(Value.cast(read.data), self.image.params.feed_steps - 1, "header")
