"""Simulate a unit's emitted Verilog on a model's own data, and compare every output."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sterna.hw.emit import (
    MAC_MODULE,
    MLGRU_MODULE,
    WEIGHTS_FILE,
    EmittedUnit,
    emit_verilog,
)
from sterna.hw.params import MacParams, MlgruParams
from sterna.hw.unit import Unit
from sterna.model.compare import Comparison, Difference
from sterna.model.quantized import QuantizedModel
from sterna.sim.activations import Activations, record_activations
from sterna.sim.job import Job
from sterna.sim.plan import Checks, Plan, check_plan
from sterna.sim.plan_mac import mac_plans
from sterna.sim.plan_mlgru import mlgru_plans
from sterna.sim.runner import Simulator, run_on

__all__ = ["PhaseReport", "SimulationReport", "simulate"]


_MODULES = {Unit.MAC: MAC_MODULE, Unit.MLGRU: MLGRU_MODULE}
_STREAMS = {Unit.MAC: ("beats", "sums"), Unit.MLGRU: ("preacts", "states")}


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """What one phase ran and how it came out."""

    name: str
    beats: int
    cycles: int
    checks: Checks


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Result of :func:`simulate`.

    Parameters
    ----------
    unit, simulator, tokens, seed
        What was run.
    agreement
        The two oracles compared with each other.
    phases
        Every phase in order.
    seconds
        Wall time, compilation included.
    """

    unit: Unit
    simulator: Simulator
    tokens: int
    seed: int
    agreement: Comparison
    phases: list[PhaseReport]
    seconds: float

    @property
    def checks(self) -> Checks:
        """All phases together."""
        return sum((phase.checks for phase in self.phases), Checks())

    @property
    def passed(self) -> bool:
        """Whether every value agreed, in every comparison."""
        return self.agreement.passed and self.checks.passed

    @property
    def first(self) -> Difference | None:
        """The first difference: between the oracles, else in the first phase with one."""
        phases = (phase.checks.first for phase in self.phases if phase.checks.first)
        return self.agreement.first or next(phases, None)

    @property
    def failure(self) -> str | None:
        """The first difference in words: where it was found, and what it is."""
        if self.agreement.first:
            return f"reference and onnxruntime differ: {self.agreement.first}"
        for phase in self.phases:
            if phase.checks.first:
                return f"phase '{phase.name}': {phase.checks.first}"
        return None

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "unit": self.unit.value, "simulator": self.simulator.value, "tokens": self.tokens,
            "seed": self.seed, "passed": self.passed, "seconds": round(self.seconds, 1),
            "first": self.failure,
            "phases": [
                {"name": phase.name, "beats": phase.beats, "cycles": phase.cycles,
                 "reference_values": phase.checks.reference.values,
                 "reference_mismatches": phase.checks.reference.mismatches,
                 "onnx_values": phase.checks.onnx.values,
                 "onnx_mismatches": phase.checks.onnx.mismatches}
                for phase in self.phases],
        }


def simulate(
    model: QuantizedModel, unit: Unit | str, tokens: np.ndarray, *,
    rows: int = 8, cols: int = 128, lanes: int = 8,
    simulator: Simulator | str = Simulator.VERILATOR, waves: bool = False,
    work: Path | None = None, seed: int = 1, emitted: EmittedUnit | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> SimulationReport:
    """Run emitted Verilog on real weights and activations.

    The array is given every projection of every layer, with the weight words of the
    emitted weight image; the MLGRU unit a whole sequence, whose state lives in the
    gateware. Both also see random pauses at both ends, a reset in mid-sequence and
    extremes. Every output is compared with the integer reference, and with the same
    tensor as onnxruntime computes it.

    Parameters
    ----------
    model
        The quantised model.
    unit
        ``mac`` or ``mlgru``.
    tokens
        Tokens of a text, ``[length]``; the model runs them from a fresh state.
    rows, cols, lanes
        Size of the unit; see :func:`sterna.hw.emit.emit_verilog`.
    simulator
        ``verilator`` or ``icarus``.
    waves
        Keep a wave file in ``work``.
    work
        Folder for the Verilog, the compiled simulation and its log; a temporary one that
        is removed afterwards if None.
    seed
        Seed of the random pauses.
    emitted
        A folder emitted before, to simulate instead of a fresh one.
    progress
        Called with a line of text before each stage.

    Raises
    ------
    ValueError
        If the size does not fit the model, there are no tokens, waves are asked for
        without a folder to keep them in, or ``emitted`` is a folder of another unit.
    MissingToolError
        If the simulator or a tool it needs is not installed.
    SimulationError
        If the simulation does not compile, fails or hangs.
    """
    unit, simulator = Unit(unit), Simulator(simulator)
    if tokens.ndim != 1 or tokens.size == 0:
        raise ValueError(f"tokens must be [length], at least 1, got shape {tokens.shape}")
    if waves and work is None:
        raise ValueError("waves need a folder to be kept in: give one as work")
    if emitted is not None and emitted.module != _MODULES[unit]:
        raise ValueError(f"emitted must be a {unit.value} folder, got one of {emitted.module}")
    started = time.monotonic()
    with ExitStack() as stack:
        if work is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-")))
        work.mkdir(parents=True, exist_ok=True)
        progress("emit the Verilog")
        emitted = emitted or emit_verilog(
            model, unit.value, work / unit.value, rows=rows, cols=cols, lanes=lanes)
        progress(f"compute {tokens.size} tokens with the reference and onnxruntime")
        acts = record_activations(model, tokens, _tensor_names(model, unit))
        plans = _plans(model, emitted, acts)
        progress(f"compile and run in {simulator.value}")
        job = Job(*_STREAMS[unit], seed, [plan.phase for plan in plans])
        results = run_on(
            simulator, [emitted.verilog_path], emitted.module, job,
            work / f"{unit.value}_{simulator.value}", waves=waves)
    phases = [
        PhaseReport(plan.phase.name, len(plan.phase.inputs), result.cycles,
                    check_plan(plan, result.outputs))
        for plan, result in zip(plans, results, strict=True)]
    return SimulationReport(
        unit, simulator, int(tokens.size), seed, acts.agreement, phases,
        time.monotonic() - started)


def _tensor_names(model: QuantizedModel, unit: Unit) -> list[str]:
    """Taps that are the unit's inputs and outputs."""
    if unit is Unit.MAC:
        names = list(model.config.projections())
        norms = dict.fromkeys(f"{model.config.norm_of(name)}.q" for name in names)
        return [*norms, *(f"{name}.acc" for name in names)]
    return [
        f"layer{layer}.mlgru.{part}" for layer in range(model.config.layers)
        for part in ("f.z", "c.z", "g.z", "o", "h")]


def _plans(model: QuantizedModel, emitted: EmittedUnit, acts: Activations) -> list[Plan]:
    params = emitted.params
    if isinstance(params, MlgruParams):
        return mlgru_plans(model, params, acts)
    return mac_plans(model, params, _weight_words(emitted, params), acts)


def _weight_words(emitted: EmittedUnit, params: MacParams) -> dict[str, list[int]]:
    """Weight words of every projection, from the emitted memory image."""
    lines = (emitted.folder / WEIGHTS_FILE).read_text().split()
    words = {}
    for name, entry in emitted.manifest["weights"]["projections"].items():
        first = entry["first_line"]
        words[name] = [int(line, 16) for line in lines[first:first + entry["lines"]]]
        if any(word >> params.word_bits for word in words[name]):
            raise ValueError(f"{emitted.folder / WEIGHTS_FILE}: a word of {name} is too wide")
    return words
