"""What the command line says to somebody who asks for the wrong thing, or for nothing."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import refusal, run

from sterna.cli.main import app
from sterna.cli.terminal.console import Stages
from sterna.hw.catalog import UNITS
from sterna.hw.flow.target import TARGETS
from sterna.model.extras import install_command
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import BUNDLED, bundled_path

pytestmark = pytest.mark.usefixtures("no_seconds")
ROOT = Path(__file__).parents[1]


# Help -------------------------------------------------------------------------------


def test_without_arguments_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert out == run(capsys, "--help")[1]
    lines = out.splitlines()
    assert lines[0].startswith("Usage: sterna ")
    listed = {line.split()[0] for line in lines[lines.index("Commands:") + 1:] if line}
    assert listed == {command.callback.__name__.replace("_", "-")
                      for command in app.registered_commands if command.callback}


def test_the_list_of_commands_has_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys)
    commands = out[out.index("Commands:"):].splitlines()[1:]
    assert len(commands) >= 15
    assert [line for line in commands if not re.search(r"[^.]\.$", line)] == []


def test_every_model_argument_names_all_bundled_models(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = []
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.callback.__name__.replace("_", "-")
        out = " ".join(run(capsys, name, "--help")[1].split())
        if "MODEL <str>" in out or "[MODEL] <str>" in out:
            found.append(name)
            assert f"bundled model ({', '.join(BUNDLED)})" in out, name
    assert len(found) >= 12


# Messages ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", [
    ("generate", "micro", "--tokens", 3), ("simulate", "micro", "--unit", "core"),
    ("chat", "micro", "--board", "icebreaker", "--port", "sim")])
def test_a_character_that_a_model_does_not_know_is_named(
    capsys: pytest.CaptureFixture[str], command: tuple[object, ...],
) -> None:
    assert refusal(capsys, *command, "--prompt", "ok", "--prompt", "héllo") == (
        "sterna: --prompt 'héllo' has the character 'é', and this model knows ASCII characters "
        "alone\n")


def test_a_prompt_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    # What Python makes of an argument of the bytes 61 ff.
    assert "--prompt 'a\\udcff' is not UTF-8" in refusal(
        capsys, "generate", "tiny", "--prompt", "a\udcff")


def test_info_shows_what_an_onnx_file_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    path = tmp_path / "m.onnx"
    assert run(capsys, "export", "micro", "-o", path, "--check", 0, "--form", "web")[0] == 0
    code, out, _ = run(capsys, "info", path)
    assert code == 0
    assert out.startswith(f"{path}: d 32, 1 layers, dff 64, vocabulary 128; ")
    assert "step graph of the form web, " in out
    assert f"of the quantised model with sha256 {load_model('micro').sha256}" in out
    assert "profile C12" in out
    facts = json.loads(run(capsys, "info", tmp_path / "m.sequence.onnx", "--json")[1])
    assert (facts["graph"], facts["form"], facts["exact"]) == ("sequence", "web", True)
    assert facts["model_sha256"] == load_model("micro").sha256
    assert facts["bytes"] == (tmp_path / "m.sequence.onnx").stat().st_size
    path.write_bytes(b"no graph")
    assert f"{path}: not an ONNX file, or cut off" in refusal(capsys, "info", path)


def test_a_file_of_another_kind_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    for suffix, message in ((".onnx", "an ONNX file is made from a quantised model: give that one"),
                            (".pt", "a checkpoint has to be quantised first: sterna quantize")):
        path = tmp_path / f"m{suffix}"
        path.write_bytes(b"something else")
        assert message in refusal(
            capsys, "verilog", path, "--unit", "mac", "-o", tmp_path / "out")
    model, out = bundled_path("micro"), tmp_path / "out.safetensors"
    assert (f"{model} is a safetensors file, such as a quantised model, and no checkpoint: give "
            "a file that training wrote, checkpoint.pt") in refusal(
        capsys, "quantize", model, "-o", out)
    assert "cannot read the checkpoint tiny (No such file or directory); give a file that " in (
        refusal(capsys, "quantize", "tiny", "-o", out))
    assert not out.exists()


def test_a_target_is_chosen_from_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "synth", "tiny", "--target", "ice40") == (
        f"sterna: --target must be one of {', '.join(TARGETS)}, got 'ice40': did you mean "
        "ice40-up5k or ice40-hx8k?\n")


@pytest.mark.parametrize("command", [
    ("verilog", "tiny", "-o", "x"), ("simulate", "tiny"), ("synth", "tiny", "--target", "xc7")])
def test_a_unit_is_chosen_from_all(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...],
) -> None:
    message = refusal(capsys, *command, "--unit", "cor")
    assert "'cor'" in message
    assert "Value error" not in message
    for name in UNITS:
        assert re.search(rf"\b{name}\b", message)


def test_another_shape_is_not_resumed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"All work and no play makes Jack a dull boy.\n" * 200)
    common = ("train", "--config", "micro", "--text", text, "--batch", 2, "--steps", 1, "-o",
              tmp_path / "run", "--quiet")
    assert run(capsys, *common)[0] == 0
    message = refusal(capsys, *common, "--resume", "--d", 48, "--seed", 5)
    assert message == (
        f"sterna: cannot resume from {tmp_path}/run/checkpoint.pt: it was trained with d 32, not "
        "48; seed 0, not 5. Resume with what it was trained with, or train in another folder\n")


def test_chat_refuses_what_build_refuses_before_it_compiles(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing that emits or compiles may be reached.
    for name in ("sterna.hw.board.emit_board.board_design", "sterna.sim.board.BoardSimulation"):
        monkeypatch.setattr(name, None)
    options = ("tiny", "--board", "icebreaker")
    code, out, err = run(capsys, "build", *options, "-o", tmp_path / "out", "--quiet")
    assert (code, out) == (2, "")
    assert "core does not fit ice40-up5k: block RAM " in err
    assert "Of the bundled models micro fits the icebreaker." in err
    # Nor is a stage announced that is not reached.
    assert run(capsys, "chat", *options, "--port", "sim") == (2, "", err)
    assert not (tmp_path / "out").exists()


# Hints on what to install -------------------------------------------------------------


def test_a_checkout_is_installed_from_its_folder(tmp_path: Path) -> None:
    assert shlex.split(install_command("hw")) == [
        sys.executable, "-m", "pip", "install", "-e", f"{ROOT}[hw]"]
    spaced = tmp_path / "a folder"
    spaced.mkdir()
    assert shlex.split(install_command("sim", spaced))[-1] == "sterna[sim]"
    (spaced / "pyproject.toml").touch()
    assert shlex.split(install_command("sim", spaced))[-1] == f"{spaced}[sim]"


def test_a_wheel_is_installed_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Distribution:
        def read_text(self, name: str) -> str:
            assert name == "direct_url.json"
            return json.dumps({"url": wheel.as_uri(), "archive_info": {}})

    wheel = tmp_path / "sterna-0.1.0 copy.whl"
    monkeypatch.setattr("sterna.model.extras.distribution", lambda name: Distribution())
    assert shlex.split(install_command("hw", tmp_path))[-1] == "sterna[hw]"
    wheel.touch()
    assert shlex.split(install_command("hw", tmp_path))[-1] == f"{wheel}[hw]"


@pytest.mark.slow
def test_pip_takes_the_hint() -> None:
    # Without its dependencies, which are installed already.
    done = subprocess.run(
        [*shlex.split(install_command("hw")), "--dry-run", "--no-deps", "--quiet"],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "does not provide the extra" not in done.stderr


# Progress ---------------------------------------------------------------------------


def test_stages_are_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Stages() as stage:
        stage("compile")
        stage.detail("iteration 3")
        stage("run")
    assert capsys.readouterr().err == "compile\nrun\n"
    with Stages(quiet=True) as stage:
        stage("compile")
    assert capsys.readouterr().err == ""


def test_a_quick_stage_is_shown_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Stages() as stage:
        stage("load", quick=True)
    assert capsys.readouterr().err == ""


def test_stages_have_a_clock_on_a_terminal() -> None:
    """A stage shows running seconds, its detail, and leaves a line with its time."""
    code = ("import time\n"
            "from sterna.cli.terminal.console import Stages, say\n"
            "with Stages() as stage:\n"
            "    stage('compile'); time.sleep(1.3)\n"
            "    stage('run'); stage.detail('iteration 3'); time.sleep(0.3)\n"
            "    stage('load', quick=True)\n")
    screen = on_terminal(code)
    assert "compile 0:00:00" in screen
    assert "compile 0:00:01" in screen
    assert "run: iteration 3 0:00:00" in screen
    assert re.search(r"^compile \(1\.\d s\)$", screen, re.M)
    assert re.search(r"^run \(0\.\d s\)$", screen, re.M)
    assert "load (" not in screen


def on_terminal(code: str) -> str:
    """What a piece of Python prints on a terminal, without the control sequences."""
    import os
    import pty
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"})
    os.close(theirs)
    printed = b""
    try:
        while chunk := os.read(ours, 4096):
            printed += chunk
    except OSError:     # Linux says so when the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode())
    return plain.replace("\r", "\n")
