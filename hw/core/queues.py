"""Queues between the parts of the core."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Shape, Signal, Value
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["BypassFifo", "TaskQueue"]


class BypassFifo(wiring.Component):
    """A first-in first-out queue whose input passes straight through while it is empty.

    Takes a payload per cycle until it holds ``depth``. If it may not fill, its driver keeps
    count of the room, and ``incoming.ready`` says nothing.
    """

    def __init__(self, shape, *, depth: int, may_fill: bool = True) -> None:
        self.depth = depth
        self._may_fill = may_fill
        self._width = Shape.cast(shape).width
        super().__init__({
            "incoming": In(stream.Signature(shape)),
            "outgoing": Out(stream.Signature(shape)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = fifo.SyncFIFO(width=self._width, depth=self.depth)
        room = queue.w_rdy if self._may_fill else 1
        # The same as queue.r_rdy, from a register.
        queued = Signal()
        with m.If(queue.w_en & room):
            m.d.sync += queued.eq(1)
        with m.Elif(queue.r_en):
            m.d.sync += queued.eq(queue.level > 1)
        m.d.comb += [
            self.incoming.ready.eq(room),
            self.outgoing.valid.eq(queued | (self.incoming.valid & room)),
            Value.cast(self.outgoing.payload).eq(
                Mux(queued, queue.r_data, Value.cast(self.incoming.payload))),
            queue.r_en.eq(self.outgoing.ready),
            queue.w_data.eq(Value.cast(self.incoming.payload)),
            queue.w_en.eq(self.incoming.valid & (queued | ~self.outgoing.ready)),
        ]
        return m


class TaskQueue(wiring.Component):
    """A first-in first-out queue: what is put in stands at the head in the next cycle, if it was
    empty. ``head.valid`` and its payload are registers. Its driver puts nothing in unless one of
    its ``depth`` places is free.
    """

    def __init__(self, shape, *, depth: int) -> None:
        self._width, self._depth = Shape.cast(shape).width, depth
        super().__init__({
            "put": In(1), "payload": In(shape), "head": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        # From the head on; those behind a place that is free are free.
        filled = [Signal(name=f"filled{place}") for place in range(self._depth)]
        payloads = [Signal(self._width, name=f"payload{place}", reset_less=True)
                    for place in range(self._depth)]
        taken = self.head.valid & self.head.ready
        behind = [*filled[1:], Const(0, 1)]
        stays = [Mux(taken, behind[place], filled[place]) for place in range(self._depth)]
        for place, payload in enumerate(payloads):
            m.d.sync += filled[place].eq(
                stays[place] | (self.put & (stays[place - 1] if place else 1)))
            # A place that is free may hold anything, so it takes what may come.
            with m.If(taken & behind[place]):
                m.d.sync += payload.eq(payloads[min(place + 1, self._depth - 1)])
            with m.Elif(~filled[place] | (taken if place + 1 < self._depth else 0)):
                m.d.sync += payload.eq(Value.cast(self.payload))
        m.d.comb += [
            self.head.valid.eq(filled[0]), Value.cast(self.head.payload).eq(payloads[0])]
        return m
