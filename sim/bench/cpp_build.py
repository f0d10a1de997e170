"""Compile Verilog and a clock loop in C++ into a shared library, and load it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sterna.hw.testbench.job import SimulationError
from sterna.hw.tools.process import run_tool, verilator_environment
from sterna.sim.bench.runner import reason_of
from sterna.sim.bench.verilate import (
    PARALLEL,
    compiled,
    refuse_spaces,
    simulation_key,
    verilate,
)

__all__ = ["build_library", "load_library"]

_VERILATE = (
    "-O3", "--x-assign", "fast", "--x-initial", "fast", "--no-timing", "--output-split", "20000",
    # One process may load libraries of several cores: isolate their copies of Verilator.
    "-CFLAGS", "-fPIC -fvisibility=hidden -std=c++17", "-LDFLAGS", "-shared", "-o", "core.so")

_WAVES = Path(__file__).with_name("waves.hpp").resolve()
_MAKE = (*PARALLEL, "OPT_SLOW=-O0", "OPT_GLOBAL=-O1")
_OPTIMIZED = ("OPT_FAST=-O2",)
_QUICK = ("VM_PARALLEL_BUILDS=0", "OPT_FAST=-O0")
"""Options if ``STERNA_QUICK_BUILD`` is set, for fast compilation of short runs."""


def build_library(
    sources: Sequence[Path], module: str, ports: Sequence[str], work: Path, *,
    harness: Path, waves: Path | None = None,
) -> Path:
    """Compile ``module`` of Verilog files with the clock loop ``harness``; return the library.

    Reuses a library in ``work`` or in the user's cache; its name contains a hash of all inputs,
    and ``cpp_build.log`` is beside it. ``ports`` are the ports used by the clock loop, including
    ``clk`` and ``rst``. ``waves`` is a wave file that it must be able to write.

    With ``STERNA_QUICK_BUILD`` in the environment the C++ compiler does not optimise: that takes
    a third of the time, but the library is several times slower.
    """
    environment = verilator_environment()
    refuse_spaces(work.resolve(), Path(sys.prefix))
    make = (*_MAKE, *(_QUICK if os.environ.get("STERNA_QUICK_BUILD") else _OPTIMIZED))
    trace = (f"--trace-{waves.suffix[1:]}",) if waves else ()
    headers = sorted((*harness.parent.glob("*.hpp"), _WAVES))
    key = simulation_key((harness, *headers, *sources), module, ports, _VERILATE, trace, make)
    library = work / f"core-{key[:16]}.so"

    def build() -> None:
        with tempfile.TemporaryDirectory(prefix=".core-", dir=work) as name:
            folder = Path(name).resolve()
            log = work / "cpp_build.log"
            with log.open("wb") as file:

                def run(command: list[str]) -> None:
                    status = run_tool(command, stdout=file, stderr=subprocess.STDOUT,
                                      env=environment).returncode
                    if status != 0:
                        raise SimulationError(
                            f"{command[0]} failed on {module}: {reason_of(log)}")

                verilate(folder, module, ports, [*(path.resolve() for path in sources), harness],
                         prefix="Vcore", make=make, run=run,
                         options=[*_VERILATE, *trace, "-CFLAGS", f"-I{_WAVES.parent}"])
            os.replace(folder / "core.so", library)

    if not library.exists():
        work.mkdir(parents=True, exist_ok=True)
        compiled(library, key, build)
    return library


def load_library(
    path: Path, prefix: str, functions: Iterable[tuple[str, Any, Sequence[Any]]],
) -> ctypes.CDLL:
    """Load a library and declare its functions: name without prefix, result, arguments."""
    library = ctypes.CDLL(str(path.resolve()))
    for name, result, arguments in functions:
        function = getattr(library, f"{prefix}_{name}")
        function.restype, function.argtypes = result, arguments
    return library
