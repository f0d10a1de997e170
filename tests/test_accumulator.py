"""Proof by induction that the accumulator of the array never overflows.

A copy of the accumulator that is wider than it needs to be runs beside it on the same free
inputs; the two must always hold the same number. One bit less and the proof must fail.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.emit import verilog_text
from sterna.hw.params import MacParams
from sterna.hw.ternary_mac_array import Accumulator
from sterna.hw.yosys import run_yosys

GEOMETRIES = [(1, 1), (4, 16), (5, 17), (128, 128), (128, 384)]  # cols, max_columns

PROOF = """
read_verilog proof.v
hierarchy -check -top proof
proc
flatten
opt
sat -tempinduct -prove holds 1 -maxsteps 12
"""


class OneBitLess(MacParams):
    __slots__ = ()

    @property
    def sum_bits(self) -> int:
        return MacParams.sum_bits.fget(self) - 1


class OneBitMore(MacParams):
    __slots__ = ()

    @property
    def sum_bits(self) -> int:
        return MacParams.sum_bits.fget(self) + 1


class OverflowProof(wiring.Component):
    """Two accumulators, what the environment may do, and the claim to prove.

    ``columns`` is the number of columns of a beat that hold weights. The environment keeps
    to the contract: a start value of at most ``max_columns``, at most ``max_columns``
    columns in a row, and an operand within the range of that many one's complement values.
    """

    def __init__(self, params: MacParams) -> None:
        self.params = params
        super().__init__({
            "advance": In(1), "filled": In(1), "first": In(1),
            "minus_count": In(unsigned(params.count_bits)),
            "columns": In(range(params.cols + 1)),
            "operand": In(signed(params.operand_bits(params.cols))),
            "holds": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        m.submodules.exact = exact = Accumulator(params)
        m.submodules.wide = wide = Accumulator(
            OneBitMore(params.rows, params.cols, params.max_columns))
        for copy in (exact, wide):
            m.d.comb += [getattr(copy, name).eq(getattr(self, name)) for name in (
                "advance", "filled", "first", "minus_count", "operand")]

        used = Signal(range(params.max_columns + params.cols + 1), reset_less=True)
        started = Signal(reset_less=True)
        lawful = Signal(init=1, reset_less=True)
        used_then = Signal.like(used)
        m.d.comb += used_then.eq(self.columns)
        with m.If(~self.first):
            m.d.comb += used_then.eq(used + self.columns)
        allowed = (
            (started | self.first)
            & (self.minus_count <= params.max_columns)
            & (self.columns <= params.cols) & (used_then <= params.max_columns)
            & (self.operand >= -128 * self.columns) & (self.operand <= 127 * self.columns))
        with m.If(self.advance & self.filled):
            m.d.sync += [used.eq(used_then), started.eq(1), lawful.eq(lawful & allowed)]

        # The bounds make the claim inductive; they are the argument of MacParams.sum_bits.
        bounded = ((wide.sum >= -128 * used) & (used <= params.max_columns)
                   & (wide.sum <= params.max_columns + 127 * used))
        m.d.comb += self.holds.eq(
            ~lawful | ((exact.sum == wide.sum) & (~started | bounded)))
        return m


def prove(params: MacParams, folder: Path) -> str:
    text = verilog_text(OverflowProof(params), "proof")
    (folder / "proof.v").write_text(text)
    return run_yosys(folder, PROOF, timeout_s=300)


@pytest.mark.parametrize(("cols", "max_columns"), GEOMETRIES)
def test_accumulator_is_proven_not_to_overflow(cols, max_columns, tmp_path):
    log = prove(MacParams(1, cols, max_columns), tmp_path)
    assert "Induction step proven: SUCCESS!" in log, log[-2000:]


@pytest.mark.parametrize(("cols", "max_columns"), GEOMETRIES)
def test_accumulator_of_one_bit_less_is_shown_to_overflow(cols, max_columns, tmp_path):
    log = prove(OneBitLess(1, cols, max_columns), tmp_path)
    assert "model found for base case: FAIL!" in log, log[-2000:]
    assert "SUCCESS" not in log
