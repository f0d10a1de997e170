"""The ternary multiply-accumulate array: dot products without a multiplier."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.pipeline import Pipeline, advance_of
from sterna.hw.units.mac.array_row import ArrayRow
from sterna.hw.units.mac.array_style import CHAIN_COLUMNS, ArrayStyle
from sterna.hw.units.mac.ecp5_rows import Ecp5ChainRow
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.xc7_rows import Xc7PairRow

__all__ = ["ROWS", "TernaryMacArray"]


class TernaryRow(ArrayRow):
    """One row of the array: select, adder tree, accumulator.

    Every adder ends in a register. A ``-x`` is added as its one's complement; the missing +1s
    are the number of -1 weights of the row, the start value of the accumulator.
    """

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, self.advance)

        level: list[Value] = []
        for column in range(params.cols):
            weight = self.weights[column].as_value()
            nonzero, negative = (bit.replicate(params.act_bits) for bit in weight)
            level.append(((self.acts[column] & nonzero) ^ negative)[:params.act_bits].as_signed())

        # Add neighbours level by level; the last of an odd number is only delayed.
        for depth in range(1, params.tree_levels + 1):
            pairs = [level[i:i + 2] for i in range(0, len(level), 2)]
            level = []
            for index, pair in enumerate(pairs):
                operands = min(1 << depth, params.cols - (index << depth))
                added = sum(pair[1:], start=pair[0])
                level.append(steps.register(
                    added[:params.operand_bits(operands)].as_signed(), f"tree{depth}_{index}"))

        self.accumulate(m, level[0])
        return m


ROWS = {
    ArrayStyle.GENERIC: TernaryRow,
    ArrayStyle.ECP5_CHAIN: Ecp5ChainRow,
    ArrayStyle.XC7_PAIR: Xc7PairRow,
}
"""The row of each style."""


class TernaryMacArray(wiring.Component):
    """Dot products of ternary rows with a vector of activations, ``rows`` at a time.

    A group of ``rows`` rows arrives in beats of ``cols`` columns; after ``last`` its sums are
    output, exact for every input (including activations of -128). Groups of any length up to
    ``max_columns`` follow each other without a pause, one beat per cycle. The pipeline advances as
    a whole and stalls only while sums wait to be taken; they appear ``params.latency`` steps after
    the last beat of their group. In all styles but ``generic`` the array consists of cells of one
    FPGA family, which Amaranth's simulator cannot run.

    There are no multipliers and no overflow: :class:`~sterna.hw.units.mac.mac_params.MacParams`
    proves the widths, provided that a group has at most ``max_columns`` columns (rounded up to
    whole beats of zero weights) and ``minus_counts`` match the weights.

    Members
    -------
    beats : ``In(stream.Signature(params.beat_layout))``
        ``weights`` of each row; ``acts[column]``; ``last``; and, read with the first beat of a
        group only, ``minus_counts[row]``: the missing +1s of the complements of the whole row.
        See :mod:`sterna.hw.units.mac.weight_packing`.
    sums : ``Out(stream.Signature(params.sum_layout))``
        A dot product for each row.
    """

    def __init__(self, params: MacParams) -> None:
        self.params = params
        super().__init__({
            "beats": In(stream.Signature(params.beat_layout)),
            "sums": Out(stream.Signature(params.sum_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params, beat = self.params, self.beats.payload
        advance = Signal()
        steps = Pipeline(m, advance)
        arrives = self.beats.valid
        m.d.comb += [
            advance.eq(advance_of(self.sums)),
            self.beats.ready.eq(advance),
        ]
        first = Signal(init=1)
        with m.If(arrives & advance):
            m.d.sync += first.eq(beat.last)

        # Delay the controls of the accumulators to match the adder trees.
        # Anything accumulated before the first beat of a group is discarded.
        filled = steps.delay(arrives, params.row_steps, "filled")
        ended = steps.flags(arrives & beat.last, params.latency, "ended")[-1]
        leaving_first = steps.delay(first, params.row_steps, "first")
        m.d.comb += self.sums.valid.eq(ended)
        acts = beat.acts
        if params.style is ArrayStyle.ECP5_CHAIN:       # shared by the rows
            acts = Signal.like(beat.acts)
            m.d.comb += [
                acts[column].eq(steps.delay(
                    beat.acts[column], column % CHAIN_COLUMNS, f"act{column}"))
                for column in range(params.cols)]

        for index in range(params.rows):
            m.submodules[f"row{index}"] = row = ROWS[params.style](params)
            m.d.comb += [
                row.advance.eq(advance),
                Value.cast(row.weights).eq(Value.cast(beat.weights[index])),
                row.acts.eq(acts), row.first.eq(leaving_first), row.filled.eq(filled),
                row.minus_count.eq(steps.delay(
                    beat.minus_counts[index], params.row_steps, f"minus_count{index}")),
                self.sums.payload[index].eq(row.sum),
            ]
        return m
