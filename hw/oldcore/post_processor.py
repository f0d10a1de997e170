"""From sums to fixed-point numbers, and on to the unit that takes them."""

from __future__ import annotations

from amaranth.hdl import Array, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.core_params import MAX_SLOTS, StageKind
from sterna.hw.core.queues import BypassFifo
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.plan.core_units import SCALE_HOLD, CoreUnits, scale_latency
from sterna.hw.oldcore.plan.image import CoreImage, result_tag_layout, task_layout
from sterna.hw.parts.arithmetic import round_shift
from sterna.hw.parts.memory_attributes import BLOCK_ROM
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.parts.requantize import Requantize, RequantizeParams

__all__ = ["PostProcessor", "ResultRouter", "ScaleUnit", "requantize_params", "result_layout"]


class ScaleUnit(wiring.Component):
    """``A = rs(V * K, combine_shift)``: ``sterna.model.quantized.integer.combine_scale``.

    One multiplier makes the scales of a stage one after the other. The first is known
    :attr:`latency` cycles after V was offered, the others in the cycles after it, which is soon
    enough: the sums of slot i are not used before those of slot i - 1. V is taken :attr:`hold`
    cycles after it was offered, when the last scale is made. A fits its width:
    ``combined_scale_max`` of :class:`~sterna.model.profile.NumericProfile`.
    """

    hold = SCALE_HOLD

    def __init__(self, params: CoreParams) -> None:
        self.params = params
        self.latency = scale_latency(params)
        profile, norm = params.profile, CoreUnits(params).norm
        super().__init__({
            "norms": In(stream.Signature(norm.scale_layout)),
            "mantissas": In(ArrayLayout(unsigned(profile.mantissa_bits), MAX_SLOTS)).array(
                params.sequences),
            # Forget the scales of a sequence; the next V is for new ones. Its mantissas must be
            # there two cycles before that V.
            "clear": In(1),
            "clear_sequence": In(params.index_bits),
            "scales": Out(ArrayLayout(unsigned(profile.scale_bits), MAX_SLOTS)).array(
                params.sequences),
            "known": Out(1).array(params.sequences),
            # A scale, in the cycle in which it is stored.
            "written": Out(1),
            "written_sequence": Out(params.index_bits),
            "written_scale": Out(unsigned(profile.scale_bits)),
        })

    def elaborate(self, platform):
        m = Module()
        params, profile, norm = self.params, self.params.profile, self.norms.payload
        steps = Pipeline(m, Const(1))
        sequence = Signal(params.index_bits)
        if params.sequence_bits:
            with m.If(self.clear):
                m.d.sync += sequence.eq(self.clear_sequence)

        # V stands still until the last slot, so that it is an operand as it is. The other
        # operand is ready before V comes.
        slot = Signal(2)
        following = Signal(2)
        m.d.comb += [
            following.eq(slot),
            self.norms.ready.eq(slot == MAX_SLOTS - 1),
        ]
        with m.If(self.norms.valid):
            m.d.comb += following.eq(Mux(self.norms.ready, 0, slot + 1))
        m.d.sync += slot.eq(following)
        slots = range(MAX_SLOTS)
        mantissas = Array(Array(each[i] for i in slots) for each in self.mantissas)
        way = self.latency - 2
        mantissa = steps.register(mantissas[sequence][following], "mantissa")
        product = steps.register(
            steps.delay(norm.v, way, "v") * steps.delay(mantissa, way, "mantissa"), "product")
        slot_of_product = steps.delay(slot, 1 + way, "slot_of_product")
        multiplied = steps.flags(self.norms.valid, 1 + way, "multiplied")[-1]
        # The next sequence may be cleared while the last scales of this one are on their way.
        multiplied_sequence = steps.delay(
            sequence, way if params.sequence_bits else 0, "multiplied_sequence")

        scale = round_shift(product, profile.combine_shift)[:profile.scale_bits]
        m.d.comb += [
            self.written.eq(multiplied),
            self.written_sequence.eq(multiplied_sequence),
            self.written_scale.eq(scale),
        ]
        scales = Array(Array(each[i] for i in slots) for each in self.scales)
        with m.If(multiplied):
            m.d.sync += [
                scales[multiplied_sequence][slot_of_product].eq(scale),
                Array(self.known)[multiplied_sequence].eq(1),
            ]
        with m.If(self.clear):
            m.d.sync += Array(self.known)[self.clear_sequence].eq(0)
        return m


