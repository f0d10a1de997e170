"""The notebooks of the examples: the same code, the same bytes each time, and they run."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def write(folder: Path) -> Path:
    """Write the notebooks as ``make notebooks`` does."""
    subprocess.run(
        [sys.executable, "-W", "error", ROOT / "docs" / "site" / "notebooks.py", folder],
        check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("notebooks"))


def code_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_every_script_is_a_notebook_or_a_module_that_a_simulator_imports(folder: Path) -> None:
    written = {path.stem: path.suffix for path in folder.iterdir()}
    assert written == {path.stem: ".ipynb" for path in SCRIPTS} | {"my_cocotb_test": ".py"}
    copied = folder / "my_cocotb_test.py"
    assert copied.read_bytes() == (ROOT / "examples" / copied.name).read_bytes()


def test_a_notebook_is_valid_and_has_the_code_of_its_script(folder: Path) -> None:
    notebooks = sorted(folder.glob("*.ipynb"))
    assert notebooks
    for path in notebooks:
        nbformat.validate(nbformat.read(path, as_version=4))
        script = ast.parse((ROOT / "examples" / f"{path.stem}.py").read_text(encoding="utf-8"))
        script.body = script.body[1:]       # the docstring is the text above the code
        cells = [ast.parse(cell) for cell in code_cells(path)]
        assert ast.dump(ast.Module([node for cell in cells for node in cell.body], [])) == (
            ast.dump(script)), path.name


def test_the_docstring_is_the_text_above(folder: Path) -> None:
    first = json.loads((folder / "layer_to_onnx.ipynb").read_text(encoding="utf-8"))["cells"][0]
    assert first["cell_type"] == "markdown"
    assert "".join(first["source"]).startswith("# A ternary layer of your own as an ONNX file")


def test_the_bytes_are_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    again = write(tmp_path / "again")
    assert ({path.name: path.read_bytes() for path in again.iterdir()}
            == {path.name: path.read_bytes() for path in folder.iterdir()})


def test_the_cells_of_a_notebook_run_one_after_another(folder: Path, tmp_path: Path) -> None:
    runner = ("import json, sys\n"
              "names = {'__name__': '__main__'}\n"
              "for cell in json.load(sys.stdin): exec(cell, names)\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", runner], cwd=tmp_path, text=True, timeout=120,
        input=json.dumps(code_cells(folder / "layer_to_onnx.ipynb")), capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "64000 values compared, 0 mismatches" in done.stdout
