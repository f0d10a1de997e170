"""The emitted Verilog of every array style that is made of vendor cells."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from sterna.hw.catalog import emit_verilog
from sterna.hw.emit.tools import verilator_environment
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokenizer import encode
from sterna.sim.bench.runner import Simulator
from sterna.sim.simulate import simulate

FILES = {ArrayStyle.ECP5_CHAIN: "ecp5.v", ArrayStyle.ECP5_TABLE: "ecp5.v",
         ArrayStyle.XC7_PAIR: "xc7.v", ArrayStyle.XC7_TABLE: "xc7.v"}
SMALL = random_model(ModelConfig(d=24, layers=1, dff=40), C12, seed=5)
TOKENS = encode(bundled_heldout())[:3]
has_icarus = pytest.mark.skipif(shutil.which("iverilog") is None, reason="needs iverilog")
vendor_styles = pytest.mark.parametrize("style", list(FILES))


@vendor_styles
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


@pytest.mark.long
@vendor_styles
def test_a_style_agrees_with_both_references_in_verilator(style):
    report = simulate(SMALL, "mac", TOKENS, rows=2, cols=20, style=style)
    assert report.passed, report.failure
    assert report.checks.reference.values > report.checks.onnx.values > 500


@has_icarus
@pytest.mark.slow
@pytest.mark.parametrize("style", [     # the tables take eight seconds each
    pytest.param(style, marks=[pytest.mark.long] if "table" in style else []) for style in FILES])
def test_a_style_agrees_with_both_references_in_icarus(style):
    report = simulate(SMALL, "mac", TOKENS[:2], rows=2, cols=7, style=style,
                      simulator=Simulator.ICARUS)
    assert report.passed, report.failure


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
