"""Compile the common part of all simulations only once.

Most of the time to compile a small unit with Verilator goes to Verilator's library, which is the
same for all designs. Its makefiles start every compiler through ``OBJCACHE``, meant for a compiler
cache. This module is one, for the sources of that library only::

    python objcache.py FOLDER LIBRARY c++ OPTIONS... -c -o OBJECT SOURCE

If ``SOURCE`` is in the folder ``LIBRARY``, its object is taken from ``FOLDER``, or compiled
and kept there. Anything else is passed to the compiler unchanged.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["objcache"]

_ENVIRONMENT = ("CPATH", "CPLUS_INCLUDE_PATH")
"""Environment variables that affect the compiler's output."""


def objcache(verilator_root: Path) -> str | None:
    """The ``OBJCACHE`` command that caches Verilator's library; None without a cache."""
    from sterna.model.cache import cache_folder  # not importable when run as a script

    try:
        folder = cache_folder() / "verilated"
    except ValueError:
        return None
    words = [sys.executable, "-S", "-E", __file__, str(folder.absolute()),
             str(verilator_root / "include")]
    # Parsed by make and then by a shell.
    return " ".join("'" + word.replace("'", r"'\''") + "'" for word in words).replace("$", "$$")


def compile_cached(folder: Path, library: Path, command: list[str]) -> int:
    """Run a compiler, or reuse its cached object; return its exit status."""
    source, target = Path(command[-1]), None
    if "-c" in command and "-o" in command:
        target = Path(command[command.index("-o") + 1])
    if target is None or source.parent != library:
        return subprocess.run(command, check=False).returncode
    kept = folder / f"{source.stem}-{_key(library, command)}.o"
    # A cache that cannot be read or written is ignored.
    with suppress(OSError):
        shutil.copyfile(kept, target)
        return 0
    status = subprocess.run(command, check=False).returncode
    if status == 0:
        with suppress(OSError):
            _keep(target, kept)
    return status


def _keep(target: Path, kept: Path) -> None:
    """Copy an object into the cache atomically, as others may read it."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".object-", dir=kept.parent) as name:
        copy = Path(name) / "copy.o"
        with open(target, "rb") as source, open(copy, "wb") as file:
            shutil.copyfileobj(source, file)
            file.flush()
            os.fsync(file.fileno())     # otherwise a crash of the machine could leave an empty file
        os.replace(copy, kept)


def _key(library: Path, command: list[str]) -> str:
    """Hash of the command, the compiler, its environment, and the library's contents."""
    output = [subprocess.run([command[0], option], capture_output=True, check=False).stdout
            for option in ("--version", "-dumpmachine")]
    digest = hashlib.sha256(repr(
        (command, output, [os.environ.get(name) for name in _ENVIRONMENT])).encode())
    for file in sorted(path for path in library.rglob("*") if path.is_file()):
        digest.update(f"{file}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(compile_cached(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
