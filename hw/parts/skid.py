"""Streams registered in both directions, so that no combinational path links two units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Registered", "SkidBuffer"]


class SkidBuffer(wiring.Component):
    """A stream delayed by a cycle, at one word per cycle; all outputs are registers.

    Members
    -------
    coming : ``In(stream.Signature(shape))``
    going : ``Out(stream.Signature(shape))``
    """

    def __init__(self, shape: Any) -> None:
        super().__init__({
            "coming": In(stream.Signature(shape)), "going": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        coming, going = self.coming, self.going
        kept = Signal.like(going.payload, reset_less=True)  # word accepted while another waits
        ready, taken = Signal(init=1), Signal()
        m.d.comb += [coming.ready.eq(ready), taken.eq(coming.valid & ready)]
        with m.If(going.ready | ~going.valid):
            m.d.sync += [going.payload.eq(Mux(ready, coming.payload, kept)),
                         going.valid.eq(taken | ~ready), ready.eq(1)]
        with m.Elif(taken):
            m.d.sync += [kept.eq(coming.payload), ready.eq(0)]
        return m


class Registered(wiring.Component):
    """A unit with a :class:`SkidBuffer` at each stream, and the same members."""

    def __init__(self, unit: Any) -> None:
        self.unit, self.params = unit, unit.params
        super().__init__(dict(unit.signature.members))

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = self.unit
        for name, member in self.signature.members.items():
            for place, mine, its in _each(
                    name, getattr(self, name), getattr(self.unit, name), member.dimensions):
                if member.is_port:
                    m.d.comb += its.eq(mine) if member.flow is In else mine.eq(its)
                    continue
                m.submodules[f"{place}_skid"] = skid = SkidBuffer(
                    member.signature.members["payload"].shape)
                mine = wiring.flipped(mine)
                source, sink = (mine, its) if member.flow is In else (its, mine)
                wiring.connect(m, source, skid.coming)
                wiring.connect(m, skid.going, sink)
        return m


def _each(name: str, mine: Any, its: Any, dimensions: Sequence[int]) -> Iterator[Any]:
    """Yield a member of both, with its name; for an array, each element."""
    if not dimensions:
        yield name, mine, its
        return
    for index in range(dimensions[0]):
        yield from _each(f"{name}{index}", mine[index], its[index], dimensions[1:])
