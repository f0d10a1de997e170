"""Simulate the ECP5 netlist of a unit in the same way as its Verilog.

Benches, data and references are the same; only the simulator's sources differ: the synthesised
netlist and models of its cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.flow.synthesis import synthesize
from sterna.hw.fpga.families.ecp5 import ECP5
from sterna.hw.fpga.netlist import absorb_registers, model_files, netlist_verilog
from sterna.hw.tools.process import files_of
from sterna.model.folder import check_replaceable, write_folder
from sterna.model.quantized import QuantizedModel
from sterna.sim.bench.runner import Engine
from sterna.sim.core.simulate import CoreReport, simulate_core
from sterna.sim.networks import simulate_network
from sterna.sim.reports import SimulationReport
from sterna.sim.units import simulate

__all__ = ["netlist_of", "simulate_core_netlist", "simulate_netlist",
           "simulate_network_netlist", "synthesize_unit"]


def synthesize_unit(emitted: EmittedUnit) -> dict[str, Any]:
    """Synthesise an emitted unit for ECP5 and return the netlist from Yosys' JSON."""
    return synthesize(files_of(emitted.verilog_path), emitted.module, ECP5)[1]


def netlist_of(emitted: EmittedUnit, folder: Path) -> EmittedUnit:
    """Return a copy of an emitted unit with its netlist as Verilog.

    Registers are absorbed as in ``sterna synth`` before placement, which also opens the ends of
    carry chains (``free_carry_ends``): that is not simulated. Writes to ``folder``, replacing one
    that Sterna wrote. NetlistError if the netlist has a cell without a model.
    """
    check_replaceable(folder)
    netlist = synthesize_unit(emitted)
    absorb_registers(netlist, emitted.module)
    texts = {**model_files(), f"{emitted.module}.v": netlist_verilog(netlist, emitted.module)}
    for path in emitted.folder.glob("*.hex"):       # memory images for the bench
        texts[path.name] = path.read_text(encoding="utf-8")
    texts["filelist.f"] = "".join(f"{name}\n" for name in texts if name.endswith(".v"))
    write_folder(folder, texts, {"netlist_of": emitted.module})
    return replace(emitted, folder=folder)


def simulate_netlist(
    model: QuantizedModel, unit: str | None, tokens: np.ndarray, *,
    progress: Callable[[str], None] = lambda message: None, **options: Any,
) -> SimulationReport | CoreReport:
    """Run the netlist of a unit on real weights and activations, and compare every output.

    Arguments and errors are those of :func:`sterna.simulate`, errors about arguments
    before anything is synthesised; also the errors of :func:`netlist_of`.
    """
    return simulate(
        model, unit, tokens, prepare=partial(_prepare, progress), progress=progress, **options)


def simulate_core_netlist(
    model: QuantizedModel, prompts: Sequence[Sequence[int]], tokens: int, *,
    progress: Callable[[str], None] = lambda message: None, **options: Any,
) -> CoreReport:
    """Run the netlist of a core: every tensor and every cycle of its text is compared.

    For small cores: d 16 and dff 24 on 2 x 8 take a minute of one CPU, synthesis included.

    Arguments and errors are those of :func:`sterna.simulate_core` with cocotb,
    further errors those of :func:`simulate_netlist`.
    """
    return simulate_core(
        model, prompts, tokens, engine=Engine.COCOTB, prepare=partial(_prepare, progress),
        progress=progress, **options)


def simulate_network_netlist(
    model: QuantizedModel, recordings: Sequence[np.ndarray], *,
    progress: Callable[[str], None] = lambda message: None, **options: Any,
) -> SimulationReport:
    """Run the netlist of a network. Arguments and errors are those of
    :func:`sterna.sim.simulate_network`, further errors those of :func:`simulate_netlist`."""
    return simulate_network(
        model, recordings, prepare=partial(_prepare, progress), progress=progress, **options)


def _prepare(
    progress: Callable[[str], None], emitted: EmittedUnit, work: Path,
) -> EmittedUnit:
    progress("synthesise the netlist")
    return netlist_of(emitted, work / f"{emitted.folder.name}_netlist")
