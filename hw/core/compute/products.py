"""Multiply ternary matrices by the vectors of a phase: column clusters and the beat issuer."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.compute.block_memory import read_block_rom, read_ring
from sterna.hw.core.compute.norm import act_layout, coming_layout
from sterna.hw.core.compute.queues import BypassFifo, arrivals, has_room
from sterna.hw.core.image.program import ProgramImage, cluster_words
from sterna.hw.core.image.reader import weight_fill_layout
from sterna.hw.core.params.geometry import Geometry
from sterna.hw.parts.memory_attributes import BLOCK_RAM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.mac.array_style import CHAIN_COLUMNS, ArrayStyle
from sterna.hw.units.mac.ecp5_rows import CHOOSE, CarryChains, Half
from sterna.hw.units.mac.mac_array import ROWS

__all__ = ["Products"]


def beat_layout(params: Geometry) -> StructLayout:
    """Control fields of a beat; ``first`` and ``last`` tile of a group."""
    return StructLayout({
        "valid": 1, "first": 1, "last": 1, "phase": 1, "sequence": params.batch_bits,
        "tile": range(max(params.tiles, 2)),
        "weight": range(params.ring if params.port_bits else max(params.most_weights, 2))})


class Cluster(wiring.Component):
    """Some columns of the array: their weights and activations, an adder tree for each row.

    Beats, and the row sums one register later, pass from cluster to cluster, a cycle each.
    Weights read through a port pass the same way, with a constant lead over the beats.
    """

    def __init__(self, image: ProgramImage, index: int) -> None:
        self.params = params = image.params
        self._weights = cluster_words(image.weights, params, index)
        self._index = index
        self.cols = params.mac.cols
        partial = ArrayLayout(signed(params.operand_bits), params.rows)
        super().__init__({
            "beat": In(beat_layout(params)),
            "next_beat": Out(beat_layout(params)),
            "acts": In(act_layout(params)),
            "acts_valid": In(1),
            "partial": In(partial),
            "total": Out(partial),
        } | ({"fill": In(weight_fill_layout(params)),
              "next_fill": Out(weight_fill_layout(params))} if params.port_bits else {}))

    def elaborate(self, platform):
        m = Module()
        params, beat = self.params, self.beat
        steps = Pipeline(m, Const(1))
        m.d.sync += self.next_beat.eq(beat)

        if params.port_bits:
            word = self._read_ring(m, steps)
        else:
            word = read_block_rom(
                m, steps, "weights", self._weights, 2 * params.rows * self.cols,
                params.most_weights, beat.weight, small=params.compact)
        acts = self._activations(m, steps)

        # In a chain a column is added a step after the one before it.
        if params.style is ArrayStyle.ECP5_CHAIN:
            acts = [steps.delay(act, column % CHAIN_COLUMNS, f"act{column}")
                    for column, act in enumerate(acts)]
        layout = ArrayLayout(params.mac.weight_layout, params.rows)
        for index, weights in enumerate(layout(word)):
            m.submodules[f"row{index}"] = row = ROWS[params.style](params.mac, bare=True)
            m.d.comb += [
                row.advance.eq(1),
                Value.cast(row.weights).eq(Value.cast(weights)),
                *(mine.eq(act) for mine, act in zip(row.acts, acts, strict=True)),
            ]
            total = row.sum + (self.partial[index] if self._index else 0)
            m.d.comb += self.total[index].eq(
                steps.register(total[:params.operand_bits].as_signed(), f"total{index}"))
        return m

    def _read_ring(self, m, steps):
        """Return the beat's weight word, two cycles later."""
        params, fill = self.params, self.fill
        m.d.sync += self.next_fill.eq(fill)
        codes = ArrayLayout(ArrayLayout(2, self.cols), params.rows)
        word = Signal(codes, reset_less=True)
        for row in range(params.rows):
            for column in range(self.cols):
                place = row * params.cols + self._index * self.cols + column
                with m.If(fill.part == place // params.port_trits):
                    m.d.sync += word[row][column].eq(fill.codes[place % params.port_trits])
        return read_ring(m, steps, "weights", word, params.ring, fill, self.beat.weight)

    def _activations(self, m, steps):
        """Return the beat's tile of activations, two cycles later."""
        params, beat, acts = self.params, self.beat, self.acts
        chunks = self.cols // params.quant_lanes
        m.submodules.acts = store = memory.Memory(
            shape=ArrayLayout(signed(params.profile.act_bits), self.cols),
            depth=params.sequences << len(beat.tile), init=[], attrs=BLOCK_RAM | NEVER_COLLIDES)
        write, read = store.write_port(granularity=params.quant_lanes), store.read_port()
        for chunk in range(chunks):
            m.d.comb += write.en[chunk].eq(
                self.acts_valid & (acts.chunk == self._index * chunks + chunk))
        for column in range(self.cols):
            m.d.comb += write.data[column].eq(acts.q[column % params.quant_lanes])
        m.d.comb += [
            write.addr.eq(Cat(acts.tile, params.sequence_of(acts.phase, acts.sequence))),
            read.addr.eq(Cat(beat.tile, params.sequence_of(beat.phase, beat.sequence))),
            read.en.eq(1),
        ]
        return store.shape(steps.register(read.data, "acts"))


class Products(wiring.Component):
    """Multiplies the vectors of a phase by the matrices of its stage.

    A beat is a tile of the columns of ``rows`` rows, for one sequence: the sequences of the phase
    take turns on each weight word. A beat is issued once its activations are available, and the
    last beat of a sum only if the output queue has room.

    Members
    -------
    jobs : ``In(stream.Signature(1))``
        The next phase.
    stages : ``In(params.stage_layout).array(phases)``
        The current stage of each phase.
    acts, acts_valid : ``In``
        Activations, chunk by chunk.
    coming, coming_valid : ``In``
        ``phase``, ``tile_ends`` and ``last`` of the next cycle's activations.
    fresh, fresh_phase : ``In(1)``
        Invalidates the vectors of a phase.
    fill : ``In(weight_fill_layout(params))``, with a port
        Prefetched weights.
    word_used : ``Out(1)``
        A weight word was used for the last sequence.
    sums : ``Out(stream.Signature(params.sum_layout))``
        Ordered by group, slot, sequence.
    """

    def __init__(self, image: ProgramImage) -> None:
        self.image = image
        self.params = params = image.params
        super().__init__({
            "jobs": In(stream.Signature(1)),
            "stages": In(params.stage_layout).array(params.phases),
            "acts": In(act_layout(params)),
            "acts_valid": In(1),
            "coming": In(coming_layout()),
            "coming_valid": In(1),
            "fresh": In(1),
            "fresh_phase": In(1),
            "word_used": Out(1),
            "sums": Out(stream.Signature(params.sum_layout)),
        } | ({"fill": In(weight_fill_layout(params))} if params.port_bits else {}))

    def elaborate(self, platform):
        m = Module()
        params = self.params
        beat = Signal(beat_layout(params))
        self._issue(m, beat)
        self._array(m, beat)
        return m

    def _are_there(self, m):
        """Return a predicate: the activations of a tile of a sequence are available, or arrive in
        this cycle, provided that the earlier ones do."""
        params, coming = self.params, self.coming
        counts = arrivals(m, self, self.coming_valid & coming.last, coming.phase)
        tiles = Signal(range(params.tiles + 1))
        phase = Signal()
        with m.If(self.coming_valid):
            m.d.sync += phase.eq(coming.phase)
            with m.If(coming.last):
                m.d.sync += tiles.eq(0)
            with m.Elif(coming.tile_ends):
                m.d.sync += tiles.eq(tiles + 1)
        return lambda whose, sequence, tile: (sequence < counts[whose]) | (
            (sequence == counts[whose]) & (phase == whose) & (tile < tiles))

    def _has_word(self, m):
        """Whether the beat's weight word is in the first cluster; it reaches each other cluster
        no later than the beat."""
        kept, some = Signal(range(self.params.ring + 1)), Signal()
        filled = Pipeline(m, Const(1)).flags(self.fill.valid & self.fill.last, 1, "filled")[-1]
        left = kept + filled - self.word_used
        m.d.sync += [kept.eq(left), some.eq(left != 0)]
        return some

    def _issue(self, m, beat):
        params = self.params
        active, reserve = Signal(), Signal()
        room = has_room(m, params.sum_depth, reserve, self.sums.valid & self.sums.ready)
        are_there = self._are_there(m)
        # State of the next beat, known a cycle ahead; none is ready without a job.
        ready = Signal()
        last_sequence, last_tile, last_header = (
            Signal(init=params.batch == 1), Signal(), Signal())
        tiles = Array(self.stages)[beat.phase].tiles
        headers = Signal(params.stage_layout["headers"].shape)
        sequence_ends, tile_ends, job_ends = Signal(), Signal(), Signal()
        m.d.comb += [
            beat.last.eq(last_tile),
            beat.valid.eq(ready & (room | ~last_tile) & (
                self._has_word(m) if params.port_bits else 1)),
            reserve.eq(beat.valid & last_tile),
            sequence_ends.eq(beat.valid & last_sequence),
            tile_ends.eq(sequence_ends & last_tile),
            job_ends.eq(tile_ends & last_header),
            self.jobs.ready.eq(~active | job_ends),
            self.word_used.eq(sequence_ends),
        ]
        m.d.sync += ready.eq(are_there(beat.phase, beat.sequence, beat.tile))
        with m.If(beat.valid):
            # Once the last sequence is issued, the others have their next tile.
            following = Mux(last_sequence, 0, beat.sequence + 1)
            m.d.sync += [
                beat.sequence.eq(following), last_sequence.eq(following == params.batch - 1),
                ready.eq(are_there(
                    beat.phase, following, beat.tile + (params.batch == 1)))]
        with m.If(sequence_ends):
            m.d.sync += [
                beat.weight.eq(beat.weight + 1), beat.first.eq(last_tile),
                beat.tile.eq(Mux(last_tile, 0, beat.tile + 1)),
                last_tile.eq(Mux(last_tile, tiles == 1, beat.tile + 2 == tiles))]
        with m.If(tile_ends):
            m.d.sync += [headers.eq(headers - 1), last_header.eq(headers == 2)]
        with m.If(self.jobs.ready):
            stage = Array(self.stages)[self.jobs.payload]
            m.d.sync += [
                active.eq(self.jobs.valid), beat.phase.eq(self.jobs.payload),
                ready.eq(self.jobs.valid & are_there(self.jobs.payload, 0, 0)), beat.first.eq(1),
                headers.eq(stage.headers), last_header.eq(stage.headers == 1),
                last_tile.eq(stage.tiles == 1)]
            if not params.port_bits:
                m.d.sync += beat.weight.eq(stage.weight)

    def _array(self, m, beat):
        """Add the clusters and the accumulators of the sequences."""
        params = self.params
        steps = Pipeline(m, Const(1))
        partial = fill = None
        if params.port_bits:
            fill = self.fill
        for index in range(params.clusters):
            m.submodules[f"cluster{index}"] = cluster = Cluster(self.image, index)
            m.d.comb += [
                cluster.beat.eq(beat),
                cluster.acts.eq(self.acts),
                cluster.acts_valid.eq(self.acts_valid),
            ]
            if partial is not None:
                m.d.comb += cluster.partial.eq(partial)
            beat, partial = cluster.next_beat, cluster.total
            if fill is not None:
                m.d.comb += cluster.fill.eq(fill)
                fill = cluster.next_fill

        # Cycles from the last cluster's next beat to its total.
        latency = params.array_latency - params.clusters - 1
        valid = steps.flags(beat.valid, latency, "valid")[-1]
        first = steps.delay(beat.first, latency, "first")
        last = steps.delay(beat.last, latency, "last")
        sums = Signal(params.sum_layout, reset_less=True)
        before, after = sums, None
        if params.batch > 1:
            m.submodules.kept = kept = memory.Memory(
                shape=params.sum_layout, depth=params.batch, init=[], attrs=NEVER_COLLIDES)
            write, read = kept.write_port(), kept.read_port(domain="comb")
            # Read a cycle ahead: the same sequence was written at least two cycles ago.
            early = steps.delay(beat.sequence, latency - 1, "early")
            m.d.comb += [read.addr.eq(early), write.en.eq(valid),
                         write.addr.eq(steps.delay(early, 1, "sequence"))]
            before = params.sum_layout(steps.register(read.data, "before"))
            after = write.data
        for row in range(params.rows):
            total = self._added(m, row, partial[row], before[row], first)
            with m.If(valid):
                m.d.sync += sums[row].eq(total)
            if after is not None:
                m.d.comb += after[row].eq(total)

        # The issuer ensures that there is room.
        m.submodules.queue = queue = BypassFifo(
            params.sum_layout, depth=params.sum_depth)
        m.d.comb += [
            queue.incoming.valid.eq(steps.flags(valid & last, 1, "ended")[-1]),
            queue.incoming.payload.eq(sums),
        ]
        wiring.connect(m, queue.outgoing, wiring.flipped(self.sums))

    def _added(self, m, row, operand, before, first):
        """Return the partial sum of a row; on the ECP5, with one LUT per bit."""
        bits = self.params.sum_bits
        if self.params.style is not ArrayStyle.ECP5_CHAIN:
            return (Mux(first, 0, before) + operand)[:bits].as_signed()
        wide = Signal(signed(bits), name=f"operand{row}")
        m.d.comb += wide.eq(operand)
        chains = CarryChains(m, f"accumulate{row}", bits + 2)
        total = chains.add([Half(CHOOSE, wide[bit], 0, before[bit], first) for bit in range(bits)])
        chains.finish()
        return total.as_signed()
