"""Queues between the parts of the core."""

from __future__ import annotations

from amaranth.hdl import Array, Const, Module, Mux, Shape, Signal, Value, ValueLike, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.memory_attributes import NEVER_COLLIDES

__all__ = ["BypassFifo", "TaskQueue", "arrivals", "has_room"]


def has_room(m: Module, depth: int, reserved: ValueLike, freed: ValueLike) -> Value:
    """Whether one of ``depth`` places, reserved and freed one at a time, is free: a register with
    a short input path, since the count of places is a cycle late."""
    reserved, freed = Value.cast(reserved), Value.cast(freed)
    more, fewer = reserved & ~freed, freed & ~reserved
    kept, full = Signal(range(depth + 1)), Signal()
    came, went = Signal(), Signal()
    m.d.sync += [came.eq(more), went.eq(fewer), kept.eq(kept + came - went)]
    with m.If(more):
        m.d.sync += full.eq(Mux(
            came, kept == depth - 2, Mux(went, kept == depth, kept == depth - 1)))
    with m.If(fewer):
        m.d.sync += full.eq(0)
    return ~full


def arrivals(m: Module, unit, comes: ValueLike, phase: ValueLike) -> Array:
    """Count the vectors, or scales, of each phase that reached a unit since ``fresh``."""
    counts = []
    for index in range(unit.params.phases):
        count = Signal(range(unit.params.batch + 1), name=f"came{index}")
        fresh = unit.fresh & (unit.fresh_phase == index)
        m.d.sync += count.eq(Mux(fresh, 0, count) + (comes & (phase == index)))
        counts.append(count)
    return Array(counts)


class BypassFifo(wiring.Component):
    """A first-in first-out queue whose input passes straight through while it is empty.

    Takes a payload per cycle until it holds ``depth``.
    """

    def __init__(self, shape, *, depth: int) -> None:
        self.depth = depth
        self._width = Shape.cast(shape).width
        super().__init__({
            "incoming": In(stream.Signature(shape)),
            "outgoing": Out(stream.Signature(shape)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.storage = store = memory.Memory(
            shape=unsigned(self._width), depth=max(self.depth, 2), init=[], attrs=NEVER_COLLIDES)
        write, read = store.write_port(), store.read_port(domain="comb")
        produce, consume = Signal(range(self.depth)), Signal(range(self.depth))
        queued, comes, puts, gets = Signal(), Signal(), Signal(), Signal()

        def following(place):
            return Mux(place == self.depth - 1, 0, place + 1)

        m.d.comb += [
            self.incoming.ready.eq(~queued | (produce != consume)),
            comes.eq(self.incoming.valid & self.incoming.ready),
            puts.eq(comes & (queued | ~self.outgoing.ready)),
            gets.eq(queued & self.outgoing.ready),
            # A payload that passes straight through is written, too, and overwritten by the next.
            write.en.eq(comes), write.addr.eq(produce),
            write.data.eq(Value.cast(self.incoming.payload)), read.addr.eq(consume),
            self.outgoing.valid.eq(queued | self.incoming.valid),
            Value.cast(self.outgoing.payload).eq(
                Mux(queued, read.data, Value.cast(self.incoming.payload))),
        ]
        with m.If(puts):
            m.d.sync += [produce.eq(following(produce)), queued.eq(1)]
        with m.Elif(gets):
            m.d.sync += queued.eq(following(consume) != produce)
        with m.If(gets):
            m.d.sync += consume.eq(following(consume))
        return m


class TaskQueue(wiring.Component):
    """A first-in first-out queue with a latency of one cycle.

    ``head.valid`` and its payload are registers. The driver must put only if one of the ``depth``
    places is free.
    """

    def __init__(self, shape, *, depth: int) -> None:
        self._width, self._depth = Shape.cast(shape).width, depth
        super().__init__({
            "put": In(1), "payload": In(shape), "head": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        # From the head on; all places behind a free one are free.
        filled = [Signal(name=f"filled{place}") for place in range(self._depth)]
        payloads = [Signal(self._width, name=f"payload{place}", reset_less=True)
                    for place in range(self._depth)]
        taken = self.head.valid & self.head.ready
        behind = [*filled[1:], Const(0, 1)]
        stays = [Mux(taken, behind[place], filled[place]) for place in range(self._depth)]
        for place, payload in enumerate(payloads):
            m.d.sync += filled[place].eq(
                stays[place] | (self.put & (stays[place - 1] if place else 1)))
            # A free place may hold anything, so it loads unconditionally.
            with m.If(taken & behind[place]):
                m.d.sync += payload.eq(payloads[min(place + 1, self._depth - 1)])
            with m.Elif(~filled[place] | (taken if place + 1 < self._depth else 0)):
                m.d.sync += payload.eq(Value.cast(self.payload))
        m.d.comb += [
            self.head.valid.eq(filled[0]), Value.cast(self.head.payload).eq(payloads[0])]
        return m
