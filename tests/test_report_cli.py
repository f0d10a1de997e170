"""``sterna report``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import refusal
from command_line import run as run_sterna
from conftest import ODD
from page_checks import check_page, drawings

from sterna.cli.reports.hardware_page import PARTS, stage_bars, waterfall_plot
from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.plan.image import build_image
from sterna.hw.core.timing.cycle_report import cycle_report, memory_bits, shape_image
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.core.timing.steady_state import Cause
from sterna.hw.core.timing.waterfall import waterfall
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16
from sterna.model.quantized import load_model
from sterna.model.quantized.synthetic import random_model

pytestmark = pytest.mark.usefixtures("no_seconds")
TINY = CoreParams(ModelConfig.named("tiny"), S16)

LATER_LAYERS = {"layer1", "layer2", "layer3"}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return run_sterna(capsys, "report", *arguments)


def bars(text: str) -> dict[str, str]:
    """The bar of each stage, by name."""
    letters = "".join(part.letter for part in PARTS)
    chart = text[text.index("█ beats"):].partition("\n\n")[0]
    return dict(re.findall(rf"^(\S.*?) +([{letters}]*) [\d,.]+$", chart, re.M))


def test_it_prints_cycles_stages_bounds_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "tiny", "--rows", 8, "--cols", 128)
    assert (code, err) == (0, "")
    cycles = CycleModel(TINY).cycles_per_token()
    assert re.search(rf"^generated, greedy +{cycles:,.0f} ", out, re.M)
    assert f"Bound by the beats of the array: 864 of {cycles:,.0f} cycles" in out
    assert f"If nothing but the array took time: 864 cycles, {cycles - 864:,.0f} fewer." in out
    title = "where the cycles of a greedy token go: layers 1 to 3, each as layer 0 "
    assert title.strip() in " ".join(out.split())
    for row in ("layer0 f c g", "layers 1 to 3", "head", "sequences 2", "all but the array"):
        assert re.search(rf"^{row} ", out, re.M)
    assert re.search(r"^MLGRU state +working +8,192$", out, re.M)
    assert "estimated" not in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_bars_are_as_long_as_the_cycles(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "tiny")
    report = cycle_report(shape_image(TINY))
    found = bars(out)
    state = report.greedy
    assert list(found) == [name for name in state.names if name[:6] not in LATER_LAYERS]
    assert "layers 1 to 3, each as layer 0: 3 x 376\n" in out
    totals = {name: float(state.beats_of(name) + state.waits(name=name))
              for name in state.names}
    scale = len(found["layer0 gate up"]) / totals["layer0 gate up"]
    for name, bar in found.items():
        assert abs(len(bar) - scale * totals[name]) <= 1
        assert abs(bar.count("█") - scale * float(state.beats_of(name))) <= 1
        assert abs(bar.count("r") - scale * float(
            state.waits(name=name, cause=Cause.RECIPROCAL))) <= 1


def test_a_rate_is_given_at_a_clock_and_tagged(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tiny", "--clock-mhz", 120.5)
    assert code == 0
    assert "tokens/s at 120.5 MHz" in out
    assert "(estimated)" in out
    assert f"{120.5e6 / CycleModel(TINY).cycles_per_token():,.0f}" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_two_sequences_show_which_of_them_is_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "tiny", "--sequences", 2)
    assert code == 0
    assert re.search(r"the array waits [\d.]+ for sequence 0 and [\d.]+ for sequence 1\.", out)
    assert "longest waits of the array" in out
    assert re.search("^shared norm ", out, re.M)
    assert max(len(line) for line in out.splitlines() if not line.startswith("Of ")) <= 80


def test_json_has_the_figures_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "tiny-c12", "--sequences", 2, "--quant-lanes", 64, "--clock-mhz", 100, "--json")
    assert code == 0
    data = json.loads(out)
    model = load_model("tiny-c12")
    params = CoreParams(model.config, model.profile, sequences=2, quant_lanes=64)
    report = cycle_report(build_image(model, params))
    expected = json.loads(json.dumps(report.as_dict(100.0)))
    assert data == {"model": "tiny-c12", **expected}
    assert data["memory_bits"]["model"] == build_image(model, params).memory_bits


def test_a_configuration_needs_no_weights(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--config", "small", "--profile", "C12", "--json")
    assert code == 0
    data = json.loads(out)
    params = CoreParams(ModelConfig.named("small"), C12)
    assert (data["model"], data["profile"]) == (None, "C12")
    assert data["cycles_per_token"]["greedy"] == CycleModel(params).cycles_per_token()
    assert data["memory_bits"]["total"] == memory_bits(shape_image(params)).total
    code, out, _ = run(capsys, "--config", "nano")
    assert code == 0
    assert out.startswith("nano (no weights)\n")
    assert "profile S16" in out


def test_a_quantized_file_of_any_shape_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    path = random_model(ODD, C12, 3).save(tmp_path / "odd[b].safetensors")
    code, out, _ = run(capsys, path, "--rows", 1, "--cols", 8)
    assert code == 0
    assert out.startswith(f"{path}\n")
    assert "d 12, 2 layers, dff 21, vocabulary 65" in out


def test_the_page_stands_alone_and_shows_the_bars(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    target = tmp_path / "new" / "report.html"
    code, out, _ = run(capsys, "tiny", "--sequences", 2, "--clock-mhz", 50, "-o", target)
    assert code == 0
    assert out.endswith(f"\nreport: {target}\n")
    page = target.read_text(encoding="utf-8")
    check_page(page)
    report = cycle_report(shape_image(CoreParams(ModelConfig.named("tiny"), S16, sequences=2)))
    assert drawings(page) == [waterfall_plot(waterfall(CycleModel(report.params))),
                              stage_bars(report)]
    for title in ("Cycles per token", "Where the cycles of a greedy token go",
                  "What each part would win back if it alone took no time",
                  "What other parameters would reach", "Bits of memory"):
        assert f"<h2>{title}</h2>" in page
    assert "(estimated)" in page
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_json_and_a_page_can_be_had_together(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    target = tmp_path / "report.html"
    code, out, _ = run(capsys, "--config", "nano", "--json", "-o", target)
    assert code == 0
    assert json.loads(out)["mac_cycles"] > 0
    assert target.exists()


BAD_INPUT = {
    "neither": ((), "give either a MODEL or --config"),
    "both": (("tiny", "--config", "tiny"), "give either a MODEL or --config"),
    "no such model": (("nope",), "nope: cannot read the quantised model"),
    "no such configuration": (("--config", "huge"),
                              "--config must be one of micro, nano, tiny, small, got 'huge'"),
    "no such profile": (("--config", "tiny", "--profile", "X"),
                        "--profile must be one of S16, C12, got 'X'"),
    "profile of a model": (("tiny", "--profile", "C12"), "--profile goes with --config"),
    "rows": (("tiny", "--rows", 0), "rows must be"),
    "cols": (("tiny", "--cols", 100), "cols (100) must be a multiple of rows (8)"),
    "too many cols": (("tiny", "--cols", 8192), "cols must be a whole number from 1 to 4096"),
    "sequences": (("tiny", "--sequences", 3), "sequences must be"),
    "quantiser": (("tiny", "--quant-lanes", 24), "quant_lanes (24) must be a multiple of rows"),
    "clock": (("tiny", "--clock-mhz", 0, "-o", "r.html"),
              "the clock must be a positive number of MHz, got 0"),
    "suffix": (("tiny", "-o", "report.txt"), "--output must end in .html, got report.txt"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD_INPUT[name]
    assert message in refusal(capsys, "report", *arguments)
    assert not list(tmp_path.iterdir())


def test_an_output_that_cannot_be_written_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("a file where a folder is wanted")
    code, _, err = run(capsys, "--config", "nano", "-o", blocker / "x.html")
    assert code == 2
    assert str(blocker) in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_help_has_an_example_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    example = "tiny --rows 8 --cols 128 --clock-mhz 100"
    assert f"Example: sterna report {example}" in " ".join(out.split())
    assert run(capsys, *example.split())[0] == 0
