"""Programs that a fresh machine lacks, hidden from a run of the tests.

``pytest --bare`` runs without them, as most users do, and ``pytest --rest`` afterwards what that
run had to leave out.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

__all__ = ["hide", "keep_done", "read_done"]

HIDDEN = ("iverilog", "vvp", "chromium*", "google-chrome*", "chromedriver", "node", "nodejs",
          "clang", "qemu-*", "aarch64-linux-gnu-*", "arm-none-eabi-*", "riscv*")
"""Patterns of their names."""

_RAN = "sterna/ran-bare"


def hide(config: pytest.Config) -> None:
    """Let nothing that starts from here, in this process or another, find them.

    A folder on PATH that has one of them is replaced by links to all else in it.
    """
    folders = []
    for folder in map(Path, os.get_exec_path()):
        programs = [*folder.iterdir()] if folder.is_dir() else []
        shown = [path for path in programs
                 if not any(fnmatch(path.name, pattern) for pattern in HIDDEN)]
        if len(shown) < len(programs):
            folder = Path(tempfile.mkdtemp(prefix="bare-"))
            config.add_cleanup(lambda made=folder: shutil.rmtree(made))
            for path in shown:
                (folder / path.name).symlink_to(path.absolute())
        folders.append(str(folder))
    os.environ["PATH"] = os.pathsep.join(folders)


def keep_done(config: pytest.Config, names: list[str]) -> None:
    """Keep the names of the tests that ran without them."""
    assert config.cache is not None
    config.cache.set(_RAN, names)


def read_done(config: pytest.Config) -> set[str]:
    """The names of the tests that the last run with ``--bare`` ran."""
    assert config.cache is not None
    done = config.cache.get(_RAN, None)
    if done is None:
        raise pytest.UsageError("--rest follows a run with --bare, and there was none")
    return set(done)
