"""A queue that costs no cycle while it is empty."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Shape, Signal, Value
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["BypassFifo"]


class BypassFifo(wiring.Component):
    """A first-in first-out queue whose input passes straight through while it is empty.

    Takes a payload per cycle until it is full.

    Parameters
    ----------
    shape
        Shape of the payload.
    depth
        Payloads it holds.
    may_fill
        Whether it may become full. Without, whoever feeds it sees to it that there is room,
        and ``incoming.ready`` says nothing.

    Members
    -------
    incoming : ``In(stream.Signature(shape))``
    outgoing : ``Out(stream.Signature(shape))``
    """

    def __init__(self, shape, *, depth: int, may_fill: bool = True) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
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
