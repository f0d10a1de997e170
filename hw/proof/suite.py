"""Every claim about the rows of the array, and how each is put to the solver.

A row without tables is proven equal to the definition and to the generic row, which is
proven equal to the definition itself. A row with tables is, by four claims: the filler
writes at an address the sum that the code of that address stands for; it does not end
before all are written; a table keeps what is written; and the row adds up what its tables
give, with the signs of the codes. The rows are as short as they can be with every kind of
cell that longer ones have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from amaranth.lib import wiring

from sterna.hw.emit.verilog import verilog_files
from sterna.hw.proof.overflow import NoOverflow, OneBitLess
from sterna.hw.proof.row_bench import Fault
from sterna.hw.proof.row_claims import EqualRows, ExactRow
from sterna.hw.proof.solver import Cells, Question
from sterna.hw.proof.table_claims import (
    FilledAddresses,
    FilledEntries,
    KeptEntries,
    TableRow,
)
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.mac_params import MacParams

__all__ = ["CLAIMS", "Claim", "plant"]

_INDUCTION = "sat -tempinduct -prove holds 1 -maxsteps 16"
_FROM_RESET = "sat -seq {clocks} -prove holds 1"

# A bit of the contents that addition uses: LUT6_2 with I0 and I2 at 1 in the lower half (an
# operand; two of three), CCU2C with B and C. Those with contents that only start or end a
# carry are passed over.
_CONTENTS = re.compile(r"\.INIT0?\((64|16)'h(?!(?:0000|ffff|000a)\))([0-9a-f]+)\)")
_BIT = {"64": 5, "16": 6}


@dataclass(frozen=True, slots=True)
class Claim:
    """Something to prove, and something to plant that must refute it.

    Parameters
    ----------
    text
        The claim in words.
    make
        Makes the design that claims it, for a fault.
    fault
        What is planted.
    clocks
        How many, from reset, it is proven for; 0 if by induction, so for all times.
    cells
        Models of the vendor cells.
    """

    text: str
    make: Callable[[Fault], wiring.Component]
    fault: Fault
    clocks: int = 0
    cells: Cells = Cells.OURS

    def question(self, fault: Fault = Fault.NONE) -> Question:
        """Return what to ask, with a fault or without."""
        design = self.make(fault)
        verilog = verilog_files(design, "proof")["proof.v"]
        if fault is Fault.CELL:
            verilog = plant(verilog)
        solve = _FROM_RESET.format(clocks=self.clocks) if self.clocks else _INDUCTION
        return Question(verilog, solve, self.cells, getattr(design, "extra_models", ""))

    @property
    def method(self) -> str:
        """How it is proven."""
        return f"{self.clocks} clocks" if self.clocks else "induction"


def plant(verilog: str) -> str:
    """Return a design with one bit of the contents of its first adding cell inverted.

    Raises
    ------
    ValueError
        If it has no such cell.
    """
    found = _CONTENTS.search(verilog)
    if not found:
        raise ValueError("there is no cell with contents to plant a fault in")
    bits, contents = found[1], int(found[2], 16)
    faulty = contents ^ (1 << _BIT[bits])
    start, end = found.span(2)
    return f"{verilog[:start]}{faulty:0{len(found[2])}x}{verilog[end:]}"


def _claim(kind, style: ArrayStyle, cols: int, fault: Fault, cells: Cells = Cells.OURS,
           act_bits: int = 8) -> Claim:
    params = MacParams(1, cols, 4 * cols, act_bits, style)
    clocks = kind.clocks(params) if hasattr(kind, "clocks") else 0
    return Claim(
        f"{_TEXTS[kind].format(style=style)}, {cols} x {act_bits} bits",
        lambda planted: kind(params, planted), fault, clocks, cells)


def _width(cols: int, max_columns: int) -> Claim:
    def make(fault: Fault) -> wiring.Component:
        kind = MacParams if fault is Fault.NONE else OneBitLess
        return NoOverflow(kind(1, cols, max_columns))

    bits = MacParams(1, cols, max_columns).sum_bits
    return Claim(f"accumulator: {bits} bits hold {max_columns} columns, {cols} a beat",
                 make, Fault.WIDTH)


_TEXTS = {
    ExactRow: "{style} row = definition",
    EqualRows: "{style} row = generic row",
    FilledEntries: "{style} entry = definition",
    FilledAddresses: "{style} entries are all written",
    KeptEntries: "{style} tables keep what is written",
    TableRow: "{style} row = signed entries",
}
_CHAIN, _PAIR = ArrayStyle.ECP5_CHAIN, ArrayStyle.XC7_PAIR
_TABLE4, _TABLE6 = ArrayStyle.ECP5_TABLE, ArrayStyle.XC7_TABLE

CLAIMS: tuple[Claim, ...] = (
    _claim(ExactRow, ArrayStyle.GENERIC, 6, Fault.CODE),
    _claim(EqualRows, _CHAIN, 6, Fault.CELL),
    _claim(ExactRow, _CHAIN, 6, Fault.CODE, Cells.YOSYS),
    _claim(EqualRows, _PAIR, 6, Fault.CELL, Cells.YOSYS),
    _claim(ExactRow, _PAIR, 6, Fault.CODE),
    _claim(FilledEntries, _TABLE4, 3, Fault.CELL),
    _claim(FilledAddresses, _TABLE4, 3, Fault.CODE),
    _claim(KeptEntries, _TABLE4, 4, Fault.CODE, Cells.YOSYS),
    _claim(TableRow, _TABLE4, 6, Fault.CELL),
    _claim(TableRow, _TABLE4, 12, Fault.CODE, Cells.YOSYS, act_bits=4),
    _claim(FilledEntries, _TABLE6, 3, Fault.CODE),
    _claim(FilledAddresses, _TABLE6, 3, Fault.CODE),
    _claim(KeptEntries, _TABLE6, 4, Fault.CODE, Cells.YOSYS),
    _claim(TableRow, _TABLE6, 6, Fault.CELL),
    _claim(TableRow, _TABLE6, 12, Fault.CELL, Cells.YOSYS),
    *(_width(cols, max_columns) for cols, max_columns in (
        (1, 1), (4, 16), (5, 17), (128, 128), (128, 384))),
)
"""What ``make prove`` proves."""
