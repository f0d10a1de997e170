"""Run phases of requests on an emitted core in cocotb: everything it computes is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sterna.hw.core.plan.image import build_image
from sterna.hw.core.trace import trace_layout
from sterna.hw.emit.folder import EmittedUnit
from sterna.model.quantized import QuantizedModel
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.bench.waves import wave_groups, with_views
from sterna.sim.bench.work_folder import work_folder
from sterna.sim.core.phases import CorePhase, CorePhaseReport
from sterna.sim.core.scoreboard import CoreScoreboard
from sterna.sim.core.stimulus import CoreStimulus

__all__ = ["run_core_phases"]


def run_core_phases(
    model: QuantizedModel, emitted: EmittedUnit, phases: Sequence[CorePhase], *,
    simulator: Simulator = Simulator.VERILATOR, work: Path | None = None, seed: int = 1,
    waves: Path | None = None, progress: Callable[[str], None] = lambda message: None,
) -> list[CorePhaseReport]:
    """Run an emitted core in cocotb and compare what it computes with both oracles.

    With a trace port every intermediate tensor is compared, otherwise logits and tokens.

    Parameters
    ----------
    model, emitted
        The quantised model, and the folder of its core.
    phases
        What to ask, one after the other.
    simulator, work, seed, waves
        As for :func:`sterna.sim.simulate.simulate`.
    progress
        Called with a line of text before each step.

    Returns
    -------
    list[CorePhaseReport]
        A report on each phase that is not cut.

    Raises
    ------
    ValueError
        If a phase has not one request (or None) for each sequence, or one that the core
        cannot run, or one that ends without a prediction.
    MissingToolError, SimulationError
        As for :func:`sterna.sim.bench.runner.run_on`.
    """
    params = emitted.params
    layout = trace_layout(build_image(model, params)) if params.trace else None
    stimulus = CoreStimulus(model, emitted, layout)
    progress("compute the answers with the reference and onnxruntime")
    answers = stimulus.answers(phases)
    progress(f"compile and run in {simulator.value}")
    groups = wave_groups(emitted) if waves else {}
    with work_folder(work) as folder, with_views(waves, emitted.module, groups):
        results = run_on(
            simulator, emitted.sources, emitted.module, stimulus.job(phases, answers, seed),
            folder / f"core_{simulator.value}", waves=waves)
    scoreboard = CoreScoreboard(emitted, layout)
    return [
        scoreboard.check(phase, expected, result)
        for phase, expected, result in zip(phases, answers, results, strict=True)
        if phase.cut_after is None]
