"""The vendor cells of the array styles: our models of them, their number, the emitted Verilog."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sterna.hw.catalog import emit_verilog
from sterna.hw.emit.cells import cell_models
from sterna.hw.emit.verilog import write_verilog
from sterna.hw.fpga.families import TARGETS
from sterna.hw.tools.process import run_yosys, verilator_environment
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.hw.units.mac.ecp5_rows import ADD, ADD_NOT_B, CHOOSE, SELECT
from sterna.hw.units.mac.mac_array import ROWS, TernaryMacArray
from sterna.hw.units.mac.mac_params import MacParams
from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokenizer import encode
from sterna.sim.bench.runner import Simulator
from sterna.sim.units import simulate

DICE = np.random.default_rng(1)
ECP5 = cell_models("  CCU2C #(")["ecp5.v"]
XC7 = cell_models("  CARRY4 #(")["xc7.v"]
LIBRARY = {ECP5: "+/lattice/ccu2c_sim.vh +/lattice/common_sim.vh", XC7: "+/xilinx/cells_sim.v"}
# What the adders use, and anything.
CONTENTS = [SELECT, ADD, ADD_NOT_B, CHOOSE, 0, 0xFFFF, 0x000A,
            *DICE.integers(0, 1 << 16, 9).tolist()]
LUTS = [f"{low:08x}{high:08x}" for low, high in DICE.integers(0, 1 << 32, (4, 2)).tolist()]

CARRY_CELL = """
  {{cell}} #(.INIT0(16'd{first}), .INIT1(16'd{second}), .INJECT1_0("{inject0}"),
             .INJECT1_1("{inject1}")) cell{index} (
      .CIN(in[0]), .A0(in[1]), .B0(in[2]), .C0(in[3]), .D0(in[4]),
      .A1(in[5]), .B1(in[6]), .C1(in[7]), .D1(in[8]),
      .S0(out[{low}]), .S1(out[{low} + 1]), .COUT(out[{low} + 2]));"""
CCU2C = "".join(
    CARRY_CELL.format(first=first, second=second, inject0=inject0, inject1=inject1, index=index,
                      low=3 * index)
    for index, (first, second, inject0, inject1) in enumerate(
        (*pair, *injects) for pair in zip(CONTENTS, CONTENTS[1:] + CONTENTS[:1], strict=True)
        for injects in (("NO", "NO"), ("YES", "YES"), ("NO", "YES"), ("YES", "NO"))))
LUT6_2 = "".join(f"""
  {{cell}} #(.INIT(64'h{init})) lut{index} (
      .I0(in[0]), .I1(in[1]), .I2(in[2]), .I3(in[3]), .I4(in[4]), .I5(in[5]),
      .O5(out[{2 * index}]), .O6(out[{2 * index + 1}]));""" for index, init in enumerate(LUTS))
CARRY4 = """
  {cell} chain (.CI(in[0]), .CYINIT(in[1]), .DI(in[5:2]), .S(in[9:6]), .CO(out[3:0]),
      .O(out[7:4]));"""

CELLS = {   # library, instances, bits of in and out, what to replace in a wrong model
    "CCU2C": (ECP5, CCU2C, 9, 12 * len(CONTENTS),
              "INIT1[{2'b00, B1, A1}]", "INIT1[{2'b00, A1, B1}]"),
    "LUT6_2": (XC7, LUT6_2, 6, 2 * len(LUTS), "I5", "I4"),
    "CARRY4": (XC7, CARRY4, 10, 8, "DI[3]", "DI[2]"),
}


def proof(folder: Path, cell: str, models: str) -> str:
    """What Yosys says to the claim that one of ``models`` does what its own does."""
    library, instances, in_bits, out_bits, _, _ = CELLS[cell]
    tops = "".join(
        f"module {top}(input [{in_bits - 1}:0] in, output [{out_bits - 1}:0] out);"
        f"{instances.format(cell=name)}\nendmodule\n"
        for top, name in (("gold", cell), ("gate", f"OUR_{cell}")))
    # What neither of the two needs goes before it is worked on.
    tops += (f"module pair(input [{in_bits - 1}:0] in, output [{out_bits - 1}:0] a, b);"
             f"\n  gold one(in, a);\n  gate other(in, b);\nendmodule\n")
    for name in CELLS:
        models = models.replace(f"module {name}", f"module OUR_{name}")
    (folder / "ours.v").write_text(models)
    (folder / "tops.v").write_text(tops)
    return run_yosys(folder, f"""
        read_verilog {LIBRARY[library]} ours.v tops.v
        hierarchy -check -top pair
        proc
        select gold gate
        flatten
        select -clear
        memory -nomap
        memory_map
        opt -full
        miter -equiv -flatten gold gate both
        sat -prove trigger 0 both""")


@pytest.mark.parametrize("cell", CELLS)
def test_our_cell_is_the_one_that_yosys_knows_and_a_wrong_one_is_noticed(cell, tmp_path):
    models, *_, right, wrong = CELLS[cell]
    log = proof(tmp_path, cell, models)
    assert "SUCCESS!" in log, log[-2000:]
    begin = models.index(f"module {cell}")
    end = models.index("endmodule", begin)
    body = models[begin:end]
    assert right in body[body.index(");"):]
    head, _, rest = body.partition(");")
    log = proof(tmp_path, cell, models[:begin] + head + ");" + rest.replace(right, wrong)
                + models[end:])
    assert "SUCCESS!" not in log


@pytest.mark.slow
@pytest.mark.parametrize(("style", "cols", "max_columns", "luts", "most"), [
    (ArrayStyle.XC7_PAIR, 16, 1024, 136, 9), (ArrayStyle.XC7_PAIR, 128, 384, 981, 9)])
def test_a_row_takes_few_luts_for_each_multiplication(
        style, cols, max_columns, luts, most, tmp_path):
    write_verilog(ROWS[style](MacParams(1, cols, max_columns, style=style)), "row", tmp_path)
    run_yosys(tmp_path, """
        read_verilog row.v
        synth_xilinx -family xc7 -flatten -noiopad -noclkbuf -top row
        tee -o cells.json stat -json
    """)
    cells = json.loads((tmp_path / "cells.json").read_text())["design"]["num_cells_by_type"]
    # Logic, with both outputs or one, shift registers, inverters.
    sizes = {"LUT6_2": 1, "SRL16E": 1, "SRLC32E": 1, "INV": 1,
             **{f"LUT{inputs}": 1 for inputs in range(1, 7)}}
    assert cells.keys() <= sizes.keys() | {"CARRY4", "FDRE", "$scopeinfo"}
    assert sum(size * cells.get(kind, 0) for kind, size in sizes.items()) == luts
    assert luts / cols <= most


# LUTs for one product per cycle, on a small size of each style.
LIMITS = [
    (ArrayStyle.ECP5_CHAIN, "ecp5-85k", 4, 32, 14.0),
    (ArrayStyle.XC7_PAIR, "xc7", 2, 48, 9.0),
    (ArrayStyle.GENERIC, "ice40-hx8k", 8, 32, 20.5),
]


@pytest.fixture
def benchmark(monkeypatch):
    """The script that measures all styles."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("array_styles")


