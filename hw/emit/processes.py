"""Running a tool so that nothing which it starts outlives its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["end_all", "run_tool"]

_GRACE_S = 2.0
"""Seconds in which a tool that is stopped may remove what it has half written."""

_running: set[subprocess.Popen] = set()
_changing = threading.Lock()


def run_tool(
    command: Sequence[str | Path], *, timeout_s: float | None = None, **options: Any,
) -> subprocess.CompletedProcess:
    """Run a command to its end, with no input.

    It leads a process group of its own. If the wait is cut short, by Ctrl-C for example, all
    of the group is ended: of ``make`` this is every compiler, which nobody else would end.

    Parameters
    ----------
    command
        The program and its arguments.
    timeout_s
        Deadline in seconds; None for none.
    options
        As for :class:`subprocess.Popen`.

    Raises
    ------
    subprocess.TimeoutExpired
        If it takes longer than ``timeout_s``.
    OSError
        If it cannot be started.
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
    """End every tool that runs now, for whoever runs them in threads, which Ctrl-C does not reach.

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
