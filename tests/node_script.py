"""Scripts under Node that import the modules of the web page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sterna.export.web import page

SOURCES = Path(page.__file__).parent / "sources"


def run_in_node(folder: Path, script: str, said: Any = None) -> Any:
    """The JSON that a script writes last.

    It runs in ``folder``, whose modules it imports, and reads ``said`` as JSON from its standard
    input. Without Node the test is skipped.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "script.js").write_text(script)
    done = subprocess.run([node, "script.js"], cwd=folder, input=json.dumps(said),
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