_BIAS_STEPS = 2
"""Steps by which biases come after their sums: which is read, and the memory's output register."""


def requantize_params(image: CoreImage) -> RequantizeParams:
    params = image.params
    widest, *narrower = sorted(set(_result_bits(image).values()), reverse=True)
    return RequantizeParams(
        params.mac.sum_bits, params.profile.scale_bits, image.bias_bits, widest, image.shifts,
        params.rows, tuple(narrower), result_tag_layout(image).size, params.trace,
        stalls=False, bias_late=_BIAS_STEPS)


def result_layout(image: CoreImage) -> StructLayout:
    """Return the payload of results: what the requantiser gives, and its tag taken apart."""
    layout = requantize_params(image).result_layout
    trace = ("value", "full") if image.params.trace else ()
    return StructLayout({
        "result": layout, "tag": result_tag_layout(image),
        **{name: layout[name].shape for name in trace}})


def _result_bits(image: CoreImage) -> dict[StageKind, int]:
    profile = image.params.profile
    return {
        StageKind.MLGRU: profile.z.bits, StageKind.GLU: profile.z.bits,
        StageKind.RESIDUAL: profile.x.bits + 1, StageKind.HEAD: profile.logit.bits}


class PostProcessor(wiring.Component):
    """Requantises the sums of the array, ``rows`` a cycle, in the order of the tasks.

    The sums of a task wait until its scales are known and, where they make logits, until there
    is room for these: from then on nothing stalls. A result leaves in the widest of all formats;
    whoever takes it narrows it to that of its stage
    (:meth:`~sterna.hw.parts.requantize.RequantizeParams.narrowed`). What is added to the
    residual stream is one bit wider than that (saturating there changes no sum, see
    :class:`~sterna.hw.units.residual.ResidualAdd`).
    """

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        params = image.params
        scales = ArrayLayout(unsigned(params.profile.scale_bits), MAX_SLOTS)
        super().__init__({
            "tasks": In(stream.Signature(task_layout(image))),
            "sums": In(stream.Signature(params.mac.sum_layout)),
            "scales": In(scales).array(params.sequences),
            "scales_known": In(1).array(params.sequences),
            # Logits may be made: there is room for those of this cycle and of the next, and for
            # all that are on the way.
            "room": In(1).array(params.sequences),
            # With their tag; with a trace each in its own format, and unsaturated.
            "results": Out(stream.Signature(result_layout(image), always_ready=True)),
            # The sums are taken in this cycle, and whose they are.
            **({"scaled": Out(1), "scaled_sequence": Out(params.index_bits)}
               if params.trace else {}),
        })

    def elaborate(self, platform):
        m = Module()
        numbers = requantize_params(self.image)
        m.submodules.requantise = requantize = Requantize(numbers)
        task = Signal(self.tasks.payload.shape())
        active = Signal()
        slot = Signal(2)
        headers_left = Signal(task.headers.shape())

        taken = Signal()
        known = Signal()
        # Known a cycle ahead, so that little stands between the scale and the products.
        last = Signal()
        needs_room = Signal()
        in_first_group = Signal()
        m.d.comb += [
            known.eq(active & Array(self.scales_known)[task.sequence]
                     & (~needs_room | Array(self.room)[task.sequence])),
            self.sums.ready.eq(known),
            taken.eq(self.sums.valid & known),
            self.tasks.ready.eq(~active | (taken & last)),
        ]
        with m.If(taken):
            m.d.sync += [
                slot.eq(Mux(slot == task.last_slot, 0, slot + 1)),
                headers_left.eq(headers_left - 1), last.eq(headers_left == 2)]
            with m.If(slot == task.last_slot):
                m.d.sync += in_first_group.eq(0)
        with m.If(self.tasks.ready):
            incoming = self.tasks.payload
            m.d.sync += [
                active.eq(self.tasks.valid), task.eq(incoming),
                headers_left.eq(incoming.headers), last.eq(incoming.headers == 1),
                needs_room.eq(incoming.kind == StageKind.HEAD), slot.eq(0), in_first_group.eq(1)]

        self._feed(m, requantize, task, slot, taken, task.start & in_first_group, last)
        results = requantize.results
        m.d.comb += [
            self.results.valid.eq(results.valid),
            self.results.payload.result.eq(results.payload),
            Value.cast(self.results.payload.tag).eq(results.payload.tag),
        ]
        if numbers.trace:
            m.d.comb += [self.scaled.eq(taken), self.scaled_sequence.eq(task.sequence)]
            self._show(m, numbers, results.payload)
        return m

    def _feed(self, m, unit, task, slot, taken, start, last):
        """Bring the requantiser the sums that are taken, their biases, scale, shift and tag."""
        accs = unit.accs
        biases = self._biases(m, taken)
        tag = Signal(result_tag_layout(self.image))
        slots = range(MAX_SLOTS)
        scale = Array(Array(each[i] for i in slots) for each in self.scales)[task.sequence][slot]
        # What comes from far goes through a register first.
        way = Pipeline(m, Const(1))
        far = self.image.params.routing_registers
        m.d.comb += [
            accs.valid.eq(way.flags(taken, far, "arrived")[-1]),
            Value.cast(accs.payload.acc).eq(way.delay(Value.cast(self.sums.payload), far, "sums")),
            accs.payload.bias.eq(way.delay(biases, far, "biases")),
            accs.payload.scale.eq(way.delay(scale, far, "scale")),
            tag.kind.eq(task.kind),
            tag.slot.eq(slot),
            tag.last.eq(last),
            tag.start.eq(start),
            tag.sequence.eq(task.sequence),
            accs.payload.tag.eq(way.delay(tag, far, "tag")),
        ]
        if unit.params.select_bits:
            m.d.comb += accs.payload.shift.eq(
                way.delay(Array(task.shift[i] for i in slots)[slot], far, "shift"))

    def _show(self, m, numbers, results):
        """Show results unsaturated, and each in the format of its stage."""
        bits = _result_bits(self.image)
        m.d.comb += self.results.payload.full.eq(results.full)
        for row in range(numbers.lanes):
            m.d.comb += self.results.payload.value[row].eq(Array(
                numbers.narrowed(results, row, bits[kind])
                for kind in StageKind)[self.results.payload.tag.kind])

    def _biases(self, m, taken):
        """Return the biases of the group in progress, ``_BIAS_STEPS`` after ``taken``."""
        image = self.image
        depth = max(len(image.biases), 2)
        shape = ArrayLayout(signed(image.bias_bits), image.params.rows)
        m.submodules.biases = rom = memory.Memory(
            shape=shape, depth=depth, init=[shape.from_bits(word) for word in image.biases],
            attrs=BLOCK_ROM)
        read = rom.read_port()
        steps = Pipeline(m, Const(1))
        following = Signal(range(depth))
        begins = steps.flags(self.tasks.valid & self.tasks.ready, 1, "begins")[-1]
        taken = steps.flags(taken, 1, "bias_taken")[-1]
        first = steps.register(self.tasks.payload.first_header, "first_header")
        m.d.comb += [
            read.en.eq(begins | taken),
            read.addr.eq(Mux(begins, first, following)),
        ]
        with m.If(begins):
            m.d.sync += following.eq(first + 1)
        with m.Elif(taken):
            m.d.sync += following.eq(following + 1)
        return shape(steps.register(read.data, "bias_word"))


