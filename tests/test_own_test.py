"""A user's own cocotb test of an emitted folder: run_cocotb, drivers and sinks, waves."""

from __future__ import annotations

import inspect
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cocotb.types import LogicArray
from cocotb_tools.runner import get_runner
from wave_names import declared_signals, shown_signals

import sterna.sim
from sterna.hw import emit_matrix
from sterna.hw.catalog import emit_verilog
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.emit.selftest import ends
from sterna.hw.testbench.job import SimulationError
from sterna.hw.tools.process import MissingToolError
from sterna.model.config import ModelConfig
from sterna.model.profile import C12
from sterna.model.quantized import load_model
from sterna.model.quantized.synthetic import random_model
from sterna.sim import build_options, check, run_cocotb, simulator_environment
from sterna.sim.bench import waves as waves_module
from sterna.sim.bench.runner import Launch, Simulator
from sterna.sim.bench.waves import check_waves, wave_groups, write_views
from sterna.sim.testing.run import FOLDER_VARIABLE, Folder
from sterna.sim.testing.words import read_words, words_of

BENCH = Path(__file__).parent / "data" / "own" / "glu_bench.py"
MODEL = random_model(ModelConfig(d=8, layers=1, dff=12, vocab=16), C12, seed=7)


@pytest.fixture(scope="module")
def glu(tmp_path_factory: pytest.TempPathFactory) -> EmittedUnit:
    return emit_verilog(MODEL, "glu", tmp_path_factory.mktemp("own") / "glu", lanes=4)


def test_a_folder_that_is_emitted_again_is_read_again(tmp_path):
    for rows in (3, 5):
        emit_matrix(np.ones((rows, 8)), tmp_path / "matrix", name=f"of_{rows}")
        assert Folder.read(tmp_path / "matrix").module == f"of_{rows}"


@pytest.mark.needs("iverilog")
@pytest.mark.slow
def test_a_wrong_value_is_named(glu, tmp_path):
    with pytest.raises(SimulationError, match=r"layer0\.glu\.p\[5\]: expected -?\d+, got -?\d+ "
                                              r"\(1 of 26 values differ\)"):
        run_cocotb(glu.folder, BENCH, simulator="icarus", work=tmp_path,
                   environment={"GLU_BENCH_WRONG": "1"})


@pytest.mark.needs("iverilog")
@pytest.mark.slow
def test_the_page_about_it_runs(tmp_path):
    """docs/simulation.md: the test, run_cocotb, and phases of a core."""
    page = (Path(__file__).parents[1] / "docs" / "simulation.md").read_text(encoding="utf-8")
    test, ours, phases = re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)
    emit_verilog(load_model("micro"), "glu", tmp_path / "build" / "glu")
    (tmp_path / "my_test.py").write_text(test)
    (tmp_path / "run.py").write_text(ours + phases)
    # cocotb's runner looks for pytest around it, and then prints no summary.
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "CocotbRun(tests=('products',)" in done.stdout
    assert re.search(r"^two at once True 12 ", done.stdout, re.M)
    assert re.search(r"^sequence 0 goes on True 0 ", done.stdout, re.M)
    waves = tmp_path / "build" / "glu.fst"
    assert waves.read_bytes()[:1] == b"\0"      # the header block of FST
    assert waves.stat().st_size > 1000


@pytest.mark.parametrize(("simulator", "tests"), [
    pytest.param("icarus", ("products", "a_word_that_does_not_come"),    # and one was skipped
                 marks=[pytest.mark.needs("iverilog"), pytest.mark.slow]),
    pytest.param("verilator", ("products", "a_word_that_does_not_come", "a_signal_inside"),
                 marks=pytest.mark.long)])
