"""Ctrl-C: one line that says so, exit code 130, and no traceback, whatever is at work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest

PATIENCE_S = 120
PROVE = Path(__file__).parents[1] / "verify" / "prove.py"
WAYS = [pytest.param(True, id="terminal"), pytest.param(False, id="kill", marks=pytest.mark.long)]


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A process, in a session of its own, that ends with the block: also if a SIGTERM ends it, at
    which Python would leave without a word to anybody."""
    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def interrupted(
    folder: Path, arguments: tuple[object, ...], ready: Callable[[str, str], bool], *,
    group: bool = True, program: tuple[object, ...] = ("-m", "sterna.cli"),
    message: str = "sterna: interrupted", number: int = signal.SIGINT,
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
    with ended(process):
        while not ready(*(path.read_text() for path in printed)):
            assert process.poll() is None, [path.read_text() for path in printed]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (os.killpg if group else os.kill)(process.pid, number)
        assert process.wait(PATIENCE_S) == 128 + number
    if number == signal.SIGINT:
        check_message(printed[1].read_text(), message)
    return printed[0].read_text()


def check_message(errors: str, message: str = "sterna: interrupted") -> None:
    assert errors.splitlines()[-1] == message
    assert errors.count(message.partition(" ")[0]) == 1
    # Neither a traceback, nor Amaranth's warnings of designs that are dropped half built.
    assert "Traceback" not in errors
    assert "Unused" not in errors


def test_what_is_waited_for_ends_with_the_tests() -> None:
    """Also if they are ended by a signal, as by ``timeout``."""
    code = ("import subprocess, sys; from test_interrupt import ended; "
            "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
            "with ended(child): print(child.pid, flush=True); child.wait()")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                          cwd=Path(__file__).parent) as tests:
        assert tests.stdout is not None
        child = int(tests.stdout.readline())
        tests.terminate()
        assert tests.wait(PATIENCE_S) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.slow
@pytest.mark.parametrize("group", WAYS)
def test_while_a_simulation_compiles(
    tmp_path: Path, group: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STERNA_CACHE", "0")
    work = tmp_path / "work"
    interrupted(
        tmp_path, ("simulate", "tiny-c12", "--unit", "mlgru", "--tokens", 4, "-o", work),
        lambda out, err: bool(list(work.rglob("Vtop*.cpp"))), group=group)
    assert not list(work.rglob("results.json"))


def shows(words: str) -> Callable[[Path, str], bool]:
    return lambda folder, err: words in err


@pytest.mark.slow
@pytest.mark.parametrize(("command", "ready", "never"), [
    (("simulate", "tiny", "--unit", "core", "-o", "{}/work"), shows("emit the Verilog"), "*.v"),
    (("build-ops", "-o", "{}/ops"), lambda folder, err: bool([*folder.rglob("*.o")]), "*.so"),
    (("synth", "tiny-c12", "--target", "ecp5-85k", "--unit", "mlgru", "--no-cache"),
     lambda folder, err: bool([*folder.rglob("yosys.log")]), None),
    (("evaluate", "tiny"), shows("evaluating"), None),
    (("export", "tiny", "-o", "{}/m.onnx", "--check", "40000"), shows("compare"), None),
], ids=lambda given: given[0] if isinstance(given, tuple) else "")
def test_while_a_command_works(
    tmp_path: Path, command: tuple[str, ...], ready: Callable[[Path, str], bool],
    never: str | None,
) -> None:
    """What it writes last, if it does so late, is not there, and no temporary folder."""
    interrupted(tmp_path, tuple(each.format(tmp_path) for each in command),
                lambda out, err: ready(tmp_path, err),
                number=signal.SIGTERM if command[0] == "synth" else signal.SIGINT)
    assert not [*tmp_path.glob("yowasp*"), *tmp_path.glob("sterna-*")]
    assert never is None or not [*tmp_path.rglob(never)]


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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_a_model_is_trained(tmp_path: Path, number: int) -> None:
    interrupted(
        tmp_path, ("train", "--config", "micro", "--steps", 1_000_000, "-o", tmp_path / "run"),
        lambda out, err: "step " in err, number=number)
    from sterna.model.torch.training.checkpoint import (
        load_checkpoint,  # torch, which no other needs
    )
    said = (tmp_path / "err").read_text()
    step = load_checkpoint(tmp_path / "run").step
    assert f"interrupted at step {step}; {tmp_path}/run/checkpoint.pt is saved" in said
    assert "--resume" in said
    assert "Traceback" not in said


# While everything is imported ----------------------------------------------------------

PRESS = """
import os, signal, sys

name, sys.argv[1:] = sys.argv[1], ["info", "tiny"]

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
    # As numpy does, which calls this function from C while it makes a dtype.
    "dropped": """
            def npy_ctypes_check():
                os.kill(os.getpid(), signal.SIGINT)
            try:
                npy_ctypes_check()
            except KeyboardInterrupt:
                pass""",
    # What numpy and others make of an exception while their modules in C are imported.
    "turned into another": """
            try:
                press()
            except KeyboardInterrupt as error:
                raise ImportError("numpy failed to import") from error""",
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("module", ["typer", "numpy", "sterna.model.quantized.file"])
def test_while_everything_is_imported(module: str, action: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRESS.format(action=ACTIONS[action]), module],
        capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    check_message(done.stderr)


@pytest.mark.parametrize("module", ["torch.nn", "pydoc_data.topics"])
def test_while_training_begins(module: str, tmp_path: Path) -> None:
    """While torch is imported, and while the text is read."""
    code = PRESS.format(action=ACTIONS["raised"]).replace(
        '["info", "tiny"]', f'["train", "--steps", "9", "-o", {str(tmp_path / "run")!r}]')
    done = subprocess.run(
        [sys.executable, "-c", code, module], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    check_message(done.stderr)
    assert not (tmp_path / "run").exists()


def test_numpy_has_the_function_whose_exceptions_it_drops() -> None:
    assert hasattr(numpy._core._internal, "npy_ctypes_check")


def test_a_job_in_the_background_goes_on() -> None:
    """A shell starts those with the signal ignored."""
    code = PRESS.format(action="press()").replace(
        "signal.default_int_handler)", "signal.SIG_IGN)")
    done = subprocess.run(
        [sys.executable, "-c", code, "numpy"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert re.fullmatch(r"sterna info took \d+\.\d s\n", done.stderr)
    assert "884,736 ternary weights" in done.stdout
