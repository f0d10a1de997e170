"""Making tasks: what a stage of a sequence needs, from the program."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Signal, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.plan.image import CoreImage
from sterna.hw.core.plan.program import MAX_SLOTS
from sterna.hw.core.plan.tasks import task_layout, weight_request_layout
from sterna.hw.core.task_queue import TaskQueue

__all__ = ["Dispatcher"]


class Dispatcher(wiring.Component):
    """Looks up the next stage of a sequence when the norm begins with its vector.

    The program word is there a cycle later, and in the cycle after that the tasks and the
    request for weights stand at the head of their queues, if those were empty. A sequence
    has one stage in progress at most, so a place for each is enough.

    Parameters
    ----------
    image
        Contents of the memories; the program is kept here.

    Members
    -------
    begins, sequence : ``In``
        The norm begins with a vector in this cycle, and whose it is.
    restarts : ``In(1)``, for each sequence
        A token begins: the next stage is the first one.
    starts : ``In(1)``, for each sequence
        Whether its token begins a sequence.
    stages : ``Out``, for each sequence
        Stages of its token that have begun.
    issue_tasks, post_tasks : ``Out(stream.Signature(task_layout(image)))``
        The same tasks, for the issuer of beats and for the post-processor.
    weight_requests : ``Out(stream.Signature(weight_request_layout(image)))``
    mantissas : ``Out(ArrayLayout(unsigned(mantissa_bits), 3))``, for each sequence
        Of the stage that began last.
    """

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        params = image.params
        mantissas = ArrayLayout(unsigned(params.profile.mantissa_bits), MAX_SLOTS)
        super().__init__({
            "begins": In(1),
            "sequence": In(params.index_bits),
            "restarts": In(1).array(params.sequences),
            "starts": In(1).array(params.sequences),
            "stages": Out(range(params.stages + 1)).array(params.sequences),
            "issue_tasks": Out(stream.Signature(task_layout(image))),
            "post_tasks": Out(stream.Signature(task_layout(image))),
            "weight_requests": Out(stream.Signature(weight_request_layout(image))),
            "mantissas": Out(mantissas).array(params.sequences),
        })

    def elaborate(self, platform):
        m = Module()
        image, sequences = self.image, self.image.params.sequences
        shape = image.stage_layout
        m.submodules.program = rom = memory.Memory(
            shape=shape, depth=len(image.stages),
            init=[shape.from_bits(word) for word in image.stages])
        read = rom.read_port()
        current = Array(self.stages)[self.sequence]

        begun = Signal()
        sequence = Signal(self.sequence.shape())
        start = Signal()
        m.d.comb += read.addr.eq(current)
        m.d.sync += [
            begun.eq(self.begins), sequence.eq(self.sequence),
            start.eq(~current.any() & Array(self.starts)[self.sequence])]
        for index in range(sequences):
            with m.If(self.restarts[index]):
                m.d.sync += self.stages[index].eq(0)
            with m.Elif(self.begins & (self.sequence == index)):
                m.d.sync += self.stages[index].eq(self.stages[index] + 1)

        stage = read.data
        task = Signal(task_layout(image))
        request = Signal(weight_request_layout(image))
        m.d.comb += [
            *(task[name].eq(stage[name]) for name in (
                "kind", "last_slot", "tiles", "headers", "first_header", "shift")),
            task.start.eq(start),
            task.sequence.eq(sequence),
            request.first.eq(stage.first_weight),
            request.count.eq(stage.beats),
        ]
        for name, sink, payload in (
            ("issue_queue", self.issue_tasks, task), ("post_queue", self.post_tasks, task),
            ("weight_queue", self.weight_requests, request),
        ):
            m.submodules[name] = queue = TaskQueue(payload.shape(), depth=sequences)
            m.d.comb += [queue.put.eq(begun), queue.payload.eq(payload)]
            wiring.connect(m, queue.head, wiring.flipped(sink))
        for index in range(sequences):
            with m.If(begun & (sequence == index)):
                m.d.sync += self.mantissas[index].eq(stage.k)
        return m
