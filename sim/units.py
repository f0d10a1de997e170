"""Simulate a unit's emitted Verilog on a model's own data, and compare every output."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sterna.hw.catalog import emit_verilog, unit_named
from sterna.hw.emit.folder import EmittedUnit
from sterna.hw.emit.payloads import UnitPorts
from sterna.hw.testbench.job import Job
from sterna.hw.testbench.scoreboard import Checks, check_phase
from sterna.model.checks import one_of
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.compare import Comparison
from sterna.sim.bench.runner import Simulator, check_simulator, run_on, work_folder
from sterna.sim.bench.waves import check_waves, with_views
from sterna.sim.core.reference import record_activations
from sterna.sim.core.simulate import CoreReport, simulate_core

__all__ = ["PhaseReport", "SimulationReport", "simulate"]


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """What one phase ran and how it came out."""

    name: str
    beats: int
    cycles: int
    checks: Checks


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Result of :func:`simulate`: what was run, and every phase in order.

    ``agreement`` compares the two oracles with each other; None if the unit has no tensor of a
    text. ``seconds`` is wall time, compilation included.
    """

    unit: str
    simulator: Simulator
    tokens: int
    seed: int
    agreement: Comparison | None
    phases: list[PhaseReport]
    seconds: float

    @property
    def checks(self) -> Checks:
        """All phases together."""
        return sum((phase.checks for phase in self.phases), Checks())

    @property
    def passed(self) -> bool:
        """Whether every value agreed, in every comparison that there should be."""
        if self.agreement is None:
            return self.checks.reference.passed
        return self.agreement.passed and self.checks.passed

    @property
    def failure(self) -> str | None:
        """The first difference in words: where it was found, and what it is."""
        if self.agreement and self.agreement.first:
            return f"reference and onnxruntime differ: {self.agreement.first}"
        for phase in self.phases:
            if phase.checks.first:
                return f"phase '{phase.name}': {phase.checks.first}"
        return None

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "unit": self.unit, "simulator": self.simulator.value, "tokens": self.tokens,
            "seed": self.seed, "passed": self.passed, "seconds": round(self.seconds, 1),
            "first": self.failure,
            "phases": [
                {"name": phase.name, "beats": phase.beats, "cycles": phase.cycles,
                 **phase.checks.as_dict()}
                for phase in self.phases],
        }


def simulate(
    model: QuantizedModel, unit: str, tokens: np.ndarray, *,
    simulator: Simulator | str = Simulator.VERILATOR, waves: Path | None = None,
    work: Path | None = None, seed: int = 1, emitted: EmittedUnit | None = None,
    prepare: Callable[[EmittedUnit, Path], EmittedUnit] = lambda emitted, work: emitted,
    progress: Callable[[str], None] = lambda message: None, **sizes: Any,
) -> SimulationReport | CoreReport:
    """Run emitted Verilog on real weights and activations.

    The array is given every projection of every layer, with the weight words of the
    emitted weight image; the MLGRU unit a whole sequence, whose state lives in the
    gateware; every other unit all its inputs of every layer and token. All also see random
    pauses at every end, a reset in mid-sequence and extremes. Every output is compared with
    the integer reference, and with the same tensor as onnxruntime computes it. Only the
    weight memory has no such tensor: its words are compared with the model's weights.

    The core reads the tokens as a prompt and writes one more, by :func:`sterna.simulate_core`,
    which also takes several prompts and writes text.

    Parameters
    ----------
    model, unit
        The quantised model, and the name of the unit: ``"mac"``, for example.
    tokens
        Tokens of a text, ``[length]``; the model runs them from a fresh state.
    simulator, seed
        ``verilator`` or ``icarus``, and the seed of the random pauses.
    waves
        A wave file to write, ``.fst`` or ``.vcd``, with views of it for GTKWave and Surfer
        beside it; None for none.
    work
        Folder for the Verilog, the compiled simulation and its log; a temporary one that
        is removed afterwards if None.
    emitted
        A folder emitted before, to simulate instead of a fresh one. It has its sizes already:
        none go with it.
    prepare
        Makes of the emitted folder, and a folder for its work, the one that is simulated.
    progress
        Called with a line of text before each step.
    sizes
        Sizes of the unit; see :func:`sterna.emit_verilog`.

    Raises
    ------
    ValueError
        If there is no such unit or size, the size does not fit the model, there are no tokens, or
        ``emitted`` is a folder of another unit or comes with sizes.
    MissingToolError, SimulationError
        If the simulator is not installed; if the simulation does not compile, fails or hangs.
    """
    simulator = one_of("simulator", simulator, Simulator)
    spec = unit_named(unit)
    if spec.stimulus is None:
        return simulate_core(
            model, [model.entry.array(tokens, ["length"]).tolist()], 1,
            simulator=simulator, waves=waves, work=work, seed=seed, emitted=emitted,
            prepare=prepare, progress=progress, **sizes)
    spec.check_sizes(sizes)
    tokens = model.entry.array(tokens, ["length"])
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
        acts = record_activations(model, tokens, tensors)
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
