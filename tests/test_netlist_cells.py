"""Models of the ECP5 cells of a netlist, against Yosys' own models and against what it maps."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from netlist_designs import MEMORIES, MULTIPLIERS, STIMULUS_BITS, Part, design, memory

from sterna.hw.emit.tools import YosysError, run_yosys, verilator_environment
from sterna.hw.flow.netlist import (
    Absorbed,
    NetlistError,
    absorb_registers,
    model_files,
    netlist_verilog,
)
from sterna.hw.flow.synthesis import Family, synthesize

# Compares before each falling edge, and then makes new random bits.
BENCH = """
module bench (input clk);
  reg [{top}:0] stimulus = 0;
  wire [{high}:0] rtl, netlist;
  integer number;
  {name} u_rtl (.clk(clk), .stimulus(stimulus), .out(rtl));
  {name}_netlist u_netlist (.clk(clk), .stimulus(stimulus), .out(netlist));
  always @(negedge clk) begin
    if (rtl !== netlist)
      for (number = 0; number <= {high}; number = number + 1)
        if (rtl[number] !== netlist[number])
          $display("DIFFERS %0d", number);
    stimulus <= {{$random, $random, $random, $random}};
  end
endmodule
"""
MAIN = """
#include "Vbench.h"
#include "verilated.h"
#include <cstdio>
int main() {{
    VerilatedContext context;
    context.randSeed(1);
    Vbench bench(&context);
    for (int cycle = 0; cycle < {cycles}; ++cycle)
        for (int clk : {{0, 1}}) {{
            bench.clk = clk;
            bench.eval();
        }}
    std::printf("COMPARED %d\\n", {cycles});
}}
"""


def netlist_of(name: str, parts: Sequence[Part], folder: Path) -> dict[str, Any]:
    (folder / "rtl.v").write_text(design(name, parts))
    synthesize(folder / "rtl.v", name, Family.ECP5, netlist_path=folder / "netlist.json")
    return json.loads((folder / "netlist.json").read_text())


def differences(
    name: str, parts: Sequence[Part], netlist: dict[str, Any], folder: Path, cycles: int = 20_000,
) -> list[str]:
    """Names of the parts whose netlist does not do what their Verilog does."""
    text = netlist_verilog(netlist, name)
    (folder / "netlist.v").write_text(text.replace(f"module {name}(", f"module {name}_netlist("))
    bits = sum(part.bits for part in parts)
    (folder / "bench.v").write_text(BENCH.format(
        name=name, top=STIMULUS_BITS - 1, high=bits - 1))
    (folder / "main.cpp").write_text(MAIN.format(cycles=cycles))
    for file, model in model_files().items():
        (folder / file).write_text(model)
    environment = verilator_environment()
    shutil.rmtree(folder / "build", ignore_errors=True)
    for command in (
        ["verilator", "--cc", "--exe", "--Mdir", "build", "--top-module", "bench",
         "--output-split", "0", "-Wno-fatal", "-Wno-lint", "-Wno-style", "rtl.v", "netlist.v",
         "bench.v", *model_files(), str(folder / "main.cpp")],
        ["make", "-C", "build", "-f", "Vbench.mk", "OPT_FAST=-O0", "OPT_SLOW=-O0"],
    ):
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    done = subprocess.run(
        [folder / "build" / "Vbench"], check=True, capture_output=True, text=True)
    assert f"COMPARED {cycles}" in done.stdout
    wrong = {int(number) for number in re.findall(r"DIFFERS (\d+)", done.stdout)}
    ends, names = 0, []
    for part in parts:
        if wrong & set(range(ends, ends + part.bits)):
            names.append(part.name)
        ends += part.bits
    return names


def cells(netlist: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [cell for module in netlist["modules"].values() for cell in module["cells"].values()
            if cell["type"] == kind]


def values(netlist: dict[str, Any], parameter: str) -> set[str | None]:
    return {cell["parameters"].get(parameter) for cell in cells(netlist, "DP16KD")}


@pytest.mark.long
@pytest.mark.parametrize("absorb", [False, True], ids=["plain", "absorbed"])
@pytest.mark.parametrize(("name", "parts"), [("memories", MEMORIES), ("multipliers", MULTIPLIERS)])
def test_every_way_that_a_cell_is_used_agrees_with_its_verilog(name, parts, absorb, tmp_path):
    netlist = netlist_of(name, parts, tmp_path)
    absorbed = absorb_registers(netlist, name) if absorb else Absorbed()
    if name == "memories":
        for port in "AB":
            widths = values(netlist, f"DATA_WIDTH_{port}")
            assert {int(width or "", 2) for width in widths} == {1, 2, 4, 9, 18, 36}
        assert values(netlist, "WRITEMODE_A") >= {"NORMAL", "READBEFOREWRITE", "WRITETHROUGH"}
        assert values(netlist, "RESETMODE") == {"SYNC", "ASYNC"}
        assert ("OUTREG" in values(netlist, "REGMODE_B")) == absorb == bool(absorbed.memory_outputs)
    else:
        assert len(cells(netlist, "MULT18X18D")) == len(MULTIPLIERS)
        assert bool(absorbed.operands) == bool(absorbed.products) == absorb
    assert differences(name, parts, netlist, tmp_path) == []


@pytest.mark.long
def test_a_wrong_start_value_of_a_block_ram_is_caught_and_located(tmp_path: Path) -> None:
    parts = [memory("rom", 9), memory("simple", 18)]
    netlist = netlist_of("memories", parts, tmp_path)
    rom = next(cell for cell in cells(netlist, "DP16KD")
               if "00001001" in {cell["parameters"]["DATA_WIDTH_A"][-8:],
                                 cell["parameters"]["DATA_WIDTH_B"][-8:]})
    value = rom["parameters"]["INITVAL_00"]
    rom["parameters"]["INITVAL_00"] = value[:-1] + "01"[value[-1] == "0"]
    assert differences("memories", parts, netlist, tmp_path) == ["rom_9"]


COMBINATIONAL = """
module cells (input clk, input [19:0] i, output [4:0] o);
  LUT4 #(.INIT(16'h0000)) u0 (.A(i[0]), .B(i[1]), .C(i[2]), .D(i[3]), .Z(o[0]));
  LUT4 #(.INIT(16'hCA53)) u1 (.A(i[0]), .B(i[1]), .C(i[2]), .D(i[3]), .Z(o[1]));
  LUT4 #(.INIT(16'h9317)) u2 (.A(i[0]), .B(i[1]), .C(i[2]), .D(i[3]), .Z(o[2]));
  PFUMX u3 (.ALUT(i[4]), .BLUT(i[5]), .C0(i[6]), .Z(o[3]));
  L6MUX21 u4 (.D0(i[7]), .D1(i[8]), .SD(i[9]), .Z(o[4]));
