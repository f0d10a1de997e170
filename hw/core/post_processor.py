"""From sums to fixed-point numbers: scale, shift and bias of every row."""

from __future__ import annotations

from amaranth.hdl import Array, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.plan.image import CoreImage
from sterna.hw.core.plan.program import MAX_SLOTS, StageKind
from sterna.hw.core.plan.tasks import result_tag_layout, task_layout
from sterna.hw.parts.memory_attributes import BLOCK_ROM
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.parts.requantize import Requantize, RequantizeParams

__all__ = ["PostProcessor", "requantize_params", "result_layout"]

_BIAS_STEPS = 2
"""Steps by which biases come after their sums: which is read, and the memory's output register."""


def requantize_params(image: CoreImage) -> RequantizeParams:
    """Return the widths of the requantiser."""
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
    """Bits of the results of each kind of stage."""
    profile = image.params.profile
    return {
        StageKind.MLGRU: profile.z.bits, StageKind.GLU: profile.z.bits,
        StageKind.RESIDUAL: profile.x.bits + 1, StageKind.HEAD: profile.logit.bits}


class PostProcessor(wiring.Component):
    """Requantises the sums of the array, ``rows`` a cycle, in the order of the tasks.

    The sums of a task wait until its scales are known and, where they make logits, until
    there is room for these: from then on nothing stalls. A result leaves in the widest of
    all formats; whoever takes it narrows it to that of its stage
    (:meth:`~sterna.hw.parts.requantize.RequantizeParams.narrowed`). What is added to the residual
    stream is one bit wider than that (saturating there changes no sum, see
    :class:`~sterna.hw.units.residual.gateware.ResidualAdd`).

    Parameters
    ----------
    image
        Contents of the memories; the biases are kept here.

    Members
    -------
    tasks : ``In(stream.Signature(task_layout(image)))``
    sums : ``In(stream.Signature(mac.sum_layout))``
    scales : ``In(ArrayLayout(unsigned(scale_bits), 3))``, for each sequence
        Scale of each slot of its stage.
    scales_known : ``In(1)``, for each sequence
    room : ``In(1)``, for each sequence
        Logits may be made: there is room for those of this cycle and of the next, and for
        all that are on the way.
    results : ``Out(stream.Signature(result_layout, always_ready=True))``
        ``result`` of the requantiser, and the ``tag`` that says where it goes; with
        ``trace`` also ``value`` of each row in its own format, and ``full``, unsaturated.
    scaled, scaled_sequence : ``Out``, with ``trace``
        The sums are taken in this cycle, and whose they are.
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
            "room": In(1).array(params.sequences),
            "results": Out(stream.Signature(result_layout(image), always_ready=True)),
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
