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
from sterna.hw.catalog import UNITS
from sterna.hw.flow.target import TARGETS
from sterna.model.extras import install_command
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import BUNDLED, bundled_path

pytestmark = pytest.mark.usefixtures("no_seconds")
ROOT = Path(__file__).parents[1]


# Help -------------------------------------------------------------------------------


def test_the_help_lists_every_command_with_a_sentence_and_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(capsys, "--version")[:2] == (0, "sterna 0.1.0\n")
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("Usage: sterna ")
    commands = [line for line in lines[lines.index("Commands:") + 1:] if line]
    assert [line for line in commands if not re.search(r"[^.]\.$", line)] == []
    alone = {command.callback.__name__.replace("_", "-")
             for command in app.registered_commands if command.callback}
    assert {line.split()[0] for line in commands} == alone | {
        group.typer_instance.info.name for group in app.registered_groups if group.typer_instance}
    for command in alone:
        code, text, _ = run(capsys, command, "--help")
        assert code == 0
        assert f"Example: sterna {command}" in text


def test_every_model_argument_names_all_bundled_models(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = []
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.callback.__name__.replace("_", "-")
        out = " ".join(run(capsys, name, "--help")[1].split())
        if re.search(r"Arguments: \[?MODEL\b", out):
            found.append(name)
            assert f"bundled model ({', '.join(BUNDLED)})" in out, name
    assert len(found) >= 12


# Messages ---------------------------------------------------------------------------


BAD_INPUT = {
    "no such model": (("info", "nope"), "nope: cannot read the quantised model"),
    "not a model": (("evaluate", __file__), "not a Sterna quantised model"),
    "unknown option": (("info", "tiny", "--what"), "--what"),
    "missing argument": (("info",), "Missing argument 'MODEL'"),
    "sequences of a core": (("simulate", "tiny", "--unit", "core", "--sequences", 2),
                          "--sequences does not go with simulate --unit core"),
    "prompt of a unit": (("simulate", "tiny", "--unit", "glu", "--prompt", "a"),
                         "--prompt does not go with simulate --unit glu"),
    "three prompts": (("simulate", "tiny", "--unit", "core", "--prompt", "a", "--prompt", "b",
                       "--prompt", "c"), "1 to 2, got 3"),
    "empty prompt": (("simulate", "tiny", "--unit", "core", "--prompt", ""), "got an empty one"),
    "waves": (("simulate", "tiny", "--unit", "glu", "--waves", "x.lxt"),
              "a wave file must end in .fst or .vcd, got x.lxt"),
    "waves of a board": (("chat", "--port", "/dev/null", "--waves", "x.vcd"),
                         "--waves goes with --port sim"),
    "unknown unit": (("verilog", "tiny", "--unit", "gate", "-o", "x"),
                     "unit must be one of mac, mlgru, norm, glu, core, got 'gate'"),
    "stranger": (("verilog", "tiny-c12", "--unit", "glu", "--cols", 7, "--rows", 999,
                  "--external-weights", "--routing-registers", "-o", "x"),
                 "unit glu has no size rows, cols, external-weights, routing-registers: it has"),
    "simulated stranger": (("simulate", "tiny", "--unit", "mac", "--lanes", 4),
                           "unit mac has no size lanes: it has rows, cols, style"),
    "rows": (("verilog", "tiny", "--unit", "mac", "--rows", 1000, "-o", "x"),
             "rows must be from 1 to 384"),
    "cols": (("verilog", "tiny", "--unit", "mac", "--cols", 385, "-o", "x"),
             "cols must be from 1 to 384"),
    "lanes": (("verilog", "tiny", "--unit", "mlgru", "--lanes", 3, "-o", "x"),
              "channels (128) must be a multiple of lanes (3)"),
    "suffix": (("export", "tiny", "-o", "m.bin"), "must end in .onnx"),
    "graphs": (("export", "tiny", "-o", "m.onnx", "--graphs", "loop"), "--graphs must be one of"),
    "tokens": (("simulate", "tiny", "--unit", "mac", "--tokens", 0), "--tokens must be from 1"),
    "temperature": (("generate", "tiny", "--temperature", -1), "temperature must be 0 or from"),
    "top k": (("generate", "tiny", "--top-k", 0), "top_k must be a whole number from 1"),
    "top p": (("generate", "tiny", "--top-p", 0), "top_p must be above 0"),
    "form": (("export", "tiny", "-o", "m.onnx", "--form", "int4"),
             "--form must be one of exact, exact-2bit, "),
    "form of a graph": (("generate", "m.onnx", "--form", "fast"), "has its form already"),
    "no such graph": (("generate", "m.onnx"), "m.onnx: cannot read the ONNX file"),
    "graph of a checkpoint": (("evaluate", "m.pt", "--onnx", "fast"), "quantise the checkpoint"),
    "prompt": (("generate", "micro", "--prompt", "ä"), "has the character 'ä'"),
    "seed": (("generate", "tiny", "--seed", 0), "seed must be a whole number from 1"),
    "check": (("export", "tiny", "-o", "m.onnx", "--check", 99999999),
              "--check must be from 1 to 41940"),
    "markup": (("info", "a[/b]:copyright:.safetensors"), "a[/b]:copyright:.safetensors"),
    "no tokens": (("generate", "tiny", "--tokens", 0), "--tokens must be a whole number from 1"),
    "budget": (("train",), "give the budget as --steps or as --minutes"),
    "size": (("train", "--config", "huge", "--steps", 1),
             "--config must be one of micro, nano, tiny, small, got 'huge'"),
    "zero width": (("train", "--set", "d=0", "--steps", 1), "d must be a whole number from 1"),
    "checkpoint": (("quantize", "nope.pt", "-o", "m.safetensors"), "nope.pt"),
    "profile": (("quantize", "nope.pt", "-o", "m.safetensors", "--profile", "X"),
                "--profile must be one of S16, C12"),
    "bytes": (("evaluate", "tiny", "--bytes", 1), "--bytes must be at least 2"),
    "half a character": (("generate", "tiny", "--prompt", "a\udcff"),   # the bytes 61 ff
                         "--prompt 'a\\udcff' is not UTF-8"),
    **{f"character for {command[0]}": (
        (*command, "--prompt", "ok", "--prompt", "héllo"),
        "--prompt 'héllo' has the character 'é', and this model knows only ASCII characters\n")
       for command in (("generate", "micro", "--tokens", 3),
                       ("simulate", "micro", "--unit", "core"),
                       ("chat", "micro", "--board", "icebreaker", "--port", "sim"))},
    "target": (("synth", "tiny", "--target", "ice40"),
               f"--target must be one of {', '.join(TARGETS)}, got 'ice40': did you mean "
               "ice40-up5k or ice40-hx8k?\n"),
    **{f"unit to {command[0]}": ((*command, "--unit", "cor"), f"{', '.join(UNITS)}, got 'cor'")
       for command in (("verilog", "tiny", "-o", "x"), ("simulate", "tiny"),
                       ("synth", "tiny", "--target", "xc7"))},
    "text of a core": (("simulate", "micro", "--unit", "core", "--text", "x.txt"),
                       "--text does not go with simulate --unit core: the core writes text: give "
                       "--prompt"),
    "trace of a core": (("simulate", "micro", "--unit", "core", "--trace"),
                        "--trace does not go with simulate --unit core: cocotb compares every "
                        "tensor"),
    "name as it is": (("info", "a  b"), "sterna: a  b: cannot read"),
    "rows of a demo": (("demo", "micro", "-o", "new", "--rows", 0),
                       "rows must be a whole number from 1"),
    **{f"{tokens} tokens of a demo": (
        ("demo", "micro", "-o", "new", "--tokens", tokens),
        f"tokens must be a whole number from 2 to 65535, got {tokens}") for tokens in (1, 70000)},
    **{f"{command} at {clock} MHz": (
        (command, "micro", "--board", "icebreaker", *where, "--clock", clock),
        f"--clock must be a positive number of MHz, got {clock}")
       for command, where in (("build", ("-o", "x")), ("chat", ("--port", "sim")))
       for clock in ("0", "-5", "inf", "nan")},
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD_INPUT[name]
    error = refusal(capsys, *arguments)
    assert message in error
    assert "Value error" not in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("error", "message"), [
    (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
                  "allocate memory: you tried to allocate 17179869184 bytes. Error code 12"),
     "there is not enough memory for 17179869184 bytes more: take smaller sizes"),
    (type("OutOfMemoryError", (RuntimeError,), {})(
        "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has"),
     "there is not enough memory for 2.00 GiB more: take smaller sizes"),
    (MemoryError(), "there is not enough memory: take smaller sizes"),
])
def test_too_little_memory_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception,
    message: str,
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("sterna.cli.main.app", fail)
    assert refusal(capsys, "train") == f"sterna: {message}\n"


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