def test_own_tests_run_and_keep_waves(glu, tmp_path, simulator, tests):
    inside = simulator == "verilator"
    waves = tmp_path / ("glu.vcd" if inside else "välle.vcd")
    done = run_cocotb(
        glu.folder, BENCH, simulator=simulator, internals=inside, waves=waves,
        work=tmp_path / "work", environment={"GLU_BENCH_INSIDE": "1"} if inside else None)
    assert done.tests == tests
    assert done.log == tmp_path / "work" / "simulation.log"
    assert f"PASS={len(tests)}" in done.log.read_text()
    shown = shown_signals(waves)
    assert {"glu_unit.clk", "glu_unit.preacts__valid"} <= shown
    assert any("payload_gate" in name for name in shown)
    assert shown <= declared_signals(waves)


def test_the_stock_runner_is_given_what_verilator_needs(glu, tmp_path):
    """The page about it runs it, in Icarus: this is what differs in Verilator."""
    options = build_options(glu.folder, "verilator", build_dir=tmp_path)
    assert options["sources"] == [glu.folder / "sterna.vlt", *glu.sources]
    assert options["build_args"] == []
    environment = simulator_environment(glu.folder, "verilator")
    assert environment[FOLDER_VARIABLE] == str(glu.folder)
    assert shutil.which("verilator", path=environment["PATH"])
    assert options.keys() <= inspect.signature(get_runner("verilator").build).parameters.keys()


def fake_launch(results: str | None, waves: Path) -> Callable[[Launch, object], Path]:
    """In place of a simulator: writes the waves and what cocotb would, or fails to compile."""
    def launch(wanted: Launch, environment: object) -> Path:
        if results is None:
            raise SimulationError("it does not compile")
        waves.write_text("$enddefinitions $end\n")
        (Path(wanted.work) / "results.xml").write_text(f"<testsuites>{results}</testsuites>")
        return Path(wanted.work) / "simulation.log"
    return launch


@pytest.mark.needs("iverilog")
@pytest.mark.parametrize(("results", "message"), [
    ('<testcase name="a"><skipped/></testcase>', "glu_bench: all 1 tests are skipped"),
    ("", "glu_bench: no cocotb test"),
    (None, "it does not compile"),
])
def test_a_run_in_which_nothing_passed_is_an_error(glu, tmp_path, monkeypatch, results, message):
    waves = tmp_path / "x.vcd"
    monkeypatch.setattr("sterna.sim.testing.run.run_launch", fake_launch(results, waves))
    with pytest.raises(SimulationError, match=message):
        run_cocotb(glu.folder, BENCH, simulator="icarus", waves=waves, work=tmp_path / "work")
    # Views of waves that there are, and of no others.
    assert len(list(tmp_path.glob("x.vcd.*"))) == (0 if results is None else 2)


