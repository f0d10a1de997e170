"""Tools that are stopped take along what they started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sterna.hw.tools import process as tools
from sterna.hw.tools.process import YosysError, run_tool, run_yosys


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not asked for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for(what: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_tool_returns_its_status_and_output() -> None:
    done = run_tool(["sh", "-c", "cat; echo out; exit 3"], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (3, "out\n")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_tool_that_takes_too_long_ends_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str,
) -> None:
    monkeypatch.setattr(tools, "_GRACE_S", 0.3)
    child = f"{trap}echo $$ > child; while :; do sleep 0.1; done"
    with pytest.raises(subprocess.TimeoutExpired):
        run_tool(["sh", "-c", f"sh -c \"{child.replace('$', chr(92) + '$')}\" & wait"],
                 cwd=tmp_path, timeout_s=2)
    child_id = int((tmp_path / "child").read_text())
    wait_for(lambda: not alive(child_id), 10)


def test_make_removes_what_it_was_writing(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("half:\n\techo half > half; sleep 60\n")
    with pytest.raises(subprocess.TimeoutExpired):
        run_tool(["make", "-s", "-C", str(tmp_path)], timeout_s=2)
    assert {path.name for path in tmp_path.iterdir()} == {"Makefile"}


def of_folder(folder: Path) -> list[str]:
    """Command lines of the processes that work in or on a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            where = os.readlink(process / "cwd")
        except OSError:
            continue
        if str(folder) in line or where.startswith(str(folder)):
            found.append(line)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_simulation_that_is_stopped_leaves_no_process(
    tmp_path: Path, number: signal.Signals, code: int,
) -> None:
    # The signal goes to the command alone, as a program would send it.
    with subprocess.Popen(
            [sys.executable, "-m", "sterna.cli", "simulate", "micro", "--unit", "core",
             "--rows", "2", "--cols", "16", "-o", str(tmp_path / "work")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "STERNA_CACHE": "0"}) as process:
        try:
            wait_for(lambda: any("cc1plus" in line for line in of_folder(tmp_path)), 300)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    assert "Traceback" not in errors
    if number == signal.SIGINT:
        assert errors.splitlines()[-1] == "sterna: interrupted"
    wait_for(lambda: of_folder(tmp_path) == [], 10)


def test_a_yosys_that_dies_tells_how(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "_RUN", "import pathlib, sys; pathlib.Path('yosys.log').write_text("
                        "'1. Executing\\n'); sys.exit('out of memory')")
    with pytest.raises(YosysError, match=r"\(exit status 1\):\n1\. Executing\nout of memory"):
        run_yosys(tmp_path, "stat")