def test_another_shape_is_not_resumed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"All work and no play makes Jack a dull boy.\n" * 200)
    common = ("train", "--config", "micro", "--text", text, "--set", "batch=2", "--steps", 1, "-o",
              tmp_path / "run", "--quiet")
    assert run(capsys, *common)[0] == 0
    message = refusal(capsys, *common, "--resume", "--set", "d=48", "--seed", 5)
    assert message == (
        f"sterna: cannot resume from {tmp_path}/run/checkpoint.pt: it was trained with d 32, not "
        "48; seed 0, not 5. Resume with what it was trained with, or train in another folder\n")


def test_chat_refuses_what_build_refuses_before_it_compiles(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing that emits or compiles may be reached.
    for name in ("sterna.hw.board.top.board_design", "sterna.sim.board.BoardSimulation"):
        monkeypatch.setattr(name, None)
    options = ("tiny", "--board", "icebreaker")
    code, out, err = run(capsys, "build", *options, "-o", tmp_path / "out", "--quiet")
    assert (code, out) == (2, "")
    assert "core does not fit ice40-up5k: block RAM " in err
    assert "Of the bundled models micro fits the icebreaker." in err
    # Nor is a stage announced that is not reached.
    assert run(capsys, "chat", *options, "--port", "sim") == (2, "", err)
    assert not (tmp_path / "out").exists()


FOREIGN = "plain text, then one Ω and more of the plain text"


@pytest.mark.parametrize("command", [
    ("evaluate", "micro"), ("evaluate", "micro", "--onnx", "exact"),
    ("simulate", "micro", "--unit", "mlgru", "--tokens", 30)])
def test_a_text_that_a_model_cannot_read_is_named_with_the_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[object, ...],
) -> None:
    text = tmp_path / "greek.txt"
    text.write_text(FOREIGN, encoding="utf-8")
    code, out, err = run(capsys, *command, "--text", text, "--quiet")
    assert (code, out, err) == (2, "", (
        f"sterna: {text} has the byte 206 at offset 21, and this model knows only ASCII "
        "characters: give another text with --text\n"))


