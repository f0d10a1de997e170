"""What README.md shows is what its commands print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLE = [block.splitlines() for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)]


def test_readme_opens_with_what_it_is_a_picture_a_command_and_its_output() -> None:
    places = [README.index(mark) for mark in (
        "Sterna takes a", "![", "make demo", "```text", "## What you get")]
    assert places == sorted(places)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_readme_commands_print_what_it_shows(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ["PATH"]])}
    commands = 0
    for block in CONSOLE:
        starts = [i for i, line in enumerate(block) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(block)], strict=True):
            result = subprocess.run(
                ["bash", "-c", block[start][2:]], cwd=tmp_path, env=environment,
                capture_output=True, text=True, check=False)
            assert result.returncode == 0, (block[start], result.stderr)
            shown = "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())
            # A line of three dots stands for any lines, or none.
            pattern = "".join(
                "(?:.*\n)*?" if line == "..." else re.escape(line.rstrip()) + "\n"
                for line in block[start + 1:end])
            assert re.fullmatch(pattern, shown), (block[start], shown)
            commands += 1
    assert commands >= 8
