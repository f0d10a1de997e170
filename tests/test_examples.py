"""The scripts of examples/ run as they are, from any folder, and are short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
MOST_LINES = {"layer_to_onnx.py": 20}
"""Where 40, the most for an example, would be too many."""


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(script: Path, tmp_path: Path) -> None:
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, text=True, timeout=300,
        env={**os.environ, "PATH": tools}, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example says what it did"


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES.get(script.name, 40)