def area(benchmark, style: ArrayStyle, target: str, rows: int, cols: int):
    array = TernaryMacArray(MacParams(rows, cols, max_columns=384, style=style))
    return benchmark.array_area(array, rows * cols, TARGETS[target])


@pytest.mark.long
@pytest.mark.parametrize(("style", "target", "rows", "cols", "limit"), LIMITS)
def test_luts_for_a_product_per_cycle_stay_within_their_limit(
        style, target, rows, cols, limit, benchmark):
    found = area(benchmark, style, target, rows, cols)
    assert found.luts_per_mac <= limit, found
    assert found.multipliers == 0
    # What nextpnr adds to Yosys's cells: constants, or cells for lone flip-flops on iCE40.
    if target == "ecp5-85k":
        assert found.luts - found.mapped_luts <= 4


@pytest.mark.long
def test_the_plain_arrays_of_the_benchmark_are_larger(benchmark):
    params = MacParams(2, 16, 64)
    ours = area(benchmark, ArrayStyle.ECP5_CHAIN, "ecp5-85k", 2, 16).luts
    tree, naive = (
        benchmark.array_area(benchmark.PlainArray(params, has_tree=has_tree), 32,
                             TARGETS["ecp5-85k"], multipliers=False).luts
        for has_tree in (True, False))
    assert ours < tree < naive


FILES = {ArrayStyle.ECP5_CHAIN: "ecp5.v", ArrayStyle.XC7_PAIR: "xc7.v"}
SMALL = random_model(ModelConfig(d=24, layers=1, dff=40), C12, seed=5)
TOKENS = encode(bundled_heldout())[:3]
ICARUS = [pytest.mark.slow, pytest.mark.needs("iverilog")]


@pytest.mark.parametrize("style", FILES)
def test_models_of_the_cells_are_shipped_beside_the_verilog(style, tmp_path):
    emitted = emit_verilog(SMALL, "mac", tmp_path / "mac", rows=2, cols=5, style=style)
    model, unit = emitted.sources
    assert (model.name, unit) == (FILES[style], emitted.verilog_path)
    assert (emitted.folder / "filelist.f").read_text() == f"{FILES[style]}\nternary_mac_array.v\n"
    assert (emitted.folder / "synthesis.f").read_text() == "ternary_mac_array.v\n"
    assert emitted.manifest["files"].keys() >= {FILES[style]}
    assert emitted.manifest["params"]["style"] == style
    done = subprocess.run(
        ["verilator", "--lint-only", "-Wall", "--quiet", "--top-module", "ternary_mac_array",
         "sterna.vlt", "-f", "filelist.f"],
        cwd=emitted.folder, env=verilator_environment(), capture_output=True, text=True,
        timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("style", "simulator", "tokens", "cols"), [
    *(pytest.param(style, Simulator.VERILATOR, 3, 20, marks=pytest.mark.long) for style in FILES),
    *(pytest.param(style, Simulator.ICARUS, 2, 7, marks=ICARUS) for style in FILES)])
def test_a_style_agrees_with_both_references(style, simulator, tokens, cols):
    report = simulate(
        SMALL, "mac", TOKENS[:tokens], rows=2, cols=cols, style=style, simulator=simulator)
    assert report.passed, report.failure
    assert report.checks.reference.values > report.checks.onnx.values > 500


@pytest.mark.slow
def test_a_fault_in_a_model_is_noticed(tmp_path):
    emitted = emit_verilog(
        SMALL, "mac", tmp_path / "mac", rows=2, cols=6, style=ArrayStyle.ECP5_CHAIN)
    path = emitted.folder / "ecp5.v"
    text = path.read_text()
    assert "propagate1 ? carry : generate1" in text
    path.write_text(text.replace("propagate1 ? carry : generate1", "propagate1 ? carry : 1'b0"))
    report = simulate(SMALL, "mac", TOKENS[:1], emitted=emitted)
    assert not report.passed
