"""Ctrl-C: one line that says so, exit code 130, and no traceback, whatever is at work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE_S = 120
PROVE = Path(__file__).parents[1] / "benchmarks" / "prove.py"
WAYS = [pytest.param(True, id="terminal"), pytest.param(False, id="kill", marks=pytest.mark.long)]


def interrupted(
    folder: Path, arguments: tuple[object, ...], ready: Callable[[str, str], bool], *,
    group: bool = True, program: tuple[object, ...] = ("-m", "sterna.cli"),
    message: str = "sterna: interrupted",
) -> str:
    """Start a command, press Ctrl-C once it is ready; return what it wrote to standard output.

    ``ready`` is given what the command has printed so far. A terminal sends the signal to all
    processes of a group, ``kill`` to one. Temporary files are in the folder.
    """
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, *map(str, (*program, *arguments))], stdout=out, stderr=err,
            start_new_session=True, env={**os.environ, "TMPDIR": str(folder)})
    printed = [folder / "out", folder / "err"]
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not ready(*(path.read_text() for path in printed)):
            assert process.poll() is None, [path.read_text() for path in printed]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    finally:
        process.kill()
    check_message(printed[1].read_text(), message)
    return printed[0].read_text()


def check_message(errors: str, message: str = "sterna: interrupted") -> None:
    assert errors.splitlines()[-1] == message
    assert errors.count(message.partition(" ")[0]) == 1
    # Neither a traceback, nor Amaranth's warnings of designs that are dropped half built.
    assert "Traceback" not in errors
    assert "Unused" not in errors


COMMANDS: dict[str, tuple[str, Callable[[Path, str], bool], str]] = {
    "a simulation compiles": (
        "simulate tiny-c12 --unit mlgru --tokens 4 -o work",
        lambda folder, said: bool(list(folder.rglob("Vtop*.cpp"))), "results.json"),
    "Verilog is emitted": (
        "simulate tiny --unit core -o work", lambda _, said: "emit the Verilog" in said, "*.v"),
    "operators are compiled": (
        "build-ops -o ops", lambda folder, said: bool(list(folder.rglob("*.o"))), "*.so"),
    "a netlist is made": (
        "synth tiny-c12 --target ecp5-85k --unit mlgru --no-cache",
        lambda _, said: "synthesis" in said, ""),
    "a text is evaluated": ("evaluate tiny", lambda _, said: "evaluating" in said, ""),
    "a graph is compared": (
        "export tiny -o m.onnx --check 40000", lambda _, said: "compare" in said, ""),
}
"""What is at work: a command, when to press, and the files of which none may be left, if any."""


@pytest.mark.slow
@pytest.mark.parametrize(("work", "group"), [
    *((work, True) for work in COMMANDS),
    pytest.param("a simulation compiles", False, marks=pytest.mark.long)])
def test_while(work: str, group: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STERNA_CACHE", "0")
    monkeypatch.chdir(tmp_path)
    command, ready, unfinished = COMMANDS[work]
    interrupted(tmp_path, tuple(command.split()), lambda out, err: ready(tmp_path, err),
                group=group)
    assert not unfinished or not list(tmp_path.rglob(unfinished))


@pytest.mark.slow
@pytest.mark.parametrize("group", WAYS)
def test_while_claims_are_proven(tmp_path: Path, group: bool) -> None:
    interrupted(
        tmp_path, (), lambda out, err: len(list(tmp_path.glob("sterna-proof-*/yosys.log"))) == 2,
        group=group, program=(PROVE,), message="interrupted")
    assert not list(tmp_path.glob("sterna-proof-*"))


@pytest.mark.slow
def test_while_text_is_written(tmp_path: Path) -> None:
    out = interrupted(tmp_path, ("generate", "micro", "--tokens", 1_000_000),
                      lambda out, err: len(out) > 100)
    assert out.startswith("The ")


@pytest.mark.slow
def test_while_a_model_is_trained(tmp_path: Path) -> None:
    interrupted(
        tmp_path, ("train", "--config", "micro", "--steps", 1_000_000, "-o", tmp_path / "run"),
        lambda out, err: "step " in err)
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    assert "--resume" in (tmp_path / "err").read_text()


# While everything is imported ----------------------------------------------------------

PRESS = """
import os, signal, sys

name, sys.argv[1:] = sys.argv[1], "info tiny".split()

def press():
    os.kill(os.getpid(), signal.SIGINT)

class Loser:
    def __del__(self):
        press()

class Finder:
    def find_spec(self, module, path, target=None):
        if module == name:
            {action}

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
from sterna.cli.entry import entry_point
entry_point()
"""
ACTIONS = {
    "raised": "press()",
    # Inside a finaliser Python can only report an exception, and goes on.
    "lost": "Loser()",
    # What numpy and others make of an exception while their modules in C are imported.
    "turned into another": """
            try:
                press()
            except KeyboardInterrupt as error:
                raise ImportError("numpy failed to import") from error""",
}


@pytest.mark.parametrize(("module", "action", "command"), [
    *((module, action, "info tiny") for action in ACTIONS
      for module in ("typer", "numpy", "sterna.model.quantized.file")),
    # While torch is imported, and while the text is read.
    *((module, "raised", "train --steps 9 -o run")
      for module in ("torch.nn", "pydoc_data.topics"))])
def test_while_modules_are_imported(
    module: str, action: str, command: str, tmp_path: Path,
) -> None:
    code = PRESS.format(action=ACTIONS[action]).replace("info tiny", command)
    done = subprocess.run([sys.executable, "-c", code, module], cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    check_message(done.stderr)
    assert not list(tmp_path.iterdir())


def test_a_job_in_the_background_goes_on() -> None:
    """A shell starts those with the signal ignored."""
    code = PRESS.format(action="press()").replace(
        "signal.default_int_handler)", "signal.SIG_IGN)")
    done = subprocess.run(
        [sys.executable, "-c", code, "numpy"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert re.fullmatch(r"sterna info took \d+\.\d s\n", done.stderr)
    assert "884,736 ternary weights" in done.stdout