def test_a_test_in_a_simulator_loads_no_generator():
    script = ("import sys\n"
              "from sterna.sim import StreamDriver, StreamSink, check, start\n"
              "print([name for name in ('amaranth', 'onnx', 'onnxruntime', 'torch', 'vcd') "
              "if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          check=True)
    assert done.stdout.strip() == "[]"


def test_values_become_words_and_words_values(glu):
    fields = UnitPorts.of(glu.manifest).fields["preacts"]
    gate = np.array([1, -2, 3, -4, 5])
    words = words_of("preacts", fields, {"gate": gate, "up": np.zeros((2, 4), int), "last": 1})
    values = read_words(fields, words)
    assert values["gate"].tolist() == [[1, -2, 3, -4], [5, 0, 0, 0]]
    assert values["last"].tolist() == [0, 1]
    one = words_of("preacts", fields, {"gate": 1, "up": gate[:4], "last": 0})
    assert read_words(fields, one)["gate"].tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize(("values", "message"), [
    ({"gate": [1]}, "preacts wants a value for field 'last': its fields are"),
    ({"gate": [1], "up": [1], "last": 0, "first": 0}, "preacts has no field 'first'"),
    ({"gate": [1] * 4, "up": [1] * 8, "last": 0}, "the same number of words, got 1 of 'gate', 2"),
    ({"gate": [1.5], "up": [1], "last": 0}, "'gate': expected integers of up to 64 bits, got val"),
    ({"gate": [], "up": [1], "last": 0}, "'gate': expected integers of up to 64 bits, got none"),
    ({"gate": [9999], "up": [1], "last": 0}, "preacts: field 'gate' takes -128 to 127, got 0 to"),
    ({"gate": [[1, 2]], "up": [1], "last": 0}, "'gate': expected a row, or the shape (4,) or"),
    ({"gate": np.array([2**64 - 1], np.uint64), "up": [1], "last": 0},
     "'gate': expected values up to 9223372036854775807, got 18446744073709551615"),
    ([1, 2], "preacts takes values by field (gate, up, last), got list"),
])
def test_values_that_do_not_fit_are_refused_by_name(glu, values, message):
    fields = UnitPorts.of(glu.manifest).fields["preacts"]
    with pytest.raises(ValueError, match="preacts") as error:
        words_of("preacts", fields, values)
    assert message in str(error.value)


def test_streams_that_are_not_there_are_refused_by_name(glu, monkeypatch):
    dut = SimpleNamespace(clk=None)
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="does not say which folder is simulated"):
        sterna.sim.StreamDriver(dut, "preacts")
    monkeypatch.setenv(FOLDER_VARIABLE, str(glu.folder))
    driver, sink = sterna.sim.StreamDriver, sterna.sim.StreamSink
    for end, stream, options, message in (
        (driver, "products", {}, "no input stream 'products': there is preacts"),
        (sink, "acts", {}, "no output stream 'acts': there is products"),
        (driver, "preacts", {"pause": 1}, "preacts: pause must be from 0 to below 1, got 1"),
        (driver, "preacts", {"patience": 0},
         "preacts: patience must be a whole number from 1, got 0"),
        (sink, "products", {"patience": -3},
         "products: patience must be a whole number from 1, got -"),
    ):
        with pytest.raises(ValueError, match=message):
            end(dut, stream, **options)


