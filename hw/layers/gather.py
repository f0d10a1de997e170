"""Results of the slots of a matrix, side by side."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.layers.post_params import PostParams

__all__ = ["Gather", "gathered_layout"]


def gathered_layout(params: PostParams, names: tuple[str, ...], bits: int) -> StructLayout:
    """Payload of :class:`Gather`: a field of ``rows`` values for each slot, and ``last``."""
    return StructLayout({
        **{name: ArrayLayout(signed(bits), params.engine.mac.rows) for name in names},
        "last": 1})


class Gather(wiring.Component):
    """Keeps the results of a slot until those of the last slot come, and passes all on.

    Parameters
    ----------
    params
        Geometry.
    names
        What each slot is called.
    bits
        Signed bits of a result.

    Members
    -------
    results : ``In(stream.Signature(requantize.result_layout))``
    words : ``Out(stream.Signature(gathered_layout(params, names, bits)))``
        In the same cycle as the results of the last slot.
    """

    def __init__(self, params: PostParams, names: tuple[str, ...], bits: int) -> None:
        self.params = params
        self._names, self._bits = names, bits
        super().__init__({
            "results": In(stream.Signature(params.requantize.result_layout)),
            "words": Out(stream.Signature(gathered_layout(params, names, bits))),
        })

    def elaborate(self, platform):
        m = Module()
        params, words, results = self.params, self.words, self.results
        tag = Signal(params.tag_layout)
        m.d.comb += tag.eq(results.payload.tag)
        is_last = tag.slot == len(self._names) - 1
        m.d.comb += [
            words.valid.eq(results.valid & is_last),
            results.ready.eq(words.ready | ~is_last),
            words.payload.last.eq(tag.last),
        ]
        *kept, last = self._names
        for lane in range(params.engine.mac.rows):
            value = params.requantize.narrowed(results.payload, lane, self._bits)
            m.d.comb += words.payload[last][lane].eq(value)
            for slot, name in enumerate(kept):
                register = Signal(signed(self._bits), name=f"{name}{lane}", reset_less=True)
                with m.If(results.valid & (tag.slot == slot)):
                    m.d.sync += register.eq(value)
                m.d.comb += words.payload[name][lane].eq(register)
        return m
