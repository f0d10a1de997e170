"""The pages that commands write: verdict, drawings, and how they look on a phone."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import check_width
from page_checks import check_page, drawings, verdict_of
from web_browser import Page, open_browser

from sterna.cli.reports.report import DemoResult, Stage, write_report
from sterna.cli.reports.synth_page import (
    area_plot,
    floorplan,
    headline,
    synth_tables,
    write_synth_report,
)
from sterna.export.float.reference import rounding_errors
from sterna.hw.core.cycles.report import cycle_report
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.flow.report import CellCounts
from sterna.hw.flow.routed import (
    CriticalPath,
    Hop,
    PlacedCells,
    SlackBin,
    SlackHistogram,
)
from sterna.hw.flow.synth_report import SeedRun, SynthReport, Usage
from sterna.hw.flow.synthesis import Synthesis
from sterna.hw.fpga.families import TARGETS
from sterna.hw.fpga.families.ecp5 import ECP5
from sterna.hw.fpga.families.ice40 import ICE40
from sterna.hw.fpga.family import Area, Resource
from sterna.model.quantized import load_model

MODEL = load_model("micro")
PLACED = (
    PlacedCells(3, 0, Resource.LUT, "row0.tree", 4), PlacedCells(3, 0, Resource.FF, "", 12),
    PlacedCells(9, 7, Resource.BLOCK_RAM, "norm", 1),
    PlacedCells(72, 50, Resource.LUT, None, 2))
SLACK = SlackHistogram(7, (SlackBin(-300, -100, 7), SlackBin(-100, 100, 0), SlackBin(100, 300, 70)))
HOP = Hop("register", "row0", "row0.sum[3]", 1, 0.5, 1.25)
PATH = CriticalPath("row0.sum[3]", "sums__payload[1]", 1.0, 2.5, (HOP, HOP))


def synth_report(**changes: object) -> SynthReport:
    """A report as it is after place and route; the figures are made up."""
    report = SynthReport(
        "mac", {"rows": 2, "cols": 4}, "ternary_mac_array", TARGETS["ecp5-25k"],
        {"sterna": "0"}, Synthesis(ECP5, "Yosys 0", {"LUT4": 40, "TRELLIS_FF": 30}, {}),
        (Usage(Resource.LUT, 12144, 24288, "nextpnr"), Usage(Resource.DSP, 0, 28, "nextpnr")),
        {"": Area(5, 0, 10), "row0": Area(20, 4, 10), "row1": Area(15, 4, 10)},
        runs=(SeedRun(1, 250.0, PATH, PLACED, SLACK),), aim_mhz=180.0, macs_per_cycle=8)
    return replace(report, **changes)


def page_of(folder: Path, report: SynthReport) -> str:
    write_synth_report(folder, "small <model>", report)
    return (folder / "synth.html").read_text(encoding="utf-8")


def demo_page(path: Path, *stages: Stage) -> Path:
    """The demo's report on micro, of what each stage is said to have found."""
    params = CoreParams(Limits.of(MODEL), rows=2, cols=16)
    tokens = np.arange(65, 97).reshape(2, 16)
    result = DemoResult(
        "micro", stages=list(stages), bits_per_byte=2.5,
        cells={"array": CellCounts({"$add": 3}, 40, 0)}, text=" <written>",
        cycles=cycle_report(params, MODEL.config), errors=rounding_errors(MODEL, tokens),
        error_tokens=tokens.size, versions={"sterna": "0"})
    assert json.loads(json.dumps(result.as_dict()))["cells"]["array"]["register_bits"] == 40
    return write_report(path, MODEL, result)


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_page(tmp_path_factory.mktemp("demo") / "report.html",
                     Stage("ONNX", "equal", 1_200_000, 0, 1.0),
                     Stage("Verilog", "written", None, 0, 1.0),
                     Stage("simulate", "equal", 34_567, 0, 1.0))


def test_the_demo_says_first_how_many_values_were_compared(passed: Path) -> None:
    page = passed.read_text(encoding="utf-8")
    check_page(page)
    assert verdict_of(page) == ("pass", "PASS")
    assert "<dd>1,234,567</dd><dt>values compared</dt>" in page
    assert "<dd>0</dd><dt>mismatches</dt>" in page
    # Cycles, rounding error, loss.
    assert len(drawings(page)) == 3
    assert "layer0.glu.x" in page
    assert " &lt;written&gt;" in page


def test_a_mismatch_anywhere_is_the_verdict(tmp_path: Path) -> None:
    page = demo_page(tmp_path / "report.html", Stage("ONNX", "differs", 100, 3, 1.0),
                     Stage("simulate", "equal", 100, 0, 1.0)).read_text(encoding="utf-8")
    check_page(page)
    assert verdict_of(page) == ("fail", "FAIL")
    assert "There are mismatches: ONNX." in page
    assert "<dd>3</dd><dt>mismatches</dt>" in page


