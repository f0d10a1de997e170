"""A short queue of registers, whose head needs no logic to be known."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Shape, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["TaskQueue"]


class TaskQueue(wiring.Component):
    """A first-in first-out queue: what is put in stands at the head in the next cycle, if it
    was empty. ``head.valid`` and its payload are registers.

    Parameters
    ----------
    shape
        Shape of the payload.
    depth
        Payloads it holds. Whoever feeds it sees to it that one is free.

    Members
    -------
    put, payload : ``In(1)``, ``In(shape)``
        Put a payload in.
    head : ``Out(stream.Signature(shape))``
        The oldest payload.

    Raises
    ------
    ValueError
        If it holds none.
    """

    def __init__(self, shape, *, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
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