def test_a_checkpoint_does_not_read_such_a_text_either(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    from sterna.model.config import NAMED_CONFIGS
    from sterna.model.stack.language_model import LanguageModel
    from sterna.model.training.checkpoint import Checkpoint, save_checkpoint
    model = LanguageModel(NAMED_CONFIGS["micro"])
    save_checkpoint(Checkpoint(model.config, {}, "text", "ab", 0, 1, 1.0, model.state_dict(), {},
                               model.initial_state(1)), tmp_path / "c.pt")
    (tmp_path / "greek.txt").write_text(FOREIGN, encoding="utf-8")
    for command in (("evaluate", tmp_path / "c.pt"),
                    ("quantize", tmp_path / "c.pt", "-o", tmp_path / "m.safetensors")):
        err = run(capsys, *command, "--text", tmp_path / "greek.txt", "--quiet")[2]
        assert "has the byte 206 at offset 21, and this model knows only ASCII charac" in err
    (tmp_path / "chinese.txt").write_text("无法" * 1000, encoding="utf-8")
    assert "has too little text that a vocabulary of 128 can spell: 0 bytes to train on" in run(
        capsys, "train", "--config", "micro", "--steps", 1, "--text", tmp_path / "chinese.txt",
        "-o", tmp_path / "run")[2]


def test_an_export_of_another_vocabulary_names_its_own_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, odd_file: Path,
) -> None:
    assert "only the bytes 0 to 64: leave the check out with --check 0" in refusal(
        capsys, "export", odd_file, "-o", tmp_path / "m.onnx")
    assert "--check must be from 1, got -1" in refusal(
        capsys, "export", "micro", "-o", tmp_path / "m.onnx", "--check", -1)
    assert "must end in .onnx" in refusal(capsys, "export", "micro", "-o", tmp_path / "n" / "m.bin")
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize("command", [
    ("verilog", "micro", "--unit", "mac"), ("simulate", "micro", "--unit", "mac"),
    ("synth", "micro", "--target", "xc7"), ("train", "--steps", 1), ("demo", "micro"),
    ("build", "micro", "--board", "icebreaker"), ("build-ops",), ("web", "micro"),
    ("chat", "--port", "sim")])
def test_a_file_in_the_place_of_a_folder_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[object, ...],
) -> None:
    (tmp_path / "file").touch()
    code, out, err = run(capsys, *command, "-o", tmp_path / "file")
    assert (code, out) == (2, "")
    assert err.endswith(f"sterna: --output must name a folder, and {tmp_path}/file is a file\n")


@pytest.mark.parametrize("command", [("quantize", "run"), ("tokenizer", "train", "text")])
def test_a_folder_in_the_place_of_a_file_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...],
) -> None:
    (tmp_path / "file").touch()
    assert f"--output must name a file, and {tmp_path} is a folder" in refusal(
        capsys, *command, "-o", tmp_path)
    assert f"--output must lie in a folder, and {tmp_path}/file is a file" in refusal(
        capsys, *command, "-o", tmp_path / "file" / "m")


@pytest.mark.parametrize(("options", "message"), [
    (("tnyi",), "tnyi: cannot read"), (("tiny", "--tokens", 0), "--tokens must be a whole"),
    (("tiny", "--threads", 0), "threads must be a whole"), (("tiny", "--top-p", 2), "top_p must"),
    (("micro", "--prompt", "é"), "knows only ASCII characters"), (("tiny", "--form", ""), "'' ")])
def test_operators_are_not_compiled_for_what_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    options: tuple[object, ...], message: str,
) -> None:
    monkeypatch.setattr("sterna.export.native.ops.build_ops", None)
    assert message.strip() in refusal(capsys, "generate", *options, "--ops")


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