endmodule
"""


INDUCTION = "-tempinduct -seq 1"


def flip_flops() -> str:
    """Every combination of the parameters of a flip-flop that Yosys maps to."""
    combinations = [
        (ce, clk, lsr, mode, start)
        for ce in ("CE", "INV", "1") for clk in ("CLK", "INV") for lsr in ("LSR", "INV")
        for mode in ("LSR_OVER_CE", "ASYNC") for start in ("SET", "RESET")]
    instances = "\n".join(
        f'  TRELLIS_FF #(.CEMUX("{ce}"), .CLKMUX("{clk}"), .LSRMUX("{lsr}"), .SRMODE("{mode}"), '
        f'.REGSET("{start}")) u{number} (.CLK(clk), .CE(i[0]), .LSR(i[1]), .DI(i[2]), '
        f'.Q(o[{number}]));' for number, (ce, clk, lsr, mode, start) in enumerate(combinations))
    return (f"module cells (input clk, input [19:0] i, output [{len(combinations) - 1}:0] o);\n"
            f"{instances}\nendmodule\n")


def prove(folder: Path, text: str, models: str, options: str) -> str:
    """Have Yosys prove that ``cells`` is the same with our models and with its own."""
    (folder / "cells.v").write_text(text)
    (folder / "ours.v").write_text(models)
    sides = [
        f"""
        read_verilog {source}
        read_verilog cells.v
        prep -flatten -top cells
        rename cells {side}
        design -stash {side}
        """ for side, source in (
            ("theirs", "-nowb -D NO_INCLUDES +/lattice/cells_sim_ecp5.v"), ("ours", "ours.v"))]
    return run_yosys(folder, "\n".join([*sides, f"""
        design -copy-from ours -as ours ours
        design -copy-from theirs -as theirs theirs
        miter -equiv -make_assert -flatten ours theirs miter
        hierarchy -top miter
        clk2fflogic
        opt_clean
        sat -verify -prove-asserts {options} miter
    """]))


@pytest.mark.parametrize(("text", "options", "proven"), [
    (COMBINATIONAL, "", "SAT proof finished - no model found: SUCCESS!"),
    (flip_flops(), INDUCTION, "Induction step proven: SUCCESS!"),
], ids=["combinational", "flip-flops"])
def test_models_are_equal_to_those_of_yosys(text, options, proven, tmp_path):
    models = "\n".join(model_files().values())
    assert proven in prove(tmp_path, text, models, options)
    wrong = {"": {"SD ? D1 : D0": "SD ? D0 : D1"},
             INDUCTION: {"~CE : CE": "CE : CE", 'initial Q = REGSET == "SET"': "initial Q = 0"}}
    for right, other in wrong[options].items():
        assert models.count(right) == 1
        with pytest.raises(YosysError):
            prove(tmp_path, text, models.replace(right, other), options)


def test_a_netlist_with_something_not_modelled_is_refused() -> None:
    def of(**cell: Any) -> dict[str, Any]:
        return {"modules": {"unit": {"cells": {"u": cell}}}}

    with pytest.raises(NetlistError, match="no module 'other', only unit"):
        netlist_verilog(of(type="LUT4"), "other")
    with pytest.raises(NetlistError, match="u is a OSCG; there are models of BB, CCU2C, "):
        netlist_verilog(of(type="OSCG"), "unit")
    two = of(type="DP16KD", parameters={}, connections={"CLKA": [2], "CLKB": [3]})
    with pytest.raises(NetlistError, match="u must have the same clock at both ports"):
        netlist_verilog(two, "unit")
