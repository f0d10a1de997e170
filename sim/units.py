"""Simulate a unit's emitted Verilog on a model's own data, and compare every output."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sterna.hw.catalog import emit_verilog, unit_named
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.layers.network_product import NETWORK
from sterna.hw.testbench.job import Job
from sterna.hw.testbench.scoreboard import check_phase
from sterna.model.checks import one_of
from sterna.model.quantized import QuantizedModel
from sterna.sim.bench.runner import Simulator, check_simulator, run_on, work_folder
from sterna.sim.bench.waves import check_waves, with_views
from sterna.sim.core.reference import record_activations
from sterna.sim.core.simulate import CoreReport, simulate_core
from sterna.sim.networks import simulate_network
from sterna.sim.reports import PhaseReport, SimulationReport

__all__ = ["simulate"]


def simulate(
    model: QuantizedModel, unit: str | None, tokens: np.ndarray, *,
    simulator: Simulator | str = Simulator.VERILATOR, waves: Path | None = None,
    work: Path | None = None, seed: int = 1, emitted: EmittedUnit | None = None,
    prepare: Callable[[EmittedUnit, Path], EmittedUnit] = lambda emitted, work: emitted,
    progress: Callable[[str], None] = lambda message: None, **sizes: Any,
) -> SimulationReport | CoreReport:
    """Run emitted Verilog on real weights and activations.

    The array gets every projection of every layer, with the weight words of the emitted weight
    image; the MLGRU unit a whole sequence, with the state kept in the gateware; every other
    unit all its inputs of every layer and token. All are also tested with random pauses at every
    end, a reset in mid-sequence and extremes. Every output is compared with the integer reference
    and with the same tensor from onnxruntime. Only the weight memory has no such tensor: its
    words are compared with the model's weights.

    The core reads the tokens as a prompt and writes one more, by :func:`sterna.simulate_core`,
    which also takes several prompts and writes text. A network reads frames, by
    :func:`sterna.sim.simulate_network`, which takes several recordings.

    Parameters
    ----------
    model, unit
        The quantised model, and the name of the unit, such as ``"mac"``; None for that of the
        whole model.
    tokens
        Tokens of a text, ``[length]``, or frames of a network, ``[length, channels]``; the model
        runs them from a fresh state.
    simulator, seed
        ``verilator`` or ``icarus``, and the seed of the random pauses.
    waves
        A wave file to write, ``.fst`` or ``.vcd``, with views of it for GTKWave and Surfer
        beside it; None for none.
    work
        Folder for the Verilog, the compiled simulation and its log; None for a temporary one.
    emitted
        An existing folder to simulate instead of a new one; cannot be combined with sizes.
    prepare
        Makes the folder to simulate from the emitted folder and a folder for its work.
    progress
        Called with a line of text before each step.
    sizes
        Sizes of the unit; see :func:`sterna.emit_verilog`.

    Raises
    ------
    ValueError
        If the unit or a size is unknown, a size does not fit the model, there are no tokens, or
        ``emitted`` is a folder of another unit or combined with sizes.
    MissingToolError, SimulationError
        If the simulator is not installed; if the simulation does not compile, fails or hangs.
    """
    simulator = one_of("simulator", simulator, Simulator)
    spec = unit_named(unit, model)
    unit = spec.name
    tokens = model.entry.array(tokens, ["length"])
    if spec.stimulus is None:
        options: dict[str, Any] = {
            "simulator": simulator, "waves": waves, "work": work, "seed": seed, "emitted": emitted,
            "prepare": prepare, "progress": progress, **sizes}
        return (simulate_network(model, [tokens], **options) if spec is NETWORK
                else simulate_core(model, [tokens.tolist()], 1, **options))
    spec.check_sizes(sizes)
    check_waves(waves, simulator)
    check_simulator(simulator, work)
    if emitted is not None:
        spec.check_emitted(emitted, sizes)
    started = time.monotonic()
    with work_folder(work) as folder:
        if emitted is None:
            progress("emit the Verilog")
            emitted = emit_verilog(model, unit, folder / unit, **sizes)
        emitted = prepare(emitted, folder)
        progress(f"compute {tokens.size} tokens with the reference and onnxruntime")
        tensors = spec.stimulus.tensors(model)
        acts, = record_activations(model, [tokens], tensors)
        scored = spec.stimulus.phases(model, emitted, acts)
        progress(f"compile and run in {simulator.value}")
        ports = UnitPorts.of(emitted.manifest)
        job = Job(ports.inputs, ports.outputs, seed, [each.phase for each in scored],
                  levels=ports.levels)
        with with_views(waves, emitted.manifest, emitted.sources):
            results = run_on(
                simulator, emitted.sources, emitted.module, job,
                folder / f"{unit}_{simulator.value}", waves=waves)
    phases = [
        PhaseReport(each.phase.name, each.phase.beats, result.cycles,
                    check_phase(each, result.outputs))
        for each, result in zip(scored, results, strict=True)]
    return SimulationReport(
        unit, simulator, int(tokens.size), seed, acts.agreement if tensors else None, phases,
        time.monotonic() - started)
