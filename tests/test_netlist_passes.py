"""Passes over a netlist: flip-flops move into cells, ends of carry chains open, where they may."""

from __future__ import annotations

import json

import pytest

from sterna.hw.emit.tools import run_yosys
from sterna.hw.flow.netlist import Absorbed, CarryEnds, absorb_registers, free_carry_ends

HEADER = """
module top(input clk, en, other, rst, input [8:0] addr, input signed [17:0] a, b,
           output reg signed [35:0] p, output reg [17:0] q, output extra);
"""
MULTIPLIER = """
reg signed [17:0] ra, rb;
always @(posedge clk) if (en) begin ra <= a; rb <= b; {product} end
"""
MEMORY = """
(* rom_style = "block" *) reg [17:0] rom [0:511];
integer i; initial for (i = 0; i < 512; i = i + 1) rom[i] = i * 257 ^ (i << 5);
reg [17:0] data;
always @(posedge clk) begin if (en) data <= rom[addr]; {output} end
"""
NO_PRODUCT = "initial p = 0;"
NO_MEMORY = "initial q = 0;"


def absorb(tmp_path, body, tail=""):
    (tmp_path / "design.v").write_text(
        f"{HEADER}{body}{tail or 'assign extra = 0;'}\nendmodule\n")
    run_yosys(tmp_path, "read_verilog design.v\nsynth_ecp5 -top top -json top.json")
    netlist = json.loads((tmp_path / "top.json").read_text())
    before = kinds(netlist)
    absorbed = absorb_registers(netlist, "top")
    assert kinds(netlist).count("TRELLIS_FF") == (
        before.count("TRELLIS_FF") - absorbed.flip_flops)
    (tmp_path / "after.json").write_text(json.dumps(netlist))
    run_yosys(tmp_path, "read_json after.json\nread_verilog -lib +/ecp5/cells_sim.v "
                        "+/ecp5/cells_bb.v\nhierarchy -check -top top\ncheck -assert")
    return absorbed, netlist["modules"]["top"]


def kinds(netlist):
    return [cell["type"] for cell in netlist["modules"]["top"]["cells"].values()]


def cell_of(module, kind):
    return next(cell for cell in module["cells"].values() if cell["type"] == kind)


@pytest.mark.slow
@pytest.mark.parametrize(("product", "tail", "expected"), [
    ("p <= ra * rb;", "", Absorbed(operands=1, products=1, multipliers=1, flip_flops=72)),
    # Logic behind the multiplier, and an operand that someone else reads, too.
    ("p <= (ra * rb) + 1;", "assign extra = ra[3];",
     Absorbed(operands=1, multipliers=1, flip_flops=35)),
    # A product that has a second reader.
    ("p <= ra * rb;", "wire signed [35:0] w = ra * rb; assign extra = w[20];",
     Absorbed(operands=1, multipliers=1, flip_flops=36)),
    # A register that is reset is none of a multiplier's.
    ("if (rst) p <= 0; else p <= ra * rb;", "",
     Absorbed(operands=1, multipliers=1, flip_flops=36)),
    # Another enable is another clock enable input.
    ("end always @(posedge clk) if (other) begin p <= ra * rb;", "",
     Absorbed(operands=1, products=1, multipliers=1, flip_flops=72)),
])
def test_a_multiplier_takes_the_registers_around_it_that_it_may(tmp_path, product, tail, expected):
    absorbed, module = absorb(tmp_path, MULTIPLIER.format(product=product) + NO_MEMORY, tail)
    assert absorbed == expected
    cell = cell_of(module, "MULT18X18D")
    ports = module["ports"]
    assert cell["connections"]["CLK0"] == ports["clk"]["bits"]
    assert cell["connections"]["CE0"] == ports["en"]["bits"]
    registers = ["INPUTA", "INPUTB", *["OUTPUT"] * absorbed.products]
    assert {cell["parameters"][f"REG_{register}_CLK"] for register in registers} == {"CLK0"}
    if absorbed.products:
        own_enable = cell["parameters"]["REG_OUTPUT_CE"] != cell["parameters"]["REG_INPUTA_CE"]
        assert own_enable == ("other" in product)


@pytest.mark.slow
@pytest.mark.parametrize(("output", "taken"), [
    ("if (en) q <= data;", True),
    ("q <= data;", True),
    ("if (en) q <= data ^ addr;", False),
    ("if (rst) q <= 0; else q <= data;", False),
])
def test_a_memory_takes_a_plain_register_behind_it(tmp_path, output, taken):
    absorbed, module = absorb(tmp_path, MEMORY.format(output=output) + NO_PRODUCT)
    assert (absorbed.memories, absorbed.memory_outputs) == (1, int(taken))
    assert absorbed.flip_flops == (18 if taken else 0)
    cell = cell_of(module, "DP16KD")
    modes = {cell["parameters"][f"REGMODE_{port}"] for port in "AB"}
    assert ("OUTREG" in modes) == taken


def test_an_unknown_module_is_refused():
    with pytest.raises(ValueError, match="no module 'top'"):
        absorb_registers({"modules": {}}, "top")
    with pytest.raises(ValueError, match="no module other"):
        free_carry_ends(carry_netlist(), "other")


def carry_cell(init0: int, carry_in, carry_out: int, s0: int, **pins) -> dict:
    connections = {f"{pin}{side}": ["0"] for pin in "ABCD" for side in "01"}
    connections |= {"CIN": [carry_in], "COUT": [carry_out], "S0": [s0], "S1": [s0 + 1]}
    return {"type": "CCU2C", "connections": connections | pins, "parameters": {
        "INIT0": f"{init0:016b}", "INIT1": f"{0x6666:016b}",
        "INJECT1_0": "NO", "INJECT1_1": "NO"}}


def carry_netlist(*cells: dict) -> dict:
    return {"modules": {"top": {
        "ports": {"sum": {"direction": "output", "bits": [31, 40]}},
        "cells": {f"carry_cell{index}": each for index, each in enumerate(cells)}}}}


def test_both_ends_of_a_guarded_chain_are_opened():
    design = carry_netlist(carry_cell(0, "0", 20, 30), carry_cell(0x6666, 20, 21, 40))
    assert free_carry_ends(design, "top") == CarryEnds(inputs=1, outputs=1)
    first, second = (each["connections"] for each in design["modules"]["top"]["cells"].values())
    assert (first["CIN"], first["COUT"]) == (["x"], [20])
    assert (second["CIN"], second["COUT"]) == ([20], ["x"])


def test_a_carry_that_comes_from_an_input_of_the_half_is_guarded():
    # Contents 000A with D at 1: never passes on, starts with A.
    for level, opened in (("1", 1), (8, 0)):
        design = carry_netlist(carry_cell(0x000A, "0", 20, 50, A0=[7], D0=[level]))
        assert free_carry_ends(design, "top").inputs == opened


@pytest.mark.parametrize("changed", [
    carry_cell(0x6666, "0", 20, 50, A0=[7]),      # adds: the carry matters
    carry_cell(0, "0", 20, 40),                   # shows its carry
    carry_cell(0, 19, 20, 50),                    # a carry from elsewhere
])
def test_an_input_that_matters_and_a_carry_that_is_read_stay(changed):
    before = changed["connections"]["CIN"]
    assert free_carry_ends(carry_netlist(changed), "top").inputs == 0
    assert changed["connections"]["CIN"] == before
    assert free_carry_ends(carry_netlist(carry_cell(0, "0", 40, 50)), "top").outputs == 0
