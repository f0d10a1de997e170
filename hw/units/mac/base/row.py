"""The ports of a row of the array, alike in every style."""

from __future__ import annotations

from amaranth.hdl import signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.units.mac.base.params import MacParams

__all__ = ["ArrayRow"]


class ArrayRow(wiring.Component):
    """One row of the array, of which a style says what it is made of.

    Members
    -------
    advance : ``In(1)``
        Step in this cycle.
    weights, acts : ``In(params.weight_layout)``, ``In(ArrayLayout(signed(act_bits), cols))``
        Operands of a beat, in a style without tables.
    codes : ``In(params.weight_layout)``
        Triples of weights of a beat, in a style with tables.
    fill, fill_index, entries : ``In``
        Write an entry of every triple's table, in a style with tables: at an index of
        ``index_bits``, of ``entry_shape``. Takes effect with the next cycle, whether or not
        the pipeline advances.
    first, filled : ``In(1)``
        Whether a beat starts a row; whether there is a beat at all. Both of the beat that
        reaches the accumulator, ``params.row_steps`` steps after its operands.
    start : ``In(params.start_shape)``
        The start value of the row, with ``first``, in a style that has some. Its name is
        :attr:`start_port`.
    sum : ``Out(signed(sum_bits))``
        The accumulator.
    """

    start_port = "start"

    def __init__(self, params: MacParams) -> None:
        self.params = params
        operands: dict[str, In] = (
            {"codes": In(params.weight_layout),
             "fill": In(1),
             "fill_index": In(unsigned(params.index_bits)),
             "entries": In(ArrayLayout(params.entry_shape, params.triples))}
            if params.style.has_tables else
            {"weights": In(params.weight_layout),
             "acts": In(ArrayLayout(signed(params.act_bits), params.cols))})
        super().__init__({
            "advance": In(1),
            **operands,
            "first": In(1),
            "filled": In(1),
            **({self.start_port: In(params.start_shape)} if params.start_name else {}),
            "sum": Out(signed(params.sum_bits)),
        })

    def accumulate(self, m, accumulator, operand):
        """Have an accumulator gather what each beat adds; its sum is that of the row."""
        m.submodules.accumulator = accumulator
        m.d.comb += [
            accumulator.advance.eq(self.advance),
            accumulator.filled.eq(self.filled),
            accumulator.first.eq(self.first),
            getattr(accumulator, self.start_port).eq(getattr(self, self.start_port)),
            accumulator.operand.eq(operand),
            self.sum.eq(accumulator.sum),
        ]
