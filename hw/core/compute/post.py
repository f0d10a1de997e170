"""The post-processor: turns sums into results by scale, shift and bias."""

from __future__ import annotations

from functools import reduce
from operator import or_

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.compute.block_memory import read_block_rom, read_ring
from sterna.hw.core.compute.norm import scale_layout
from sterna.hw.core.compute.queues import arrivals
from sterna.hw.core.image.program import ProgramImage
from sterna.hw.core.image.reader import header_fill_layout
from sterna.hw.core.params.geometry import ADDED, FRONT_STEPS, LEAVES, MAX_SLOTS, Geometry
from sterna.hw.parts.memory_attributes import NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.parts.requantize import Requantize
from sterna.model.quantized.plan import StageKind

__all__ = ["Post", "result_layout", "sum_tap"]

_FIELDS = {StageKind.MLGRU: "z", StageKind.GLU: "z", StageKind.HEAD: "logits",
           **dict.fromkeys(ADDED, "update")}


def _fields(params: Geometry) -> dict[str, int]:
    """Signed bits of the results of each kind of stage in the program, by field."""
    return {_FIELDS[kind]: bits for kind, bits in params.result_bits.items()}


def result_layout(params: Geometry) -> StructLayout:
    """Results of ``post_lanes`` rows, saturated to each of their formats, and their tag; with a
    trace also unsaturated."""
    lanes = params.post_lanes
    return StructLayout({
        "tag": params.tag_layout,
        **{name: ArrayLayout(signed(bits), lanes) for name, bits in _fields(params).items()},
        **({"full": ArrayLayout(signed(params.requantize.full_bits), lanes)}
           if params.trace else {})})


def sum_tap(params: Geometry) -> StructLayout:
    """Trace lane: the dot products of some rows."""
    return params.tap_layout(acc=ArrayLayout(signed(params.sum_bits), params.post_lanes))


