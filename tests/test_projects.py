"""What other people's tools read of an emitted folder, by those tools."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from ipyxact.ipyxact import Component

from sterna.hw.catalog import emit_verilog
from sterna.hw.core.product.registers import Bus
from sterna.hw.flow.place_route import route
from sterna.hw.flow.synthesis import synthesize
from sterna.hw.fpga.families import TARGETS
from sterna.hw.fpga.families.ecp5 import ECP5
from sterna.hw.tools.process import verilator_environment
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.model.config import ModelConfig
from sterna.model.profile import S16
from sterna.model.quantized.synthetic import random_model

MODEL = random_model(ModelConfig(8, 1, 12, 20), S16, seed=1)
FUSESOC = "from fusesoc.main import main; main()"


@pytest.mark.parametrize(("unit", "options"), [
    ("glu", {"lanes": 2, "axis": True}),
    ("mac", {"rows": 2, "cols": 8, "style": ArrayStyle.ECP5_CHAIN}),
    pytest.param("core", {"rows": 2, "cols": 8, "bus": Bus.AXI4_LITE}, marks=pytest.mark.slow)])
def test_fusesoc_and_ipyxact_read_a_folder(unit, options, tmp_path):
    done = emit_verilog(MODEL, unit, tmp_path / "unit", **options)
    run = subprocess.run(
        [sys.executable, "-c", FUSESOC, "--cores-root", "unit", "run", "--target", "lint",
         done.module], cwd=tmp_path, env=verilator_environment(), capture_output=True, text=True,
        timeout=300, check=False)
    assert not run.returncode, run.stdout + run.stderr
    made = next(tmp_path.glob("build/*/lint-verilator"))
    copied = {path.name for path in made.glob("*.mem")}
    memories = {path.name for path in done.folder.glob("*.mem")}
    assert copied == memories
    assert "-Wall" in (made / "config.mk").read_text()

    component = Component()
    component.load(str(done.folder / f"{done.module}.ipxact.xml"))
    found = []
    for port in component.model.ports.port:
        vectors = port.wire.vectors
        width = 1 + int(vectors.vector[0].left) if vectors else 1
        found.append({"name": port.name, "direction": f"{port.wire.direction}put", "width": width})
    assert found == done.manifest["ports"]
    assert {each.name for each in component.fileSets.fileSet[0].file} == {
        *memories, *done.text("synthesis.f").split()}
    blocks = [block for each in component.memoryMaps.memoryMap for block in each.addressBlock
              ] if component.memoryMaps else []
    assert [(each.name, int(each.addressOffset), int(each.field[0].bitWidth))
            for block in blocks for each in block.register] == [
        (each["name"], each["offset"], each["bits"])
        for each in done.manifest.get("registers", ())]
    assert len(blocks) == ("bus" in options)


def test_constraints_and_script_name_the_module_and_its_files(tmp_path):
    done = emit_verilog(MODEL, "glu", tmp_path / "unit", lanes=2)
    script = done.text("vivado.tcl")
    assert "synth_design -top glu_unit " in script
    assert f"read_verilog {{{' '.join(done.text('synthesis.f').split())}}}" in script


def test_nextpnr_takes_the_clock_from_the_constraints(tmp_path):
    """Of a register in place of the unit: only its clock counts."""
    done = emit_verilog(MODEL, "glu", tmp_path / "unit", lanes=2)
    text = "module top(input clk, output reg q); always @(posedge clk) q <= ~q; endmodule\n"
    _, netlist = synthesize({"top.v": text}, "top", ECP5)
    (tmp_path / "unit.sdc").write_text(done.text("glu_unit.sdc"))
    report = route(tmp_path, TARGETS["ecp5-25k"], json.dumps(netlist).encode(),
                   ["--sdc", "unit.sdc"])
    assert report["fmax"]["clk"]["constraint"] == 100
