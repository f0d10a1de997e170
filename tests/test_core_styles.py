"""The core with every style of array, and as small as a board needs it: exact all the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from sterna.hw.board import BoardName
from sterna.hw.board.boards import BOARDS
from sterna.hw.catalog import emit_verilog
from sterna.hw.core.core_product import core_design
from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.plan.image import build_image
from sterna.hw.core.plan.request import Request
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.emit.folder import EmittedUnit, emit_component
from sterna.hw.units.mac.array_style import ArrayStyle
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16, NumericProfile
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.synthetic import random_model
from sterna.sim.core.cpp_engine import CppCore
from sterna.sim.core.simulate import run_core_phases
from sterna.sim.core.stimulus import CorePhase

pytestmark = pytest.mark.usefixtures("quick_build")

# A vector of d takes one tile, one of dff three: tables are loaded once and again and again.
MODEL = random_model(ModelConfig(d=11, layers=1, dff=35, vocab=19), C12, seed=3)
ROWS, COLS = 4, 12


def check(
    model: QuantizedModel, emitted: EmittedUnit, requests: tuple[Request, ...], work: Path,
) -> None:
    """Compare every tensor, and every cycle where nothing pauses."""
    phases = [CorePhase("text", requests, reset=True),
              CorePhase("random pauses", requests, random_pauses=True)]
    reports = run_core_phases(model, emitted, phases, work=work)
    for report in reports:
        assert report.checks.passed, f"{report.name}: {report.checks.first}"
        assert report.timing.mismatches == 0, f"{report.name}: {report.timing.first}"
    assert reports[0].timing.events > 0


@pytest.mark.long
@pytest.mark.parametrize(("style", "sequences"), [     # tests/test_core.py is about generic
    (ArrayStyle.ECP5_CHAIN, 2), (ArrayStyle.ECP5_TABLE, 1), (ArrayStyle.XC7_PAIR, 1),
    (ArrayStyle.XC7_TABLE, 2)])
def test_every_tensor_and_every_cycle_with_every_style(
    style: ArrayStyle, sequences: int, tmp_path: Path,
) -> None:
    emitted = emit_verilog(
        MODEL, "core", tmp_path / "core", rows=ROWS, cols=COLS, sequences=sequences, trace=True,
        style=style)
    requests = (Request((1, 0, 7), 3), Request((18, 2), 4, temperature=1.3))[:sequences]
    check(MODEL, emitted, requests, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("profile", "rows", "cols", "quant_lanes", "sequences"), [
    (C12, 4, 12, 4, 2), (S16, 2, 8, 8, 1)])
def test_every_tensor_and_every_cycle_of_a_core_for_a_small_fpga(
    profile: NumericProfile, rows: int, cols: int, quant_lanes: int, sequences: int,
    tmp_path: Path,
) -> None:
    model = random_model(MODEL.config, profile, seed=8)
    usual = CoreParams(model.config, profile, rows=rows, cols=cols, quant_lanes=quant_lanes,
                       sequences=sequences, trace=True)
    params = replace(usual, **BOARDS[BoardName.ICEBREAKER].core)
    assert params.block_activations
    assert params.silu_table
    emitted = emit_component(model, core_design(model, params), tmp_path / "core")
    requests = (Request((1, 0, 7), 3), Request((18, 2), 4))[:sequences]
    check(model, emitted, requests, tmp_path)
    # Where buffers and silu are is no matter of cycles.
    slow = {name: getattr(params, name) for name in ("digit_bits", "root_digit_bits", "sampling")}
    assert (CycleModel(params).cycles_per_token()
            == CycleModel(replace(usual, **slow)).cycles_per_token())


@pytest.mark.long
@pytest.mark.parametrize(("profile", "style", "sequences"), [
    (S16, ArrayStyle.ECP5_CHAIN, 1), (C12, ArrayStyle.GENERIC, 2)])
def test_every_tensor_and_every_cycle_with_routing_registers(
    profile: NumericProfile, style: ArrayStyle, sequences: int, tmp_path: Path,
) -> None:
    model = random_model(MODEL.config, profile, seed=9)
    emitted = emit_verilog(
        model, "core", tmp_path / "core", rows=ROWS, cols=COLS, sequences=sequences, trace=True,
        style=style, routing_registers=True)
    requests = (Request((1, 0, 7), 3), Request((18, 2), 4, temperature=1.3))[:sequences]
    check(model, emitted, requests, tmp_path)


@pytest.mark.long
def test_a_core_without_sampling_has_no_ports_and_no_cells_for_it(tmp_path: Path) -> None:
    def emit(name: str, **sizes):
        return emit_verilog(
            MODEL, "core", tmp_path / name, rows=ROWS, cols=COLS, trace=True, **sizes)

    plain, drawing = emit("greedy", sampling=False), emit("both")
    text = plain.verilog_path.read_text()
    for part in ("control__0__beta", "control__0__seed", "draw"):
        assert part not in text
        assert part in drawing.verilog_path.read_text()
    report, = run_core_phases(
        MODEL, plain, [CorePhase("text", (Request((1, 0, 7), 5),), reset=True)], work=tmp_path)
    assert report.checks.passed, report.checks.first
    assert report.timing.events > 0
    assert report.timing.mismatches == 0
    cycles = [CycleModel(emitted.params).cycles_per_token() for emitted in (plain, drawing)]
    assert cycles[0] == cycles[1]


@pytest.mark.long
def test_a_core_without_sampling_refuses_a_temperature(tmp_path: Path) -> None:
    emitted = emit_verilog(
        MODEL, "core", tmp_path / "core", rows=ROWS, cols=COLS, sampling=False)
    core = CppCore(
        emitted.sources, emitted.module, build_image(MODEL, emitted.params), tmp_path)
    assert len(core.run([[Request((1,), tokens=2)]]).tokens[0]) == 2
    with pytest.raises(ValueError, match="no sampling: take temperature 0"):
        core.run([[Request((1,), tokens=2, temperature=1.4)]])
    with pytest.raises(ValueError, match="no sampling: take temperature 0"):
        run_core_phases(MODEL, emitted, [
            CorePhase("drawn", (Request((1,), tokens=2, temperature=1.4),))], work=tmp_path)