@pytest.fixture
def fake_unit(glu: EmittedUnit, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Ports that take what they are given, of ``glu``, outside of a simulator."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(glu.folder))
    monkeypatch.setattr("cocotb.start_soon", lambda task: task.close())
    return SimpleNamespace(clk=None, **{
        f"{stream}__{part}": SimpleNamespace(value=1)
        for stream in ("preacts", "products") for part in ("payload", "valid", "ready")})


def test_ends_with_the_same_seed_pause_apart(fake_unit):
    def moves(seed: int) -> tuple[list[int], list[int]]:
        driver = sterna.sim.StreamDriver(fake_unit, "preacts", seed=seed, pause=0.5)._end
        sink = sterna.sim.StreamSink(fake_unit, "products", seed=seed, pause=0.5)._end
        driver.words = [0] * 100
        sent, taken = [], []
        for _ in range(100):
            driver.drive()
            sent.append(int(fake_unit.preacts__valid.value))
            sink.drive()
            taken.append(int(fake_unit.products__ready.value))
            driver.sample()
        return sent, taken

    sent, taken = moves(1)
    together = sum(a == b for a, b in zip(sent, taken, strict=True))
    assert 30 < together < 70
    assert moves(1) == (sent, taken)
    assert moves(2) != (sent, taken)


def test_no_words_are_received(fake_unit):
    sink = sterna.sim.StreamSink(fake_unit, "products")
    for words in (0, -1):
        with pytest.raises(ValueError, match=f"products: words must be a whole .* 1, got {words}"):
            sink.receive(words).send(None)


def test_unknown_bits_are_named(fake_unit):
    sink = ends.StreamSink(fake_unit, "products", None, random.Random(1), "real vectors")
    fake_unit.products__payload.value = LogicArray("01X1")
    sink.drive()
    with pytest.raises(AssertionError, match=(
            "real vectors: word 0 of products has unknown bits: 01X1")):
        sink.sample(0)


def test_a_module_in_the_current_folder_does_not_take_a_tests_place(glu, tmp_path, monkeypatch):
    """The simulation is started with the test's own folder first, the current one nowhere."""
    started = {}

    def tool(command: list[str], **options: Any) -> SimpleNamespace:
        found = subprocess.run(
            [*command[:command.index("-m")], "-c",
             "import importlib.util; print(importlib.util.find_spec('glu_bench').origin)"],
            env=options["env"], capture_output=True, text=True, check=True)
        started["from"] = found.stdout.strip()
        return SimpleNamespace(returncode=1)

    (tmp_path / "glu_bench.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sterna.sim.bench.runner.run_tool", tool)
    with pytest.raises(SimulationError):
        run_cocotb(glu.folder, BENCH, simulator="verilator", work=tmp_path / "work")
    assert started["from"] == str(BENCH)


def test_what_cannot_be_run_is_refused(glu, tmp_path):
    for folder, test, options, message in (
        (tmp_path, BENCH, {}, "is not a folder of emitted Verilog"),
        (glu.folder, tmp_path / "nothing.py", {"work": tmp_path / "work"}, "there is no test file"),
        (glu.folder, BENCH, {"simulator": "vcs"},
         "simulator must be one of verilator, icarus, got 'vcs'"),
        (glu.folder, BENCH, {"waves": "x.lxt"},
         r"a wave file must end in \.fst or \.vcd, got x\.lxt"),
    ):
        with pytest.raises(ValueError, match=message):
            run_cocotb(folder, test, **options)


def test_a_check_names_the_first_difference():
    check("same", np.arange(4), [0, 1, 2, 3])
    for got, expected, message in (
        ([[1, 2], [9, 9]], [[1, 2], [3, 4]], r"^q\[1, 0\]: expected 3, got 9 \(2 of 4 values"),
        (2, 1, "^q: expected 1, got 2"),
        ([1, 2, 3], [1, 2], r"q: expected the shape \(2,\), got \(3,\)"),
        ([], [], "q: there is no value to compare"),
    ):
        with pytest.raises(AssertionError, match=message):
            check("q", got, expected)


def test_views_group_the_streams(glu, tmp_path):
    texts = []
    for folder in ("one", "again"):
        (tmp_path / folder).mkdir()
        groups = wave_groups(glu.manifest, glu.sources)
        views = write_views(tmp_path / folder / "x.vcd", "glu_unit", groups)
        texts.append([path.read_text() for path in views])
    assert texts[0] == texts[1]
    shown_signals(tmp_path / "one" / "x.vcd")      # the same in both views
    lines = ["variable_add glu_unit.clk", "variable_add glu_unit.rst"]
    for stream, fields in (("preacts", ("gate", "up", "last")), ("products", ("p", "last"))):
        at = f"variable_add glu_unit.{stream}__"
        lines += [f"divider_add {stream}", f"{at}valid", f"{at}ready", f"{at}payload",
                  *(f"{at}payload_{field}" for field in fields)]
    gtkwave, surfer = texts[0]
    assert surfer.splitlines() == [*lines, "zoom_fit"]
    assert re.findall(r"^-(\w+)$", gtkwave, re.M) == ["preacts", "preacts", "products", "products"]


def test_fst_of_verilator_wants_its_headers(tmp_path, monkeypatch):
    path = tmp_path / "x.fst"
    monkeypatch.setattr(waves_module, "has_header", lambda name: name != "lz4.h")
    with pytest.raises(MissingToolError, match=r"lz4\.h .*liblz4-dev, or name the wave file \.vcd"):
        check_waves(path)
    assert check_waves(path, Simulator.ICARUS) == path
    monkeypatch.setattr(waves_module, "has_header", lambda name: True)
    assert (check_waves(path), check_waves(None)) == (path, None)
