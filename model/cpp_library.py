"""Compile a folder of C++ into a library with g++, once per machine and atomically."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sterna.model.cache import cache_folder

__all__ = ["CompileError", "CppLibrary", "NoCompilerError", "compiler_key"]

_ERROR_LINES = 3


class CompileError(ValueError):
    """A library cannot be built; the message says why."""


class NoCompilerError(CompileError):
    """The compiler is not installed."""


@dataclass(frozen=True, slots=True)
class CppLibrary:
    """Sources and options of a library: ``name`` begins its file name, messages call it ``what``,
    and g++ compiles and links it with ``flags``. With ``this_processor`` these target the local
    processor, and a library built on another is never used."""

    name: str
    sources: Path
    flags: tuple[str, ...]
    what: str
    this_processor: bool = False

    def built(self, folder: Path | None = None) -> Path | None:
        """The library if already built from these sources and options with this compiler, or with
        any compiler if none is installed."""
        folder = cache_folder() if folder is None else folder
        compiler = shutil.which("g++")
        if compiler is None:
            return next(iter(sorted(folder.glob(f"{self._stem()}-*.so"))), None)
        library = folder / f"{self._stem()}-{compiler_key(compiler)}.so"
        return library if library.exists() else None

    def build(
        self, folder: Path | None = None, *,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Path:
        """The library in ``folder`` (None: that of the cache), compiled unless already built.

        Its name is ``NAME-SOURCES-COMPILER.so``, with a hash of the sources and options (and of the
        processor if it matters) and one of the compiler. ``progress(done, total)`` counts compiled
        files. Raises NoCompilerError if g++ is not installed, CompileError if the sources do not
        compile, OSError if the folder cannot be written.
        """
        folder = cache_folder() if folder is None else folder
        found = self.built(folder)
        if found is not None:
            return found
        compiler = shutil.which("g++")
        if compiler is None:
            raise NoCompilerError(
                f"g++ is not installed, and {self.what} are compiled with it: apt-get install g++ "
                f"(or your system's package of that name)")
        library = folder / f"{self._stem()}-{compiler_key(compiler)}.so"
        files = sorted(self.sources.glob("*.cpp"))
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{self.name}-", dir=folder) as name:
            work = Path(name).resolve()
            objects = []
            for done, file in enumerate(files):
                progress(done, len(files) + 1)
                objects.append(work / f"{file.stem}.o")
                self._run([compiler, *self.flags, "-c", str(file.resolve()), "-o",
                           str(objects[-1])], file.name)
            progress(len(files), len(files) + 1)
            built = work / "library.so"
            self._run([compiler, *self.flags, "-shared", *map(str, objects), "-o", str(built)],
                      "linking")
            os.replace(built, library)
        progress(len(files) + 1, len(files) + 1)
        return library

    def _run(self, command: list[str], step: str) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            reason = " ".join((lines or done.stderr.splitlines() or ["no message"])[:_ERROR_LINES])
            raise CompileError(f"g++ failed on {self.what} ({step}): {reason}")

    def _stem(self) -> str:
        """The name with a hash of the sources and compile options."""
        files = sorted([*self.sources.glob("*.cpp"), *self.sources.glob("*.hpp")])
        if not files:
            raise CompileError(f"{self.sources}: holds no C++ sources of {self.what}")
        digest = hashlib.sha256("\n".join(self.flags).encode())
        for file in files:
            digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
        if self.this_processor:
            digest.update(_processor().encode())
        return f"{self.name}-{digest.hexdigest()[:12]}"


def compiler_key(compiler: str) -> str:
    """Hash of the compiler's version and target."""
    output = [subprocess.run([compiler, option], capture_output=True, text=True, check=False).stdout
            for option in ("--version", "-dumpmachine")]
    return hashlib.sha256("\n".join(output).encode()).hexdigest()[:8]


def _processor() -> str:
    """Model and features of the processor, as far as the system reports them."""
    try:
        output = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    # Only stable fields, of the first core; clocks and the like change.
    return "\n".join(re.findall(
        r"^(?:vendor_id|cpu family|model|flags|CPU \w+|Features)\s*:.*$",
        output.split("\n\n")[0], re.MULTILINE))
