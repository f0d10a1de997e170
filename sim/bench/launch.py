"""Runs as a separate process: builds a simulation and starts it through cocotb's runner.

Not called by hand; :mod:`sterna.sim.bench.runner` starts it with one JSON argument.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cocotb_tools import config
from cocotb_tools.runner import get_results, get_runner

from sterna.sim.bench.verilate import PARALLEL, compiled, simulation_key, verilate

__all__ = ["main"]

_SMALL = 2_000_000
"""Bytes of Verilog below which compiling takes longer than running a bench."""
_DUMP = "sterna_waves"
_SPLIT = "100000"
"""Size at which a larger design is split into files: about 2 MB of C++ each."""


def main(launch: dict[str, Any]) -> int:
    """Build and run a :class:`~sterna.sim.bench.runner.Launch`; 0 if all tests passed."""
    simulator, top, waves = launch["simulator"], launch["top"], launch["waves"]
    work = Path(launch["work"])
    build = work / simulator
    build.mkdir(parents=True, exist_ok=True)
    runner = get_runner(simulator)
    tracing: dict[str, Any] = {}
    dumped = waves
    if simulator == "verilator":
        _verilate(launch["sources"], top, launch["ports"], build, waves)
        if waves:
            tracing = {"test_args": ["--trace", "--trace-file", waves]}
    else:
        # Not as SystemVerilog: there an initial value is not an event, and an `always @*` written
        # by Yosys would stay unknown if it depends only on registers that never change.
        # Icarus cannot write files with non-ASCII names: these are moved afterwards.
        dumped = waves if not waves or waves.isascii() else f"waves{Path(waves).suffix}"
        dump = _icarus_dump(top, build, dumped) if dumped else []
        runner.build(
            sources=[*launch["sources"], *dump], hdl_toplevel=top, build_dir=build,
            build_args=["-g2005", *(["-s", _DUMP] if dump else [])], timescale=("1ns", "1ps"),
            always=True)
        if waves:       # cocotb disables waves: of two formats, Icarus takes the last
            os.environ["SIM_CMD_SUFFIX"] = f"-{Path(waves).suffix[1:]}"
    try:
        xml = runner.test(
            hdl_toplevel=top, hdl_toplevel_lang="verilog", test_module=launch["test_module"],
            build_dir=build, test_dir=work, results_xml=str(work / "results.xml"),
            seed=launch["seed"], extra_env=launch["environment"], **tracing)
    finally:
        if waves and dumped != waves and (work / dumped).exists():
            shutil.move(work / dumped, waves)
    tests, failures = get_results(xml)
    return 0 if tests and failures == 0 else 1


def _icarus_dump(top: str, build: Path, waves: str) -> list[Path]:
    """A module that makes Icarus write waves; that of cocotb is SystemVerilog."""
    path = build / f"{_DUMP}.v"
    path.write_text(f"module {_DUMP};\n  initial begin\n    $dumpfile({json.dumps(waves)});\n"
                    f"    $dumpvars(0, {top});\n  end\nendmodule\n")
    return [path]


def _verilate(
    sources: list[str], top: str, ports: list[str] | None, build: Path, waves: str | None,
) -> None:
    """Compile with Verilator for cocotb, with only the ports public.

    cocotb's runner makes every signal public, which prevents optimisation by Verilator: the
    8 x 128 array then takes five times as long to compile. This is done only without ``ports``.
    Large designs are optimised and split into files that are compiled in parallel.
    """
    small = sum(Path(source).stat().st_size for source in sources) < _SMALL
    files = [str(config.share_dir / "lib" / "verilator" / "verilator.cpp"), *sources]
    options = [
        "--vpi", "-o", top, "--output-split", "0" if small else _SPLIT, "--timescale", "1ns/1ps",
        *([] if ports else ["--public-flat-rw"]),
        *([f"--trace-{Path(waves).suffix[1:]}"] if waves else []),
        "-LDFLAGS",
        f"-Wl,-rpath,{config.libs_dir} -L{config.libs_dir} -lcocotbvpi_verilator"]
    make = [f"VM_TRACE={int(bool(waves))}", "OPT_SLOW=-O0",
            *(["OPT_FAST=-O0"] if small else ["OPT_FAST=-O1", *PARALLEL])]
    compiled(
        build / top, simulation_key(files, top, ports, options, make, version("cocotb")),
        lambda: verilate(build, top, ports or (), files, prefix="Vtop", options=options, make=make,
                         run=partial(subprocess.run, check=True)))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
