"""Compile emitted Verilog and run a job on it, with Verilator or Icarus."""

from __future__ import annotations

import enum
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from sterna.hw.emit.processes import run_tool
from sterna.hw.emit.tools import MissingToolError, verilator_environment
from sterna.hw.testbench.job import Job, PhaseResult, read_results
from sterna.hw.testbench.simulation import SimulationError

__all__ = ["Simulator", "check_simulator", "reason_of", "refuse_spaces", "run_on"]


class Simulator(enum.StrEnum):
    """A Verilog simulator."""

    VERILATOR = "verilator"
    ICARUS = "icarus"


def run_on(
    simulator: Simulator, sources: list[Path], top: str, job: Job, work: Path, *,
    waves: bool = False,
) -> list[PhaseResult]:
    """Run a job on Verilog sources.

    Parameters
    ----------
    simulator
        Which simulator compiles and runs them.
    sources, top
        Verilog files, and the module to drive.
    job
        What to feed and to collect.
    work
        Folder for everything this makes: the compiled model, the log, the waves.
    waves
        Write ``dump.vcd`` (Verilator) or ``<top>.fst`` (Icarus) below ``work``.

    Raises
    ------
    MissingToolError
        If the simulator or a system tool it needs is not installed.
    SimulationError
        If the simulation does not compile, fails or hangs.
    ValueError
        If the path of ``work`` or of Python has a space: make cannot build there.
    """
    environment = check_simulator(simulator, work)
    work.mkdir(parents=True, exist_ok=True)
    results = work / "results.json"
    results.unlink(missing_ok=True)
    job.write(work / "job.json")
    launch = {
        "simulator": simulator.value, "sources": [str(path.resolve()) for path in sources],
        "top": top, "work": str(work.resolve()), "waves": waves,
        "ports": ["clk", "rst", *job.levels, *sorted({bits.port for bits in job.monitored}),
                  *(f"{name}__*" for name in (*job.inputs, *job.outputs))],
    }
    log = work / "simulation.log"
    with log.open("wb") as file:
        status = run_tool(
            [sys.executable, "-m", "sterna.sim.bench.launch", json.dumps(launch)],
            stdout=file, stderr=subprocess.STDOUT, env=environment).returncode
    if status != 0 or not results.exists():
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
    """The environment to run a simulator in, below ``work`` unless that is not known yet.

    Raises
    ------
    MissingToolError
        If the simulator or a system tool it needs is not installed.
    ValueError
        If the path of ``work`` or of Python has a space: make cannot build there.
    """
    if simulator is Simulator.VERILATOR:
        refuse_spaces(*([work.resolve()] if work else []), Path(sys.prefix))
        return verilator_environment()
    if shutil.which("iverilog") is None:
        raise MissingToolError(
            "Icarus Verilog is not installed: install iverilog "
            "(Debian and Ubuntu: apt-get install iverilog), or use --simulator verilator")
    return dict(os.environ)


def reason_of(log: Path) -> str:
    """The line of the log that says most, and where the rest is."""
    text = log.read_text(errors="replace")
    for pattern in (r"(?:TimeoutError|AssertionError): .*", r"%Error.*", r"\*\*\* .*",
                    r".*\berror: .*", r"\w*Error: .*"):
        found = re.search(pattern, text)
        if found:
            return f"{found[0].strip()[:300]} (log: {log})"
    return f"see {log}"