@pytest.mark.parametrize(("changes", "verdict", "said"), [
    ({}, ("pass", "FITS"), "Every resource suffices on Lattice ECP5"),
    ({"required_mhz": 200.0}, ("pass", "FITS"), "The clock of 200 MHz is reached."),
    ({"required_mhz": 300.0}, ("fail", "CLOCK NOT REACHED"), "300 MHz required, 250.0 MHz"),
    ({"usage": (Usage(Resource.LUT, 30000, 24288, "nextpnr"),), "runs": (),
      "misfit": "LUT 30,000 needed, 24,288 available"},
     ("fail", "DOES NOT FIT"), "LUT 30,000 needed, 24,288 available"),
    ({"usage": (Usage(Resource.DSP, 3, 0, "nextpnr"),), "runs": (),
      "misfit": "DSP 3 needed, 0 available"},
     ("fail", "DOES NOT FIT"), "DSP 3 needed, 0 available"),
    ({"target": TARGETS["xc7"], "usage": (Usage(Resource.LUT, 40, None, "Yosys"),), "runs": ()},
     ("note", "SYNTHESISED"), "a family"),
])
def test_a_synthesis_says_first_whether_it_fits(
    tmp_path: Path, changes: dict, verdict: tuple[str, str], said: str,
) -> None:
    page = page_of(tmp_path, synth_report(**changes))
    check_page(page)
    assert verdict_of(page) == verdict
    assert said in page
    assert "small &lt;model&gt;" in page


def test_a_synthesis_shows_how_full_the_device_is_and_what_is_where(tmp_path: Path) -> None:
    report = synth_report()
    page = page_of(tmp_path, report)
    assert "12,144 of 24,288: 50.0%" in page
    assert 'style="width: 50%"' in page
    # Floorplan, slack, area.
    assert len(drawings(page)) == 3
    assert "a bar is up to 6 short" in page
    assert "at 180 MHz" in page
    assert page == page_of(tmp_path / "again", report)
    text = (tmp_path / "area.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme:dark" in text      # ink that can be read there
    alone = ElementTree.fromstring(text)
    assert alone.tag == "{http://www.w3.org/2000/svg}svg"
    assert "LUT: 40" in area_plot(report)
    over = page_of(tmp_path, synth_report(
        usage=(Usage(Resource.LUT, 30000, 24288, "nextpnr"),), runs=()))
    assert 'class="over" style="width: 100%"' in over


def test_a_floorplan_fills_tiles_by_their_cells() -> None:
    plan = floorplan(PLACED, TARGETS["ecp5-25k"], seed=1)
    for name in ("row (4)", "(itself) (12)", "norm (1)", "added to place it (2)"):
        assert f"{name}</li>" in plan
    paths = re.findall(r'<path fill="(#\w+)" d="(.*?)"/>', plan)
    assert len(paths) == 4
    drawn = " ".join(path for _, path in paths)
    # Column 3 of the lowest row: 12 of 16 cells, then 4 more to the top of the tile.
    assert "M30 510h9V502.5h-9z" in drawn
    assert "M30 502.5h9V500h-9z" in drawn
    # The last column and row, in which two cells are.
    assert "M720 10h9V8.75h-9z" in drawn


def test_the_tables_of_a_synthesis_fit_eighty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    target, name = TARGETS["ice40-up5k"], "norm.scale.root.remainder[12]"
    path = CriticalPath(name, name, 2.5, 1.0, (
        Hop("register", "norm.scale.root.remainder", name, 1, 1.25, 0.5),
        Hop("carry", "norm.scale.quotient", None, 12, 1.25, 0.5)))
    usage = tuple(Usage(resource, 123_456, number, "nextpnr-ice40 0.11.1.0.post826")
                  for resource, number in target.available.items())
    report = synth_report(
        unit="core", sizes={}, module="matmul_free_core", target=target, usage=usage,
        synthesis=Synthesis(ICE40, "Yosys 0.70", {}, {}), cycles_per_token=2173.0,
        blocks={"activations": Area(12_345, 12_345, 12_345, 123, 123)},
        runs=tuple(SeedRun(seed, 33.5, path, (), None) for seed in (1, 2)))
    assert len(headline(report)) == 2
    alone = tuple(replace(each, tool="Yosys 0.70") for each in usage)
    assert "the extra pnr brings it" in headline(replace(report, usage=alone))[2]
    # The command says what does not fit at its end, the page at its top.
    misfit = replace(report, misfit="core does not fit ice40-up5k: 123,456 needed.", runs=())
    assert len(headline(misfit)) == 2
    assert page_of(tmp_path, misfit).count(misfit.misfit) == 1
    tables = synth_tables(report)
    assert set(tables) == {"figures", "seeds", "path", "blocks"}
    for table in tables.values():
        table.print()
        check_width(capsys.readouterr().out)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.slow
@pytest.mark.browser
def test_no_page_is_wider_than_a_phone_and_dark_is_dark(
    browser: Page, passed: Path, tmp_path: Path,
) -> None:
    page_of(tmp_path, synth_report())
    for file in (passed, tmp_path / "synth.html"):
        papers = []
        for dark in (False, True):
            browser.screen(360, 740, dark=dark)
            browser.driver.get(file.as_uri())
            assert browser.script("return document.documentElement.scrollWidth") <= 360
            papers.append(browser.script("return getComputedStyle(document.body).backgroundColor"))
            ink, text = browser.script(
                "const text = document.querySelector('figure text');"
                "return [getComputedStyle(document.body).color, getComputedStyle(text).fill]")
            assert ink == text
        assert papers == ["rgb(255, 255, 255)", "rgb(20, 24, 31)"]
