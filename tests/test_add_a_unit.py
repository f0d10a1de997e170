"""The page that adds a unit, followed to the letter in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "add-a-unit.md").read_text(encoding="utf-8")
FILES = {path: f"{text}\n" for path, text in re.findall(
    r"^```py\n# ([\w/]+\.py)\n(.*?)\n```$", PAGE, re.M | re.S)}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, with the unit of the page added."""
    folder = tmp_path_factory.mktemp("checkout") / "sterna"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(
        ".git", ".venv", "build", "runs", "tests", "__pycache__", ".*_cache", ".hypothesis"))
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "before")
    for path, text in FILES.items():
        (folder / path).write_text(text, encoding="utf-8")
    catalog = folder / "hw/catalog.py"
    catalog.write_text(catalog.read_text().replace(
        "from sterna.hw.units.spec", "from sterna.hw.units.silu_product import SILU\n"
        "from sterna.hw.units.spec").replace("GLU, CORE, NETWORK)", "GLU, SILU, CORE, NETWORK)"))
    git(folder, "add", ".")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True,
                          check=True).stdout


def sterna(
    checkout: Path, *arguments: str, **variables: str,
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "typings"), **variables}
    return subprocess.run(
        [sys.executable, "-m", "sterna.cli", *arguments], cwd=checkout, env=environment,
        capture_output=True, text=True, timeout=600, check=False)


def test_two_files_and_one_list_are_touched(checkout: Path) -> None:
    changed = git(checkout, "diff", "--cached", "--name-only").split()
    assert changed == ["hw/catalog.py", "hw/units/silu.py", "hw/units/silu_product.py"]


def test_its_files_pass_the_linter(checkout: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "hw"], cwd=checkout,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_it_is_listed_and_emitted(checkout: Path) -> None:
    assert "silu" in sterna(checkout, "units").stdout
    emitted = sterna(checkout, "verilog", "tiny-c12", "--unit", "silu", "--lanes", "4", "-o",
                     "build/silu")
    assert emitted.returncode == 0, emitted.stderr
    assert (checkout / "build/silu/silu_unit.v").exists()
    refused = sterna(checkout, "verilog", "tiny-c12", "--unit", "silu", "--rows", "4", "-o",
                     "build/other")
    assert refused.stderr == "sterna: unit silu has no size rows: it has lanes\n"


@pytest.mark.long
def test_it_is_simulated(checkout: Path) -> None:
    simulated = sterna(checkout, "simulate", "tiny-c12", "--unit", "silu", "--lanes", "4",
                       "--tokens", "2")
    assert simulated.returncode == 0, simulated.stdout + simulated.stderr
    assert "extremes" in simulated.stdout


@pytest.mark.slow
def test_it_is_synthesised(checkout: Path, tmp_path: Path) -> None:
    done = sterna(checkout, "synth", "tiny-c12", "--unit", "silu", "--target", "ecp5-25k",
                  STERNA_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "LUT" in done.stdout
