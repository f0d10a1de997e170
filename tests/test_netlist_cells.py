"""Models of the ECP5 cells of a netlist, against what Yosys maps; and the passes over a netlist.

What it maps are small designs, one for each way that Yosys uses block RAMs and multipliers. Every
design has the same ports: ``clk``, random bits ``stimulus``, and ``out``.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sterna.hw.flow.synthesis import synthesize
from sterna.hw.fpga.families.ecp5 import ECP5
from sterna.hw.fpga.netlist import (
    Absorbed,
    CarryEnds,
    NetlistError,
    absorb_registers,
    free_carry_ends,
    model_files,
    netlist_verilog,
)
from sterna.hw.tools.process import files_of, run_yosys, verilator_environment

STIMULUS_BITS = 128
_ADDRESSES = 64
"""Addresses of a memory that are used: the lowest 32, and the highest 32."""


@dataclass(frozen=True, slots=True)
class Part:
    """A module of a design: its name, its Verilog, and the bits of its output."""

    name: str
    text: str
    bits: int


def design(name: str, parts: Sequence[Part]) -> str:
    """Verilog of a design of several parts, all driven by the same random bits."""
    total = sum(part.bits for part in parts)
    lines = [f"module {name} (input clk, input [{STIMULUS_BITS - 1}:0] stimulus, "
             f"output [{total - 1}:0] out);"]
    low = 0
    for part in parts:
        lines.append(f"  {part.name} u_{part.name} (.clk(clk), .stimulus(stimulus), "
                     f".out(out[{low + part.bits - 1}:{low}]));")
        low += part.bits
    return "\n".join([*lines, "endmodule", *(part.text for part in parts)])


_DEPTHS = {1: 16384, 2: 8192, 4: 4096, 9: 2048, 18: 1024, 36: 512}
_BODIES = {
    "rom": "if (re) q <= mem[ra];",
    "simple": "if (re) q <= mem[ra]; if (we) mem[wa] <= data;",
    "reset": "if (clear) q <= 0; else if (re) q <= mem[ra]; if (we) mem[wa] <= data;",
    "registered": "if (re) q <= mem[ra]; if (go) r <= q;",
    "no_change": "if (re) begin if (we) mem[wa] <= data; else q <= mem[wa]; end",
    "read_first": "if (re) begin if (we) mem[wa] <= data; q <= mem[wa]; end",
    "write_first": "if (re) begin if (we) mem[wa] <= data; q <= we ? data : mem[wa]; end",
    # Never the same word at both ports: what then happens is not defined.
    "dual": "if (re) begin if (we) mem[wa] <= data; else q <= mem[wa]; end"
            " if (stimulus[20]) begin if (stimulus[21]) mem[{ra[HIGH:1], ~wa[0]}] <= ~data;"
            " else r <= mem[{ra[HIGH:1], ~wa[0]}]; end",
    "bytes": "if (re) q <= mem[ra];",
}
_SHOWN = {"registered": ["r"], "dual": ["q", "r"]}


def memory(kind: str, width: int) -> Part:
    """A memory as large as a block RAM.

    ``kind`` is one of ``_BODIES``: ``bytes`` has an enable for each 9 bits, ``dual`` two ports
    that write or read.
    """
    depth = _DEPTHS[width]
    bits = (depth - 1).bit_length()
    rng = random.Random(width)
    name = f"{kind}_{width}"
    output = _SHOWN.get(kind, ["q"])
    body = _BODIES[kind].replace("HIGH", str(bits - 1))
    for lane in range(width // 9 if kind == "bytes" else 0):
        byte = f"[{9 * lane + 8}:{9 * lane}]"
        body += f" if (we & stimulus[{24 + lane}]) mem[wa]{byte} <= data{byte};"
    init = "\n".join(
        f"    mem[{address}] = {width}'h{rng.getrandbits(width):x};"
        for address in [*range(_ADDRESSES // 2), *range(depth - _ADDRESSES // 2, depth)])

    def address(low: int) -> str:
        return f"{{{{{bits - 5}{{stimulus[{low + 5}]}}}}, stimulus[{low + 4}:{low}]}}"

    return Part(name, f"""
