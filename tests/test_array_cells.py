"""Our models of the ECP5 cells against those of Yosys, and the folders they are shipped in."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sterna.hw.emit.cells import cell_models
from sterna.hw.emit.tools import run_yosys
from sterna.hw.units.mac.ecp5_rows import ADD, ADD_NOT_B, CHOOSE, SELECT

MODELS = cell_models("  CCU2C #(")["ecp5.v"]
# What the adders use, and anything.
CONTENTS = [SELECT, ADD, ADD_NOT_B, CHOOSE, 0, 0xFFFF, 0x000A,
            *np.random.default_rng(1).integers(0, 1 << 16, 9).tolist()]

CARRY_CELL = """
  {cell} #(.INIT0(16'd{first}), .INIT1(16'd{second}), .INJECT1_0("{inject0}"),
           .INJECT1_1("{inject1}")) cell{index} (
      .CIN(CIN), .A0(i0[0]), .B0(i0[1]), .C0(i0[2]), .D0(i0[3]),
      .A1(i1[0]), .B1(i1[1]), .C1(i1[2]), .D1(i1[3]),
      .S0(out[{low}]), .S1(out[{low} + 1]), .COUT(out[{low} + 2]));"""
CARRY_TOP = """
module {top}(input CIN, input [3:0] i0, i1, output [{high}:0] out);{cells}
endmodule
"""

# Written from the same inputs for some steps, the two memories must read the same.
RAM_TOP = """
module {top}(input WCK, WRE, input [3:0] DI, WAD, RAD, output [3:0] DO, output [3:0] inverse);
  {cell} ram (.WCK(WCK), .WRE(WRE), .DI(DI), .WAD(WAD), .RAD(RAD), .DO(DO));
  {cell} #(.WREMUX("INV"), .INITVAL(64'h0123456789ABCDEF)) other (
      .WCK(WCK), .WRE(WRE), .DI(DI), .WAD(WAD), .RAD(RAD), .DO(inverse));
endmodule
"""


def carry_cells(top: str, cell: str) -> str:
    pairs = zip(CONTENTS, CONTENTS[1:] + CONTENTS[:1], strict=True)
    cells = [
        CARRY_CELL.format(cell=cell, first=first, second=second, inject0=inject0,
                          inject1=inject1, index=index, low=3 * index)
        for index, (first, second, inject0, inject1) in enumerate(
            (*pair, *injects) for pair in pairs for injects in (
                ("NO", "NO"), ("YES", "YES"), ("NO", "YES"), ("YES", "NO")))]
    return CARRY_TOP.format(top=top, high=3 * len(cells) - 1, cells="".join(cells))


def proof(folder: Path, models: str, tops: str, prove: str) -> str:
    """Compare ``gate``, made of our models, with ``gold``, made of Yosys's."""
    (folder / "ours.v").write_text(
        models.replace("module CCU2C", "module OUR_CCU2C")
        .replace("module TRELLIS_DPR16X4", "module OUR_TRELLIS_DPR16X4"))
    (folder / "tops.v").write_text(tops)
    return run_yosys(folder, f"""
        read_verilog +/lattice/ccu2c_sim.vh +/lattice/common_sim.vh ours.v tops.v
        hierarchy -check
        proc
        select gold gate
        flatten
        select -clear
        memory -nomap
        memory_map
        opt -full
        miter -equiv -flatten gold gate both
        {prove}""")


def carry_proof(folder: Path, models: str) -> str:
    return proof(folder, models, carry_cells("gold", "CCU2C") + carry_cells("gate", "OUR_CCU2C"),
                 "sat -prove trigger 0 both")


def test_our_carry_cell_is_the_one_that_yosys_knows(tmp_path):
    log = carry_proof(tmp_path, MODELS)
    assert "SAT proof finished - no model found: SUCCESS!" in log, log[-2000:]


def test_a_wrong_carry_cell_is_noticed(tmp_path):
    wrong = MODELS.replace("INIT1[{2'b00, B1, A1}]", "INIT1[{2'b00, A1, B1}]")
    assert wrong != MODELS
    log = carry_proof(tmp_path, wrong)
    assert "SUCCESS" not in log
    assert "proof did fail" in log or "FAIL" in log


def ram_proof(folder: Path, models: str) -> str:
    # From the initial contents, whatever is written and read in four cycles.
    return proof(folder, models, RAM_TOP.format(top="gold", cell="TRELLIS_DPR16X4")
                 + RAM_TOP.format(top="gate", cell="OUR_TRELLIS_DPR16X4"),
                 "sat -tempinduct-baseonly -maxsteps 4 -prove trigger 0 both")


def test_our_lut_ram_is_the_one_that_yosys_knows(tmp_path):
    log = ram_proof(tmp_path, MODELS)
    assert "SUCCESS!" in log, log[-3000:]


def test_a_wrong_lut_ram_is_noticed(tmp_path):
    wrong = MODELS.replace("words[{RAD, 2'b00} +: 4]", "words[{WAD, 2'b00} +: 4]")
    assert wrong != MODELS
    assert "SUCCESS" not in ram_proof(tmp_path, wrong)
