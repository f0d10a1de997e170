"""The examples run as they are, in any folder, print what their page says, and are short; their
notebooks have the same code."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import onnxruntime
import pytest
import torch

from sterna.export.forms.forms import build, export_onnx
from sterna.export.web.page import write_page
from sterna.model.pattern import Choice
from sterna.model.quantized import load_model
from sterna.model.quantized.integer import IntegerModel
from sterna.model.torch.network.projection import MixerInit
from sterna.model.torch.network.registry import TOKEN_MIXERS
from sterna.model.torch.study.contract import check_choice

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path for path in FOLDER.rglob("*")
                 if path.suffix in (".py", ".v", ".mjs", ".sh") and "__pycache__" not in path.parts)
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
DREAMS = {"layer_to_onnx.py", "matrix_in_simulators.py", "matrix_to_verilog.py",
          "my_cocotb_test.py", "run.sh", "emit.py", "tb.v"}
"""Those of at most 20 lines; the others have at most 40, but for the loop of training."""
MADE = {"check_onnx.py", "onnxruntime_loop.py", "onnxruntime_tokens.py",
        "webassembly_loop.mjs"}
"""Those that need an exported model."""
needs_icarus = pytest.mark.needs("iverilog")
MARKS: dict[str, list[Any]] = {
    "corpus_to_bitstream.py": [pytest.mark.long], "sensor.py": [pytest.mark.long],
    "matrix_to_verilog.py": [pytest.mark.long],
    "matrix_in_simulators.py": [pytest.mark.slow, needs_icarus],
    "my_cocotb_test.py": [needs_icarus]}


def printed() -> dict[str, str]:
    """What the page says that each script prints, by its path."""
    rows = re.findall(r"^\|.*?\[.*?\]\((\S+?)\) \| `(.*?)` \|$",
                      (FOLDER / "README.md").read_text(encoding="utf-8"), re.M)
    return dict(rows)


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command that is to succeed, in a folder; return what it prints."""
    done = subprocess.run(
        command, cwd=cwd, text=True, timeout=600, capture_output=True,
        env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def run_python(script: Path, folder: Path, **environment: str) -> str:
    return run(sys.executable, "-W", "error", script, cwd=folder, **environment)


def model_and_text(folder: Path, name: str, tokens: int) -> str:
    """Write the graphs of a model; return the text that the integer reference writes, taking the
    largest logit each time."""
    loaded = load_model(name)
    export_onnx(loaded, folder / f"{name}.onnx")
    model, text = IntegerModel(loaded), loaded.tokenizer.encode(b"The for statement").tolist()
    logits, state = model.run(np.array([text]))
    last = logits[:, -1]
    for _ in range(tokens):
        text.append(int(last[0].argmax()))
        last, state = model.step(np.array([text[-1]]), state)
    return loaded.tokenizer.decode(text)


def test_the_page_names_every_example() -> None:
    named = {Path(path).parts[0] for path in printed()}
    assert named == {path.name for path in FOLDER.iterdir()} - {"README.md", "__pycache__"}


def test_an_example_is_short() -> None:
    for script in SCRIPTS:
        lines = script.read_text(encoding="utf-8").splitlines()
        most = {"train_minimal.py": 120, "sensor.py": 60}.get(
            script.name, 20 if script.name in DREAMS else 40)
        assert len(lines) <= most, script
        assert max(map(len, lines)) <= 100, script


@pytest.mark.parametrize("script", [
    pytest.param(path, id=path.name, marks=MARKS.get(path.name, []))
    for path in SCRIPTS if path.parent == FOLDER and path.name not in MADE])
def test_an_example_prints_what_its_page_says(script: Path, tmp_path: Path) -> None:
    assert printed()[script.name] in run_python(script, tmp_path)


def test_the_example_of_a_mixer_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be cut anywhere, and its state is as large as it says, with memory of its own."""
    monkeypatch.setattr(TOKEN_MIXERS, "_classes", dict(TOKEN_MIXERS._classes))
    choice = Choice(f"{FOLDER / 'my_mixer.py'}:ShortConv", (("taps", 3),))
    check_choice(choice, 8)
    mixer, x = TOKEN_MIXERS.build(choice, MixerInit(8)), torch.zeros(9, 2, 8)
    _, (last,) = mixer(x, mixer.initial_state(x))
    assert last.untyped_storage().nbytes() == last.nbytes


@pytest.mark.parametrize(("script", "name", "tokens"), [
    ("onnxruntime_loop.py", "tiny", 64), ("onnxruntime_tokens.py", "tiny-bpe", 32)])
def test_the_loops_of_onnxruntime_write_the_text_of_the_reference_without_sterna(
    script: str, name: str, tokens: int, tmp_path: Path,
) -> None:
    expected = model_and_text(tmp_path, name, tokens)
    absent = tmp_path / "absent" / "sterna"
    absent.mkdir(parents=True)
    (absent / "__init__.py").write_text("raise ImportError('there is no sterna')\n")
    text = run_python(FOLDER / script, tmp_path, PYTHONPATH=str(absent.parent))
    assert text == expected + "\n"
    assert printed()[script] in text


def test_the_check_of_a_file_says_whether_a_runtime_is_right(tmp_path: Path) -> None:
    proto = build(load_model("tiny"))
    path = tmp_path / "tiny.onnx"
    path.write_bytes(proto.SerializeToString())
    script = FOLDER / "check_onnx.py"
    assert run_python(script, tmp_path) == printed()[script.name].replace(
        "1.31.1", onnxruntime.__version__) + "\n"
    weight = next(each for each in proto.graph.initializer if each.name == "head.weight")
    weight.raw_data = bytes(len(weight.raw_data))
    path.write_bytes(proto.SerializeToString())
    done = subprocess.run([sys.executable, script], cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 1
    assert done.stdout.endswith(": WRONG\n")


@pytest.mark.needs("node")
def test_the_loop_in_javascript_writes_the_text_of_the_reference(tmp_path: Path) -> None:
    expected = model_and_text(tmp_path, "tiny", 64)
    write_page(load_model("tiny"), tmp_path / "page")
    text = run("node", FOLDER / "webassembly_loop.mjs", cwd=tmp_path)
    assert text == expected + "\n"
    assert printed()["webassembly_loop.mjs"] in text


@needs_icarus
def test_verilog_alone_needs_no_python_and_a_wrong_sum_is_noticed(tmp_path: Path) -> None:
    for path in (FOLDER / "verilog_only").iterdir():
        shutil.copy(path, tmp_path)
    run_python(tmp_path / "emit.py", tmp_path)

    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cp", "iverilog", "vvp", "tee", "grep"):
        (tools / name).symlink_to(str(shutil.which(name)))
    assert not shutil.which("python3", path=str(tools))
    command, environment = [str(tools / "sh"), "run.sh"], {"PATH": str(tools)}
    assert printed()["verilog_only/tb.v"] in run(*command, cwd=tmp_path, **environment)

    lines = (tmp_path / "sums.hex").read_text().splitlines()
    lines[37] = f"{int(lines[37], 16) ^ 1:015x}"
    (tmp_path / "sums.hex").write_text("\n".join(lines))
    with pytest.raises(AssertionError, match="FAIL: 80 words compared, 1 wrong"):
        run(*command, cwd=tmp_path, **environment)


# Notebooks ----------------------------------------------------------------------------


def write_notebooks(folder: Path) -> Path:
    """Write the notebooks as ``make notebooks`` does."""
    subprocess.run(
        [sys.executable, "-W", "error", FOLDER.parent / "docs" / "site" / "notebooks.py", folder],
        check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_notebooks(tmp_path_factory.mktemp("notebooks"))


def test_every_script_is_a_notebook_or_a_module_that_a_simulator_imports_and_bytes_stay(
    notebooks: Path, tmp_path: Path,
) -> None:
    written = {path.stem: path.suffix for path in notebooks.iterdir()}
    assert written == {path.stem: ".ipynb" for path in NOTEBOOKS} | {"my_cocotb_test": ".py"}
    copied = notebooks / "my_cocotb_test.py"
    assert copied.read_bytes() == (FOLDER / copied.name).read_bytes()
    assert ({path.name: path.read_bytes() for path in write_notebooks(tmp_path / "again").iterdir()}
            == {path.name: path.read_bytes() for path in notebooks.iterdir()})


def test_a_notebook_is_valid_and_has_the_code_of_its_script(notebooks: Path) -> None:
    paths = sorted(notebooks.glob("*.ipynb"))
    assert paths
    for path in paths:
        nbformat.validate(nbformat.read(path, as_version=4))
        script = ast.parse((FOLDER / f"{path.stem}.py").read_text(encoding="utf-8"))
        script.body = script.body[1:]       # the docstring is the text above the code
        cells = [ast.parse("".join(cell["source"]))
                 for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
                 if cell["cell_type"] == "code"]
        assert ast.dump(ast.Module([node for cell in cells for node in cell.body], [])) == (
            ast.dump(script)), path.name
    first = json.loads((notebooks / "layer_to_onnx.ipynb").read_text(encoding="utf-8"))["cells"][0]
    assert first["cell_type"] == "markdown"
    assert "".join(first["source"]).startswith("# A ternary layer of your own as an ONNX file")