module {name} (input clk, input [{STIMULUS_BITS - 1}:0] stimulus,
               output [{len(output) * width - 1}:0] out);
  (* ram_style = "block", syn_ramstyle = "block_ram" *)
  reg [{width - 1}:0] mem [0:{depth - 1}];
  initial begin
{init}
  end
  wire [{bits - 1}:0] ra = {address(0)};
  wire [{bits - 1}:0] wa = {address(8)};
  wire re = stimulus[6] | stimulus[14];
  wire we = stimulus[7];
  wire go = stimulus[15] | stimulus[16];
  wire clear = stimulus[17] & stimulus[18];
  wire [{width - 1}:0] data = stimulus[{64 + width - 1}:64];
  reg [{width - 1}:0] q = 0, r = 0;
  always @(posedge clk) begin
    {body}
  end
  assign out = {{{", ".join(output)}}};
endmodule
""", len(output) * width)


MEMORIES = [
    *(memory(kind, width) for kind in ("rom", "simple") for width in (1, 2, 4, 9, 18, 36)),
    *(memory(kind, width) for kind in ("no_change", "read_first", "write_first", "dual", "reset")
      for width in (9, 18)),
    memory("dual", 1), memory("dual", 2), memory("dual", 4),
    memory("bytes", 18), memory("bytes", 36), memory("reset", 36),
    *(memory("registered", width) for width in (4, 9, 18, 36)),
]


_KINDS = ("plain", "in", "out", "both")


def multiplier(kind: str, a_signed: bool, b_signed: bool, a_bits: int, b_bits: int) -> Part:
    """A product of ``a_bits`` by ``b_bits``.

    ``kind`` is ``plain``, or where there are registers: ``in``, ``out``, ``both``; each with
    an enable of its own.
    """
    name = f"{kind}_{'us'[a_signed]}{a_bits}_{'us'[b_signed]}{b_bits}"
    bits = a_bits + b_bits
    turn = 1 + 7 * _KINDS.index(kind)       # equal products would be computed once
    a, b = ("a_now", "b_now") if kind in ("plain", "out") else ("a", "b")
    factors = [each if signed else f"$signed({{1'b0, {each}}})"
               for each, signed in ((a, a_signed), (b, b_signed))]
    a_type, b_type = (
        f"{'signed' if signed else ''} [{width - 1}:0]"
        for signed, width in ((a_signed, a_bits), (b_signed, b_bits)))
    return Part(name, f"""
module {name} (input clk, input [{STIMULUS_BITS - 1}:0] stimulus, output [{bits - 1}:0] out);
  wire [{STIMULUS_BITS - 1}:0] turned = {{stimulus[{turn - 1}:0], stimulus[127:{turn}]}};
  wire {a_type} a_now = turned[{a_bits - 1}:0];
  wire {b_type} b_now = turned[{32 + b_bits - 1}:32];
  reg {a_type} a = 0;
  reg {b_type} b = 0;
  reg signed [{bits - 1}:0] p = 0;
  wire signed [{bits - 1}:0] product = {" * ".join(factors)};
  always @(posedge clk) begin
    if (turned[64]) a <= a_now;
    if (turned[65]) b <= b_now;
    if (turned[66]) p <= product;
  end
  assign out = {'p' if kind in ('out', 'both') else 'product'};
endmodule
""", bits)


MULTIPLIERS = [
    multiplier(kind, a_signed, b_signed, *bits)
    for kind in _KINDS
    for a_signed, b_signed, bits in (
        (True, True, (18, 18)), (True, False, (18, 17)), (False, False, (18, 18)),
        (True, True, (10, 16)))
]


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
    return synthesize(files_of(folder / "rtl.v"), name, ECP5)[1]


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


def test_a_netlist_with_something_not_modelled_is_refused() -> None:
    def of(**cell: Any) -> dict[str, Any]:
        return {"modules": {"unit": {"cells": {"u": cell}}}}

    with pytest.raises(NetlistError, match="u is a OSCG; there are models of BB, CCU2C, "):
        netlist_verilog(of(type="OSCG"), "unit")
    two = of(type="DP16KD", parameters={}, connections={"CLKA": [2], "CLKB": [3]})
    with pytest.raises(NetlistError, match="u must have the same clock at both ports"):
        netlist_verilog(two, "unit")


# Passes: flip-flops move into cells, ends of carry chains open, where they may --------

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
