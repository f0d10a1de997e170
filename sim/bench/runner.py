"""Run a job on emitted Verilog, with Verilator or Icarus."""

from __future__ import annotations

import enum
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sterna.hw.testbench.job import Job, PhaseResult, SimulationError, read_results
from sterna.hw.tools.process import MissingToolError, copy_memories, run_tool, verilator_environment
from sterna.sim.bench.verilate import refuse_spaces

__all__ = ["Engine", "Launch", "Simulator", "check_simulator", "reason_of", "run_launch", "run_on",
           "work_folder"]

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
