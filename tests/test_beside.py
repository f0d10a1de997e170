"""Emitted Verilog beside other Verilog: two units in one design, in any folder, and after passes
of Yosys by themselves. Shapes of which little is left."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import sizes_of
from test_emit_layers import make

from sterna.hw.catalog import UNITS, emit_verilog
from sterna.hw.core.compute.request import Request
from sterna.hw.core.compute.sequences import prompt_layout, token_layout
from sterna.hw.core.product.core_product import patience, prompt_words
from sterna.hw.emit.documents import field_bits
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.layers.adders import emit_adders
from sterna.hw.layers.emit import emit_layer, emit_matrix
from sterna.hw.testbench.job import Job, Phase
from sterna.hw.tools.process import run_yosys
from sterna.model.config import ModelConfig
from sterna.model.layers import TernaryMatrix
from sterna.model.profile import S16, FixedPoint
from sterna.model.quantized.integer import IntegerModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.core.reference import answer

MODELS = [random_model(ModelConfig(4, 1, 4, 16), S16, seed=seed) for seed in (1, 2)]
NAMES = ("left", "right")
PAIR = """
module pair (
  input clk, input rst,
  input [{prompt}:0] prompts__payload, input prompts__valid, output prompts__ready,
  output [{token}:0] left__payload, output left__valid, input left__ready,
  output [{token}:0] right__payload, output right__valid, input right__ready);
  wire left_ready, right_ready;
  assign prompts__ready = left_ready && right_ready;
  left one (.clk(clk), .rst(rst), .prompts__payload(prompts__payload),
    .prompts__valid(prompts__valid && right_ready), .prompts__ready(left_ready),
    .tokens__payload(left__payload), .tokens__valid(left__valid), .tokens__ready(left__ready),
    .logits__payload(), .logits__valid(), .logits__ready(1'b1));
  right two (.clk(clk), .rst(rst), .prompts__payload(prompts__payload),
    .prompts__valid(prompts__valid && left_ready), .prompts__ready(right_ready),
    .tokens__payload(right__payload), .tokens__valid(right__valid), .tokens__ready(right__ready),
    .logits__payload(), .logits__valid(), .logits__ready(1'b1));
endmodule
"""


@pytest.fixture(scope="module")
def cores(tmp_path_factory: pytest.TempPathFactory) -> list[EmittedUnit]:
    """Cores of two models, with names of their own, in one folder's two."""
    folder = tmp_path_factory.mktemp("pair")
    made = [emit_verilog(model, "core", folder / name, name=name, rows=1, cols=4)
            for name, model in zip(NAMES, MODELS, strict=True)]
    params = made[0].params
    (folder / "pair.v").write_text(PAIR.format(
        prompt=prompt_layout(params).size - 1, token=token_layout(params).size - 1))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("simulator", [
    Simulator.VERILATOR, pytest.param(Simulator.ICARUS, marks=pytest.mark.needs("iverilog"))])
def test_two_cores_of_two_models_run_in_one_design(
    cores: list[EmittedUnit], simulator: Simulator, tmp_path: Path,
) -> None:
    params, asked = cores[0].params, [(0, Request((3, 7), tokens=3))]
    words = prompt_words({each.name: each for each in field_bits(prompt_layout(params))}, asked)
    job = Job(["prompts"], list(NAMES), 1, [
        Phase("run", {"prompts": words}, dict.fromkeys(NAMES, 3), reset=True)],
        patience=patience(params))
    sources = [cores[0].folder.parent / "pair.v", *cores[0].sources, *cores[1].sources]
    (result,) = run_on(simulator, sources, "pair", job, tmp_path / "work")
    texts = []
    for name, model in zip(NAMES, MODELS, strict=True):
        text = [token_layout(params).from_bits(word).token for word in result.outputs[name]]
        assert text == answer(IntegerModel(model), [asked[0][1]])[0].generated
        texts.append(text)
    assert texts[0] != texts[1]


@pytest.mark.slow
def test_yosys_takes_two_cores_through_its_passes_one_by_one(cores: list[EmittedUnit]) -> None:
    """`prep` and `synth` begin otherwise; this order ended at second names of registers."""
    for core in cores:
        run_yosys(core.folder.parent, f"""
            read_verilog pair.v {' '.join(f'{name}/{name}.v' for name in NAMES)}
            hierarchy -check -top {core.module}
            proc
            opt""")


@pytest.mark.parametrize("unit", ["mlgru", "matrix", "bitlinear"])
def test_a_folder_passes_through_yosys(unit: str, tmp_path: Path) -> None:
    weights = TernaryMatrix(np.random.default_rng(0).integers(-1, 2, (4, 12)), 0.1)
    made = (emit_verilog(MODELS[0], unit, tmp_path, **sizes_of(unit, rows=1, cols=4, lanes=2))
            if unit in UNITS else emit_matrix(weights.weight, tmp_path, rows=2)
            if unit == "matrix" else emit_layer(weights, tmp_path))
    run_yosys(tmp_path, f"""
        read_verilog {' '.join(path.name for path in made.sources)}
        hierarchy -top {made.module}
        proc
        opt""")


def test_memories_in_the_current_folder_do_not_take_the_place_of_those_beside_the_verilog(
    tmp_path: Path,
) -> None:
    """Yosys looks in the current folder first."""
    def contents(folder: Path, verilog: str) -> list[str]:
        run_yosys(folder, f"""
            read_verilog {verilog}
            proc
            memory_collect
            write_rtlil design.il""")
        return re.findall(r"parameter \\INIT (.*)", (folder / "design.il").read_text())
    rng = np.random.default_rng(0)
    for folder in (tmp_path, tmp_path / "b"):
        emit_matrix(rng.integers(-1, 2, (6, 10)), folder / "unit")
    inside = tmp_path / "unit"
    (tmp_path / "b" / "unit").rename(inside / "b")
    there = contents(inside / "b", "ternary_matrix.v")
    assert contents(inside, "b/ternary_matrix.v") == there != contents(inside, "ternary_matrix.v")


@pytest.mark.parametrize("name", ["std", "TOP", "bool", "wreal", "clk"])
def test_a_name_that_a_simulator_has_itself_is_refused(name: str, tmp_path: Path) -> None:
    for emit in (lambda: emit_matrix([[1]], tmp_path / "unit", name=name),
                 lambda: emit_verilog(MODELS[0], "glu", tmp_path / "unit", lanes=1, name=name)):
        with pytest.raises(ValueError, match="name must "):
            emit()
    assert not (tmp_path / "unit").exists()


@pytest.mark.slow
@pytest.mark.needs("iverilog")
@pytest.mark.parametrize(("weights", "kind"), [
    ([[1]], "sums"), ([[0]], "layer"), ([[1], [-1], [0]], "results"), ([[1], [-1], [0]], "adders"),
    (np.zeros((3, 4), int), "sums"), (np.zeros((3, 4), int), "adders")], ids=str)
def test_shapes_of_which_little_is_left_are_simulated(weights, kind: str, tmp_path: Path) -> None:
    matrix = TernaryMatrix(weights, 0.5)
    if kind == "layer":
        emit_layer(matrix, tmp_path)
    elif kind == "results":
        emit_matrix(matrix, tmp_path, output=FixedPoint(8, 2))
    else:
        (emit_matrix if kind == "sums" else emit_adders)(matrix.weight, tmp_path)
    assert "2 of 2 tests passed" in make(tmp_path)