class ResultRouter(wiring.Component):
    """Takes words of results, ``rows`` channels each, and feeds the unit of their stage.

    f and c wait for g, gate waits for up: the unit gets a beat in the cycle in which the last of
    them arrives. All units are always ready. Logits that leave the core wait in a queue, and
    ``room`` tells whether more of them may be made; a sampler alone never waits, for it has
    chosen a token before the next vector begins.
    """

    def __init__(self, image: CoreImage) -> None:
        self.params = params = image.params
        self._units = units = CoreUnits(params)
        self._numbers = requantize_params(image)
        logit = signed(params.profile.logit.bits)
        self.logit_layout = StructLayout({"logits": ArrayLayout(logit, params.rows), "last": 1})

        super().__init__({
            "results": In(stream.Signature(result_layout(image), always_ready=True)),
            "preacts": Out(stream.Signature(units.mlgru.preact_layout)),
            "gates": Out(stream.Signature(units.glu.preact_layout)),
            "updates": Out(stream.Signature(units.residual.update_layout)).array(params.sequences),
            "logits": Out(stream.Signature(self.logit_layout)).array(params.sequences),
            # For all logits on the way, and for two words more.
            "room": Out(1).array(params.sequences),
        })

    def elaborate(self, platform):
        m = Module()
        params, profile, numbers = self.params, self.params.profile, self._numbers
        result, tag = self.results.payload.result, self.results.payload.tag
        queues = [self._queue(m, sequence) for sequence in range(params.sequences)]

        # Pre-activations that wait, and those that have just come.
        first, second, third = (
            Signal(ArrayLayout(signed(profile.z.bits), params.rows), name=name, reset_less=True)
            for name in ("first", "second", "third"))
        preacts, gates = self.preacts.payload, self.gates.payload
        for row in range(params.rows):
            m.d.comb += [
                third[row].eq(numbers.narrowed(result, row, profile.z.bits)),
                preacts.f[row].eq(first[row]),
                preacts.c[row].eq(second[row]),
                preacts.g[row].eq(third[row]),
                gates.gate[row].eq(first[row]),
                gates.up[row].eq(third[row]),
            ]
            for sequence, queue in enumerate(queues):
                m.d.comb += [
                    self.updates[sequence].payload.y[row].eq(
                        numbers.narrowed(result, row, profile.x.bits + 1)),
                    queue.payload.logits[row].eq(
                        numbers.narrowed(result, row, profile.logit.bits)),
                ]
        m.d.comb += [preacts.start.eq(tag.start), gates.last.eq(tag.last)]
        if params.sequence_bits:
            m.d.comb += [preacts.sequence.eq(tag.sequence), gates.sequence.eq(tag.sequence)]
        for queue in queues:
            m.d.comb += queue.payload.last.eq(tag.last)

        def is_for(kind, slot=None):
            here = self.results.valid & (tag.kind == kind if kind else ~tag.kind.any())
            return here if slot is None else here & (tag.slot == slot)

        m.d.comb += [
            self.preacts.valid.eq(is_for(StageKind.MLGRU, 2)),
            self.gates.valid.eq(is_for(StageKind.GLU, 1)),
        ]
        for sequence, queue in enumerate(queues):
            ours = tag.sequence == sequence
            m.d.comb += [
                self.updates[sequence].valid.eq(is_for(StageKind.RESIDUAL) & ours),
                queue.valid.eq(is_for(StageKind.HEAD) & ours),
            ]
        # They wait for results of their own stage only, and what comes in between does not
        # matter.
        with m.If(self.results.valid & ~tag.slot.any()):
            m.d.sync += first.eq(third)
        with m.If(self.results.valid & (tag.slot == 1)):
            m.d.sync += second.eq(third)
        return m

    def _queue(self, m, sequence):
        """Make the queue of the logits of a sequence, if they need one; return its input."""
        logits = self.logits[sequence]
        units = self._units
        if not units.waiting_logits:
            m.d.comb += self.room[sequence].eq(1)
            return logits
        m.submodules[f"logits{sequence}"] = queue = BypassFifo(
            self.logit_layout, depth=units.waiting_logits)
        held = Signal(range(units.waiting_logits + 1))
        came = queue.incoming.valid
        went = queue.outgoing.valid & queue.outgoing.ready
        following = Signal.like(held)
        m.d.comb += following.eq(held + came - went)
        m.d.sync += [
            held.eq(following),
            self.room[sequence].eq(held <= units.waiting_logits - units.logits_on_the_way)]
        wiring.connect(m, queue.outgoing, wiring.flipped(logits))
        return queue.incoming
