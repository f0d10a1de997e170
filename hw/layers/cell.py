"""What stands between the two matrices of a mixer: the MLGRU's recurrence, or the GLU's product."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.layers.gather import Gather
from sterna.hw.layers.post_params import PostParams
from sterna.hw.units.glu import GluParams, GluUnit
from sterna.hw.units.mlgru import MlgruParams, MlgruUnit
from sterna.hw.units.norm_params import NormParams

__all__ = ["Cell", "LayerCell"]

Cell = MlgruParams | GluParams


class LayerCell(wiring.Component):
    """Takes pre-activations of the slots of a matrix; gives the words of a vector to normalise.

    Parameters
    ----------
    params, norm, cell
        Geometry of the requantiser before it, of the norm behind it, and its own.

    Members
    -------
    results : ``In(stream.Signature(requantize.result_layout))``
    start : ``In(1)``, of an MLGRU
        The vector begins a sequence. Read with its first results.
    words : ``Out(stream.Signature(norm.word_layout))``
    """

    def __init__(self, params: PostParams, norm: NormParams, cell: Cell) -> None:
        self.params, self._norm, self._cell = params, norm, cell
        super().__init__({
            "results": In(stream.Signature(params.requantize.result_layout)),
            **({"start": In(1)} if isinstance(cell, MlgruParams) else {}),
            "words": Out(stream.Signature(norm.word_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        table = self._norm.profile.sigmoid_table()
        bits = self._norm.profile.z.bits
        if isinstance(self._cell, MlgruParams):
            m.submodules.gather = gather = Gather(self.params, ("f", "c", "g"), bits)
            m.submodules.mlgru = unit = MlgruUnit(self._cell, table)
            first = Signal(init=1)
            with m.If(gather.words.valid & gather.words.ready):
                m.d.sync += first.eq(gather.words.payload.last)
            m.d.comb += unit.preacts.payload.start.eq(self.start & first)
            names, made, value = ("f", "c", "g"), unit.states, unit.states.payload.o
        else:
            m.submodules.gather = gather = Gather(self.params, ("gate", "up"), bits)
            m.submodules.glu = unit = GluUnit(self._cell, table)
            m.d.comb += unit.preacts.payload.last.eq(gather.words.payload.last)
            names, made, value = ("gate", "up"), unit.products, unit.products.payload.p
        wiring.connect(m, wiring.flipped(self.results), gather.results)
        m.d.comb += [
            unit.preacts.valid.eq(gather.words.valid),
            gather.words.ready.eq(unit.preacts.ready),
            *(unit.preacts.payload[name].eq(gather.words.payload[name]) for name in names),
            self.words.valid.eq(made.valid),
            made.ready.eq(self.words.ready),
            self.words.payload.last.eq(made.payload.last),
            *(self.words.payload.y[lane].eq(value[lane]) for lane in range(self._norm.rows)),
        ]
        return m