class Post(wiring.Component):
    """Requantises the sums of the array, ``post_lanes`` per cycle.

    Sums wait until the scales of their sequence are known and there is room for their results;
    from then on nothing stalls.

    Members
    -------
    jobs : ``In(stream.Signature(1))``
        The next phase.
    stages : ``In(params.stage_layout).array(phases)``
    scales, scales_valid, scaled, scaled_phase : ``In``
        Scales from the norm.
    fresh, fresh_phase : ``In(1)``
        Invalidates the scales of a phase.
    sums : ``In(stream.Signature(params.sum_layout))``
    cell_room, begins : ``In(1)``, ``Out(1)``
        There is room for the pre-activations of a group of every sequence; such a group begins.
    logit_room, takes_logits : ``In(1)``, ``Out(1)``
        There is room for a beat of logits; such a beat is taken.
    fill : ``In(header_fill_layout(params))``, with a port
        Prefetched biases and numbers of -1 weights: they precede the weights.
    header_used : ``Out(1)``
        The header of a group was used for the last sequence.
    results, results_valid : ``Out``
    coming : ``Out(params.tag_layout)``
        Tag of the results ``params.requantize.latency`` cycles later, if there are any; of the
        current ones if sums are not requantised.
    tap : ``Out(sum_tap(params))``, with a trace
    """

    def __init__(self, image: ProgramImage) -> None:
        self.image = image
        self.params = params = image.params
        super().__init__({
            "jobs": In(stream.Signature(1)),
            "stages": In(params.stage_layout).array(params.phases),
            "scales": In(scale_layout(params)),
            "scales_valid": In(1),
            "scaled": In(1),
            "scaled_phase": In(1),
            "fresh": In(1),
            "fresh_phase": In(1),
            "sums": In(stream.Signature(params.sum_layout)),
            "cell_room": In(1),
            "logit_room": In(1),
            "begins": Out(1),
            "takes_logits": Out(1),
            "results": Out(result_layout(params)),
            "results_valid": Out(1),
            "coming": Out(params.tag_layout),
            "header_used": Out(1),
            **({"tap": Out(sum_tap(params))} if params.trace else {}),
        } | ({"fill": In(header_fill_layout(params))} if params.port_bits else {}))

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))
        tag = Signal(params.tag_layout)
        header = Signal(range(params.ring if params.port_bits else max(params.most_biases, 2)))
        taken, part = self._take(m, tag, header)

        word = self._headers(m, steps, header, part)
        sums = Array(
            Cat(self.sums.payload[lane] for lane in range(first, first + params.post_lanes))
            for first in range(0, params.rows, params.post_lanes))[part]
        sums = ArrayLayout(signed(params.sum_bits), params.post_lanes)(
            steps.delay(sums, FRONT_STEPS, "sums"))
        # Their consumer, requantiser or queue of heads, begins with a register.
        accs = [(sum_ + each.minus)[:params.sum_bits].as_signed()
                for sum_, each in zip(sums, word, strict=True)]
        valid = steps.flags(taken, FRONT_STEPS, "taken")[-1]
        m.d.comb += Value.cast(self.coming).eq(steps.delay(tag, FRONT_STEPS, "tag"))
        if params.limits.requantizes:
            self._requantize(m, steps, valid, accs, word, tag)
        else:
            m.d.comb += [self.results_valid.eq(valid), self.results.tag.eq(self.coming),
                         *(self.results.logits[lane].eq(acc) for lane, acc in enumerate(accs))]
        if params.trace:
            m.d.comb += [
                self.tap.valid.eq(valid),
                *(self.tap.acc[lane].eq(acc) for lane, acc in enumerate(accs)),
                self.tap.sequence.eq(params.sequence_of(
                    self.coming.phase, self.coming.sequence))]
        return m

    def _requantize(self, m, steps, valid, accs, word, tag):
        params, numbers = self.params, self.params.requantize
        m.submodules.requantise = unit = Requantize(numbers)
        inputs, results = unit.accs.payload, unit.results.payload
        stage = Array(self.stages)[tag.phase]
        shift = Array(stage.shift[i] for i in range(MAX_SLOTS))[tag.slot]
        m.d.comb += [
            unit.accs.valid.eq(valid),
            inputs.scale.eq(self._scales(m, steps, tag)),
            inputs.tag.eq(self.coming),
            self.results_valid.eq(unit.results.valid),
            Value.cast(self.results.tag).eq(results.tag),
        ]
        if numbers.select_bits:
            m.d.comb += inputs.shift.eq(steps.delay(shift, FRONT_STEPS, "shift"))
        if params.trace:
            m.d.comb += self.results.full.eq(results.full)
        for lane, acc in enumerate(accs):
            m.d.comb += [
                inputs.acc[lane].eq(acc),
                inputs.bias[lane].eq(word[lane].bias)]
            for name, bits in _fields(params).items():
                m.d.comb += self.results[name][lane].eq(numbers.narrowed(results, lane, bits))

    def _take(self, m, tag, header):
        """Take sums beat by beat; return (whether one is taken, the part of the sums)."""
        params = self.params
        active, taken = Signal(), Signal()
        part = Signal(range(max(params.row_beats, 2)))
        group = Signal(range(max(params.most_beats // params.row_beats, 2)))
        left = Signal(range(params.most_headers + 1))
        counts = arrivals(m, self, self.scaled, self.scaled_phase)

        # State of the next beat, known a cycle ahead; none is ready without a job.
        ready, is_head, begins, last_header = Signal(), Signal(), Signal(), Signal()
        last_slot_number = Signal(2)
        last_part, last_sequence, last_slot = Signal(), Signal(), Signal()
        sequence_ends, group_ends = Signal(), Signal()
        m.d.comb += [
            last_part.eq(part == params.row_beats - 1),
            last_sequence.eq(tag.sequence == params.batch - 1),
            last_slot.eq(tag.slot == last_slot_number),
            taken.eq(ready & self.sums.valid
                     & Mux(is_head, self.logit_room, self.cell_room | ~begins)),
            self.sums.ready.eq(taken & last_part),
            self.begins.eq(taken & begins),
            self.takes_logits.eq(taken & is_head),
            sequence_ends.eq(taken & last_part),
            group_ends.eq(sequence_ends & last_sequence),
            self.header_used.eq(group_ends),
            self.jobs.ready.eq(~active | (group_ends & last_header)),
            tag.beat.eq(Cat(part, group) if params.row_beats > 1 else group),
            tag.first.eq((group == 0) & (part == 0)),
            # The last header is that of the last slot of the last group.
            tag.last.eq(last_part & last_header),
        ]
        with m.If(taken):
            m.d.sync += [part.eq(Mux(last_part, 0, part + 1)), begins.eq(0)]
        m.d.sync += ready.eq(tag.sequence < counts[tag.phase])
        with m.If(sequence_ends):
            following = Mux(last_sequence, 0, tag.sequence + 1)
            m.d.sync += [tag.sequence.eq(following), ready.eq(following < counts[tag.phase])]
        with m.If(group_ends):
            m.d.sync += [left.eq(left - 1), last_header.eq(left == 2), header.eq(header + 1),
                         tag.slot.eq(Mux(last_slot, 0, tag.slot + 1)),
                         # Only stages with several slots use the cells.
                         begins.eq(last_slot & last_slot_number.any())]
            with m.If(last_slot):
                m.d.sync += group.eq(group + 1)
        with m.If(self.jobs.ready):
            stage = Array(self.stages)[self.jobs.payload]
            m.d.sync += [
                active.eq(self.jobs.valid), tag.phase.eq(self.jobs.payload), group.eq(0),
                ready.eq(self.jobs.valid & counts[self.jobs.payload].any()),
                left.eq(stage.headers), last_header.eq(stage.headers == 1),
                tag.kind.eq(stage.kind),
                is_head.eq(reduce(or_, (stage.kind == kind for kind in LEAVES
                                        if kind in params.result_bits))),
                last_slot_number.eq(stage.last_slot),
                begins.eq(stage.last_slot.any())]
            if not params.port_bits:
                m.d.sync += header.eq(stage.header)
        return taken, part

    def _headers(self, m, steps, header, part):
        """Return biases and numbers of -1 weights, ``FRONT_STEPS`` after their address: one step
        is for routing from the memory."""
        params = self.params
        bits = params.row_beats.bit_length() - 1
        address = Cat(part[:bits], header)
        word = self._read_ring(m, steps, address) if params.port_bits else read_block_rom(
            m, steps, "headers", self.image.headers, params.header_layout.size,
            params.most_biases * params.row_beats, address, small=params.compact)
        return params.header_layout(steps.register(word, "headers_word"))

    def _read_ring(self, m, steps, address):
        params, fill = self.params, self.fill
        port, size = params.port_bits, params.header_layout.size
        word = Signal(size, reset_less=True)
        for part in range(params.header_parts):
            with m.If(fill.part == part):
                m.d.sync += word[port * part:port * part + port].eq(fill.bits)
        return read_ring(
            m, steps, "headers", word, params.ring * params.row_beats, fill, address)

    def _scales(self, m, steps, tag):
        """Return the scale of a beat, ``FRONT_STEPS`` after the beat."""
        params, scales = self.params, self.scales
        m.submodules.scales = store = memory.Memory(
            shape=unsigned(params.profile.scale_bits), depth=params.sequences * 4, init=[],
            attrs=NEVER_COLLIDES)
        write, read = store.write_port(), store.read_port(domain="comb")
        m.d.comb += [
            write.addr.eq(Cat(scales.slot, params.sequence_of(scales.phase, scales.sequence))),
            write.data.eq(scales.scale),
            write.en.eq(self.scales_valid),
            read.addr.eq(steps.delay(
                Cat(tag.slot, params.sequence_of(tag.phase, tag.sequence)), 1, "scale_of")),
        ]
        return steps.delay(read.data, FRONT_STEPS - 1, "scale")
