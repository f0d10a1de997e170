"""A queue that costs no cycle while it is empty."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Shape, Value
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

    Members
    -------
    incoming : ``In(stream.Signature(shape))``
    outgoing : ``Out(stream.Signature(shape))``
    """

    def __init__(self, shape, *, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.depth = depth
        self._width = Shape.cast(shape).width
        super().__init__({
            "incoming": In(stream.Signature(shape)),
            "outgoing": Out(stream.Signature(shape)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = fifo.SyncFIFO(width=self._width, depth=self.depth)
        queued = queue.r_rdy
        m.d.comb += [
            self.incoming.ready.eq(queue.w_rdy),
            self.outgoing.valid.eq(queued | (self.incoming.valid & queue.w_rdy)),
            Value.cast(self.outgoing.payload).eq(
                Mux(queued, queue.r_data, Value.cast(self.incoming.payload))),
            queue.r_en.eq(self.outgoing.ready),
            queue.w_data.eq(Value.cast(self.incoming.payload)),
            queue.w_en.eq(self.incoming.valid & (queued | ~self.outgoing.ready)),
        ]
        return m
