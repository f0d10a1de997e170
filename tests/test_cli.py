"""The command line: what each command writes, and what stops it halfway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx
import pytest
from command_line import refusal, run

from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.tokenizer import decode

pytestmark = pytest.mark.usefixtures("no_seconds")
ROOT = Path(__file__).parents[1]
Capture = pytest.CaptureFixture[str]


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
    assert found["profile"]["z"] == {"bits": 8, "frac": 4}
    assert found["provenance"]["heldout"]["integer_bpb"] > 1


def test_info_shows_what_an_onnx_file_is(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    printed(capsys, "export", "micro", "-o", path, "--check", 0, "--form", "web")
    out = printed(capsys, "info", path)
    assert out.startswith(f"{path}: d 32, 1 layers, dff 64, vocabulary 128; ")
    sha256 = load_model("micro").sha256
    for said in ("step graph of the form web, ", "profile C12",
                 f"of the quantised model with sha256 {sha256}"):
        assert said in out
    path = tmp_path / "m.sequence.onnx"
    found = facts(capsys, "info", path)
    assert found.items() >= {"graph": "sequence", "form": "web", "exact": True,
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


def test_export_writes_both_graphs_and_generate_runs_them(capsys: Capture, tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "m.onnx"
    results = facts(capsys, "export", "tiny", "-o", target, "--check", 20)
    assert [Path(entry["file"]).name for entry in results] == ["m.onnx", "m.sequence.onnx"]
    assert all(entry["mismatches"] == 0 and entry["values"] > 5000 for entry in results)
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


def test_a_read_only_folder_is_named() -> None:
    # Root may write anywhere, so it becomes nobody, once everything has been imported.
    code = ("import os, sys\n"
            "from sterna.cli.main import main\n"
            "arguments = ['export', 'tiny', '--check', '0', '-o']\n"
            "assert main([*arguments, sys.argv[1]]) == 0\n"
            "os.geteuid() or os.seteuid(65534)\n"
            "sys.exit(main([*arguments, sys.argv[2]]))")
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o755)
        folder = Path(base) / "locked"
        folder.mkdir(mode=0o555)
        target = folder / "m.onnx"
        result = subprocess.run(
            [sys.executable, "-c", code, f"{base}/m.onnx", str(target)], capture_output=True,
            text=True, check=False)
        assert (result.returncode, result.stderr) == (
            2, f"sterna: {target}: cannot write (Permission denied)\n")
        assert not list(folder.iterdir())


@pytest.mark.parametrize(("simulator", "hint"), [
    ("verilator", "g++"), ("icarus", "apt-get install iverilog")])
def test_missing_tools_are_named(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulator: str, hint: str,
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
