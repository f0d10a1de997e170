"""Compiling the library of custom operators for onnxruntime, on demand.

The library is an option: without it the same file runs on the bodies of its functions.
docs/native-ops.md tells what it computes and how a kernel is chosen.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from sterna.model.files import cache_folder

__all__ = ["OPS_SOURCES", "MissingCompilerError", "OpsError", "build_ops"]

OPS_SOURCES = Path(__file__).parent / "cpp"
"""The C++ sources."""

_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique",
          "-ffp-contract=off")
_ERROR_LINES = 3


class OpsError(ValueError):
    """The library of operators cannot be built or loaded; the message says why."""


class MissingCompilerError(OpsError):
    """g++ is not installed; the message says how to get it."""


def build_ops(
    folder: str | Path | None = None, *, sources: str | Path = OPS_SOURCES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Compile the operators with g++, unless ``folder`` holds the very same library already.

    Parameters
    ----------
    folder
        Where to put the library, made if missing; None takes
        :func:`sterna.model.files.cache_folder`.
    sources
        Folder of the C++ sources; another one in tests that plant a fault.
    progress
        Called as ``progress(done, total)`` with the number of compiled files.

    Returns
    -------
    Path
        ``sterna-ops-SOURCES-COMPILER.so``, with a hash of the sources and options and one of the
        compiler. Without a compiler a library of the same sources will do.

    Raises
    ------
    MissingCompilerError
        If g++ is not installed.
    OpsError
        If the sources do not compile.
    OSError
        If the folder cannot be written.
    """
    folder = cache_folder() if folder is None else Path(folder)
    sources = Path(sources)
    name = f"sterna-ops-{_sources_key(sources)}"
    compiler = shutil.which("g++")
    if compiler is None:
        for library in sorted(folder.glob(f"{name}-*.so")):
            return library
        raise MissingCompilerError(
            "g++ is not installed, and the operators are compiled with it: apt-get install g++ "
            "(or your system's package of that name); without the operators Sterna runs the "
            "same files, only slower")
    library = folder / f"{name}-{_compiler_key(compiler)}.so"
    if library.exists():
        return library
    files = sorted(sources.glob("*.cpp"))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ops-", dir=folder) as name:
        work = Path(name).resolve()
        objects = []
        for done, file in enumerate(files):
            progress(done, len(files) + 1)
            objects.append(work / f"{file.stem}.o")
            _run([compiler, *_FLAGS, "-c", str(file.resolve()), "-o", str(objects[-1])], file.name)
        progress(len(files), len(files) + 1)
        built = work / "ops.so"
        _run([compiler, "-shared", *map(str, objects), "-o", str(built)], "linking")
        os.replace(built, library)
    progress(len(files) + 1, len(files) + 1)
    return library


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
        check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        reason = " ".join((lines or done.stderr.splitlines() or ["no message"])[:_ERROR_LINES])
        raise OpsError(f"g++ failed on the operators ({what}): {reason}")


def _sources_key(sources: Path) -> str:
    """Hash of the sources and of the options they are compiled with."""
    files = sorted([*sources.glob("*.cpp"), *sources.glob("*.hpp")])
    if not files:
        raise OpsError(f"{sources}: holds no C++ sources of the operators")
    digest = hashlib.sha256("\n".join(_FLAGS).encode())
    for file in files:
        digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _compiler_key(compiler: str) -> str:
    """Hash of the compiler's version and of what it compiles for."""
    told = [subprocess.run([compiler, option], capture_output=True, text=True, check=False).stdout
            for option in ("--version", "-dumpmachine")]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:8]
