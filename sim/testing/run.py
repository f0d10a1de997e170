"""Running a cocotb test of your own on an emitted folder."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sterna.hw.testbench.job import SimulationError
from sterna.model.checks import one_of, whole_number
from sterna.sim.bench.runner import Launch, Simulator, check_simulator, run_launch
from sterna.sim.bench.waves import check_waves, groups_of, with_views
from sterna.sim.testing.folder import FOLDER_VARIABLE, Folder

__all__ = ["CocotbRun", "run_cocotb"]


@dataclass(frozen=True, slots=True)
class CocotbRun:
    """What :func:`run_cocotb` ran: the names of the tests that passed, and the log.

    Tests that were skipped are not among them; no other failed.
    """

    tests: tuple[str, ...]
    log: Path


def run_cocotb(
    folder: str | Path, test: str | Path, *, simulator: Simulator | str = Simulator.VERILATOR,
    waves: str | Path | None = None, work: str | Path | None = None, internals: bool = False,
    seed: int = 1, environment: Mapping[str, str] | None = None,
) -> CocotbRun:
    """Compile an emitted folder and run cocotb tests on it.

    Parameters
    ----------
    folder
        The emitted folder: ``"build/glu"``.
    test
        The module with the tests, by its importable name, or the path of its file.
    simulator
        ``verilator`` or ``icarus``.
    waves
        A wave file to write, ``.fst`` or ``.vcd``, with views of it for GTKWave and Surfer
        beside it. None for none.
    work
        Folder for what the simulator makes; ``sim_build/MODULE_SIMULATOR`` unless given.
    internals
        Whether the tests see every signal inside, not the ports alone. In Verilator that takes
        longer to compile, far longer for a core.
    seed
        Of what cocotb itself draws; drivers and sinks have seeds of their own.
    environment
        Further variables for the tests, which find them in ``os.environ``.

    Raises
    ------
    ValueError
        If it is not an emitted folder, there is no such test file or simulator, the wave file
        has another suffix, the seed is no whole number, or a path has a space.
    MissingToolError
        If the simulator or a system tool it needs is not installed.
    SimulationError
        If the Verilog does not compile, a test fails, or there is none, or all are skipped.
    """
    simulator = one_of("simulator", simulator, Simulator)
    found = Folder.read(Path(folder).resolve())
    seed, wave_file = whole_number("seed", seed, 0), check_waves(waves, simulator)
    work = Path(work or Path("sim_build") / f"{found.module}_{simulator.value}").resolve()
    tools = check_simulator(simulator, work)
    module, places = _module(test)
    work.mkdir(parents=True, exist_ok=True)
    results = work / "results.xml"
    results.unlink(missing_ok=True)
    groups = {}
    if wave_file:
        verilog = "".join(path.read_text(encoding="utf-8") for path in found.sources)
        groups = groups_of(found.manifest, verilog)
    with with_views(wave_file, found.module, groups):
        log = run_launch(
            Launch(
                simulator, [str(path) for path in found.sources], found.module, module, str(work),
                ports=None if internals else [port["name"] for port in found.manifest["ports"]],
                environment={**(environment or {}), FOLDER_VARIABLE: str(found.path)},
                waves=str(wave_file.resolve()) if wave_file else None, seed=seed),
            {**tools, "PYTHONPATH": os.pathsep.join(places)})
    cases = list(ElementTree.parse(results).iter("testcase"))
    passed = tuple(case.get("name", "") for case in cases if case.find("skipped") is None)
    if not passed:
        raise SimulationError(
            f"{module}: {f'all {len(cases)} tests are skipped' if cases else 'no cocotb test'} "
            f"(log: {log})")
    return CocotbRun(passed, log)


def _module(test: str | Path) -> tuple[str, list[str]]:
    """The importable name of a test module, and where modules are searched for."""
    places = [str(Path(place).resolve()) for place in sys.path]
    path = Path(test)
    if path.suffix != ".py":
        return str(test), [str(Path.cwd()), *places]
    if not path.is_file():
        raise ValueError(f"there is no test file {path}")
    return path.stem, [str(path.resolve().parent), *places]
