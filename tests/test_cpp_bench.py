"""The bench in C++: the results of the one in cocotb, and its errors."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ODD
from wave_names import declared_signals

from sterna.hw.catalog import emit_verilog, unit_named
from sterna.hw.core.compute.request import Request
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.testbench.job import Job, MonitoredBits, Pause, Phase, PhaseResult, SimulationError
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized.synthetic import random_model
from sterna.sim.bench import cpp_bench as cpp_bench_module
from sterna.sim.bench.cpp_bench import run_in_cpp
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.core import simulate as simulate_module
from sterna.sim.core.reference import record_activations
from sterna.sim.core.simulate import run_core_phases
from sterna.sim.core.stimulus import CorePhase

pytestmark = pytest.mark.usefixtures("quick_build")


# Icarus compiles these in no time.
QUICK = Simulator.ICARUS
needs_quick = pytest.mark.needs("iverilog")


def run_in_both(
    simulator: Simulator, sources: list[Path], top: str, job: Job, work: Path,
) -> list[PhaseResult]:
    """Run the phases of a job without pauses; the results of both benches, which are the same."""
    job = replace(job, phases=[
        replace(phase, random_pauses=False, pauses={}) for phase in job.phases])
    results = run_in_cpp(sources, top, job, work / "cpp")
    assert results == run_on(simulator, sources, top, job, work / "cocotb")
    return results


# Gives every word once, or twice; `age` has no reset: it counts every cycle that ever was.
ECHO = """
module echo(
    input clk, input rst, input [40:0] key, input twice, input deaf, output [70:0] taps,
    input [98:0] words__payload, input words__valid, output words__ready,
    output [98:0] echoes__payload, output echoes__valid, input echoes__ready,
    output [7:0] ages__payload, output ages__valid, input ages__ready);
  reg [98:0] held;
  reg [1:0] left;
  reg [7:0] age = 0;
  assign words__ready = left == 0 && !deaf && age[1:0] != 2;
  assign echoes__valid = left != 0 && echoes__ready;
  assign echoes__payload = held ^ key;
  assign ages__valid = left == 1;
  assign ages__payload = age;
  assign taps = {held[55:0], age, left, 4'd0, words__valid};
  always @(posedge clk) begin
    age <= age + 1;
    if (rst) left <= 0;
    else if (left != 0) left <= left - 1;
    else if (words__valid && words__ready) begin
      left <= twice ? 2 : 1;
      held <= words__payload;
    end
  end
endmodule
"""
WORDS = [1 << 98, 3, (1 << 99) - 1, 5 << 40, 0]
PLAIN = Phase("plain", {"words": WORDS}, {"echoes": 5, "ages": 5}, random_pauses=False)


def echo_job(*phases: Phase) -> Job:
    return Job(["words"], ["echoes", "ages"], 1, list(phases), ["key", "twice", "deaf"], 30, [
        MonitoredBits("offered", "taps", 0, 15), MonitoredBits("held", "taps", 5, 66),
        MonitoredBits("never", "taps", 4, 1)])


@pytest.fixture
def echo(tmp_path: Path) -> list[Path]:
    (tmp_path / "echo.v").write_text(ECHO)
    return [tmp_path / "echo.v"]


def test_every_kind_of_phase_gives_what_cocotb_gives(echo, tmp_path):
    twice = replace(PLAIN, outputs={"echoes": 10, "ages": 5}, levels={"twice": 1, "key": 5 << 38})
    results = run_in_both(Simulator.VERILATOR, echo, "echo", echo_job(
        replace(PLAIN, reset=True), twice, replace(twice, outputs={}, cut_after=7),
        Phase("nothing", {}, {}), replace(twice, reset=True)), tmp_path)
    assert results[0].outputs["echoes"] == WORDS
    assert results[1].outputs["echoes"] == [
        word ^ 5 << 38 for word in WORDS for _ in range(2)]
    assert max(results[0].seen["held"]) > 1 << 60
    assert results[0].seen["never"] == []
    assert results[3].cycles == 0


@needs_quick
def test_a_hang_and_a_word_too_many_are_told_as_cocotb_tells_them(echo, tmp_path):
    for changes, message in (
        ({"levels": {"deaf": 1}}, "plain: no transfer for 30 cycles with 0 of 5 words sent, "
                                  "0 of 5 echoes received, 0 of 5 ages received"),
        # the word a second time, after the end
        ({"inputs": {"words": [4]}, "outputs": {"echoes": 1, "ages": 1}, "levels": {"twice": 1}},
         "plain: more came out of echoes than the 1 words expected"),
    ):
        job = echo_job(PLAIN, replace(PLAIN, **changes))
        for run in (lambda *job: run_in_cpp(*job, tmp_path / "cpp"),
                    lambda *job: run_on(QUICK, *job, tmp_path / "cocotb")):
            with pytest.raises(SimulationError, match=message):
                run(echo, "echo", job)


def test_what_the_bench_cannot_do_is_refused(echo, tmp_path):
    pauses = r"the C\+\+ bench never pauses, phase 'plain' does: run it in cocotb"
    for phase, message in (
        (replace(PLAIN, random_pauses=True), pauses),
        (replace(PLAIN, pauses={"echoes": Pause(0.5)}), pauses),
        (replace(PLAIN, inputs={"words": [1 << 99]}), r"a port of 99 bits cannot be given 6338.*"),
        (replace(PLAIN, levels={"twice": -1}), "a port of 1 bits cannot be given -1"),
    ):
        with pytest.raises(ValueError, match=message):
            run_in_cpp(echo, "echo", echo_job(phase), tmp_path / "cpp")
    job = Job(["words"], ["others"], 1, [])
    with pytest.raises(SimulationError, match="echo has no port others__payload"):
        run_in_cpp(echo, "echo", job, tmp_path / "cpp")
    echo[0].write_text("module echo(input clk; endmodule")
    with pytest.raises(SimulationError, match=r"verilator failed on echo: .*cpp_build\.log"):
        run_in_cpp(echo, "echo", echo_job(PLAIN), tmp_path / "cpp")


def test_a_run_in_pieces_is_the_same_and_an_interrupt_ends_it(echo, tmp_path, monkeypatch):
    whole = run_in_cpp(echo, "echo", echo_job(PLAIN), tmp_path / "cpp")
    monkeypatch.setattr(cpp_bench_module, "CHUNK", 5)
    assert run_in_cpp(echo, "echo", echo_job(PLAIN), tmp_path / "cpp") == whole

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # It would wait for ever for a word more.
    endless = replace(PLAIN, outputs={**PLAIN.outputs, "echoes": len(WORDS) + 1})
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_in_cpp(echo, "echo", replace(echo_job(endless), patience=1 << 40),
                       tmp_path / "cpp")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_waves_show_every_word(echo, tmp_path):
    waves = tmp_path / "echo.vcd"
    run_in_cpp(echo, "echo", echo_job(PLAIN), tmp_path / "cpp", waves=waves)
    assert {"echo.clk", "echo.echoes__valid"} <= declared_signals(waves)
    text = waves.read_text()
    code = re.search(r"\$var wire 1 (\S+) echoes__valid ", text)
    assert code
    assert len(re.findall(rf"^1{re.escape(code[1])}$", text, re.M)) == len(WORDS)


@needs_quick
def test_a_unit_gives_what_it_gives_in_cocotb(tmp_path):
    model, spec = random_model(ODD, C12, seed=7), unit_named("mlgru")
    emitted = emit_verilog(model, "mlgru", tmp_path / "mlgru", lanes=3)
    acts, = record_activations(model, [np.array([5, 64, 0])], spec.stimulus.tensors(model))
    ports = UnitPorts.of(emitted.manifest)
    job = Job(ports.inputs, ports.outputs, 1, [
        each.phase for each in spec.stimulus.phases(model, emitted, acts)], ports.levels)
    run_in_both(QUICK, emitted.sources, emitted.module, job, tmp_path)


@needs_quick
def test_a_core_gives_what_it_gives_in_cocotb(tmp_path, monkeypatch):
    model = random_model(ModelConfig(d=8, layers=1, dff=12, vocab=10), S16, seed=3)
    emitted = emit_verilog(model, "core", tmp_path / "core", rows=4, cols=8, sequences=2)
    monkeypatch.setattr(
        simulate_module, "run_on", lambda simulator, *job, waves: run_in_both(QUICK, *job))
    requests = (0, Request((1, 2, 3), 3)), (1, Request((4,), 2, 0.7, 5))
    report, = run_core_phases(model, emitted, [
        CorePhase("cut", requests, reset=True, cut_after=150),
        CorePhase("text", requests, reset=True)], work=tmp_path)
    assert report.checks.passed
    assert [len(tokens) for tokens in report.generated] == [3, 2]
